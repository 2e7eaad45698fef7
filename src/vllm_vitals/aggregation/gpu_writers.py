"""Write GPU samples into the store: start their counters, and remove their gauges when samples stop."""

from collections.abc import Sequence

from vllm_vitals.records.gpu import Sample
from vllm_vitals.store.writers import GaugeWriter, Writer


class GpuWriters:
    """The writers of the GPU metrics. Callers hold the store's lock."""

    def __init__(self, writers: Sequence[Writer]) -> None:
        self.writers = writers
        self._gauges = [writer for writer in writers if isinstance(writer, GaugeWriter)]
        self._counters = [writer for writer in writers if not isinstance(writer, GaugeWriter)]
        self._clock: float | None = None
        """Monotonic seconds of the latest sample; `None` while its gauges are removed."""

    def begin(self, samples: Sequence[Sample]) -> None:
        """Create the counters of the samples, at 0 where they are new, so that the first error is an increase."""
        self._clock = samples[-1].clock
        for writer in self._counters:
            for sample in samples:
                for label in writer.read(sample):
                    writer.family.number(writer.scope, label)

    def expire(self, clock: float, after: float) -> None:
        """Remove the gauges after so many seconds without a sample, for example when a driver hangs; 0 keeps them."""
        if self._clock is None or not after or clock - self._clock < after:
            return
        self._clock = None
        for writer in self._gauges:
            writer.family.drop(writer.scope)
