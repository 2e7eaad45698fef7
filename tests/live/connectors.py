"""KV connectors that move nothing and report through vLLM's own classes: a CPU has no transfers to time.

vLLM imports them by `kv_connector_module_path`; they bear the names of those whose reports they make.
"""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata, KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.stats import NixlKVConnectorStats, NixlPromMetrics
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats, OffloadPromMetrics


class _Reporting(KVConnectorBase_V1):  # type: ignore[misc]
    """Has nothing to load or to save; its scheduler's side reports something new at each step."""

    stats: Any
    metrics: Any

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._reports = self.reports() if role is KVConnectorRole.SCHEDULER else iter(())

    @classmethod
    def reports(cls) -> Iterator[Any]:
        """Yield what is reported, one for each step."""
        raise NotImplementedError

    def get_kv_connector_stats(self) -> Any:
        return next(self._reports, None)

    @classmethod
    def build_kv_connector_stats(cls, data: Any = None) -> Any:
        return cls.stats(data=data) if data is not None else cls.stats()

    @classmethod
    def build_prom_metrics(cls, *arguments: Any) -> Any:
        return cls.metrics(*arguments)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None: ...
    def wait_for_layer_load(self, layer_name: str) -> None: ...
    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None: ...
    def wait_for_save(self) -> None: ...
    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None: ...

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:  # noqa: ARG002
        return 0, False

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:  # noqa: ARG002
        return KVConnectorMetadata()


class NixlConnector(_Reporting):
    """Reports as NIXL's does: at each of 40 steps one transfer, and now and then one that failed."""

    stats, metrics = NixlKVConnectorStats, NixlPromMetrics

    @classmethod
    def reports(cls) -> Iterator[Any]:
        for number in range(1, 41):
            stats = cls.stats()
            stats.record_transfer(
                SimpleNamespace(
                    xferDuration=997 * number**2,
                    postDuration=31 * number,
                    totalBytes=4099 * number**3,
                    descCount=number,
                )
            )
            if number % 5 == 0:
                stats.record_failed_transfer()
                stats.record_failed_handshake()
            if number % 7 == 0:
                stats.record_failed_notification()
                stats.record_kv_expired_req()
                stats.record_notification_after_expiry()
            yield stats


class OffloadingConnector(_Reporting):
    """Reports as the one that offloads to the CPU does."""

    stats, metrics = OffloadingConnectorStats, OffloadPromMetrics

    @classmethod
    def reports(cls) -> Iterator[Any]:
        for number in range(1, 31):
            stats = cls.stats()
            way = "load" if number % 3 else "store"
            for size in (1000 * number, 7_000_000):
                stats.increase_counter(f"vllm:kv_offload_{way}_bytes", size)
                stats.observe_histogram(f"vllm:kv_offload_{way}_size", size)
            stats.increase_counter(f"vllm:kv_offload_{way}_time", 0.001 * number)
            stats.observe_histogram("vllm:kv_offload_lookup_sync_delay_seconds", 0.00003 * number)
            stats.observe_histogram("vllm:kv_offload_lookup_async_delay_seconds", 0.02 * number)
            stats.set_gauge("vllm:kv_offload_cpu_cache_usage_perc", number / 40)
            if number % 4 == 0:
                stats.increase_counter("vllm:kv_offload_allocation_failure")
            yield stats
