"""A real VictoriaMetrics that takes OTLP, and its vmalert."""

import contextlib
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.live.bootstrap import REPO, victoria_metrics_tools
from tests.live.pages import eventually
from tests.live.server import fetch, free_port

RELABEL = REPO / "deploy" / "victoria-metrics" / "relabel.yaml"


class VictoriaMetrics:
    """Where pushes are stored under the names of Prometheus, to be asked in PromQL."""

    def __init__(self) -> None:
        self.port, self.alerts = free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.endpoint = f"{self.url}/opentelemetry"

    @contextlib.contextmanager
    def running(self, home: Path) -> Iterator[None]:
        """Run it, and have it evaluate the rule files that lie in `home`."""
        store, alert = victoria_metrics_tools()
        stores: list[str | Path] = [
            store, f"-storageDataPath={home}/victoria", f"-httpListenAddr=127.0.0.1:{self.port}", f"-relabelConfig={RELABEL}",
            "-opentelemetry.usePrometheusNaming", "-search.latencyOffset=0s", "-retentionPeriod=1d",
        ]  # fmt: skip
        alerts: list[str | Path] = [
            alert, f"-httpListenAddr=127.0.0.1:{self.alerts}", f"-rule={home}/*.yaml", f"-datasource.url={self.url}",
            f"-remoteWrite.url={self.url}", "-notifier.blackhole", "-evaluationInterval=2s", "-rule.evalDelay=0s",
            "-remoteWrite.flushInterval=1s",
        ]  # fmt: skip
        with _process(stores, self.port, home / "victoria.log"), _process(alerts, self.alerts, home / "vmalert.log"):
            yield

    def spelled(self, text: str) -> str:
        """Return a query with vLLM's own metrics as they are called here: a colon is no part of a name to it."""
        return re.sub(r"\bvllm:", "vllm_", text)


@contextlib.contextmanager
def _process(command: list[str | Path], port: int, log: Path) -> Iterator[None]:
    def there() -> bool:
        with contextlib.suppress(OSError):
            return fetch(f"http://127.0.0.1:{port}/health").strip() == "OK"
        return False

    with log.open("wb") as said, subprocess.Popen(command, stdout=said, stderr=said) as process:
        try:
            assert eventually(there), log.read_text()
            yield
        finally:
            process.terminate()
