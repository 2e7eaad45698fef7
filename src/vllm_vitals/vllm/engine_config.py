"""What an engine was started with, read once from vLLM's configuration."""

import os
import sys
import time
from collections.abc import Sequence
from typing import Any

from vllm_vitals._util.bounds import clean
from vllm_vitals._util.labels import shown
from vllm_vitals._util.log import LOGGER
from vllm_vitals.catalog.buckets import FAMILIES, check
from vllm_vitals.catalog.engine import INFO_LABELS
from vllm_vitals.records.placement import Placement
from vllm_vitals.records.step import Facts
from vllm_vitals.vllm.precision import precisions
from vllm_vitals.vllm.values import at, whole, word

LONGEST_REASON = 300
"""Characters of what is wrong with an option that are logged."""
NAN_CHECKS = ("VLLM_COMPUTE_NANS_IN_LOGITS", "VLLM_RAISE_ON_LOGIT_NANS")


def model_name(config: Any) -> str:
    """Return the name that vLLM labels its metrics with: the first served model name."""
    name = at(config, "model_config.served_model_name")
    if isinstance(name, list | tuple):
        name = name[0] if name else None
    return shown(name or at(config, "model_config.model") or "unknown")


def api_server(config: Any) -> tuple[int, int]:
    """Return this API server's rank and how many there are."""
    rank = at(config, "parallel_config._api_process_rank")
    count = at(config, "parallel_config._api_process_count")
    return (rank if type(rank) is int and rank >= 0 else 0, count if type(count) is int and count > 0 else 1)


def engine_facts(config: Any, engine: str, engines: int, version: str) -> Facts:
    """Return the facts of one of the `engines` that a serving process drives."""
    return Facts(
        model=model_name(config),
        engine=engine,
        max_num_seqs=whole(config, "scheduler_config.max_num_seqs"),
        max_num_batched_tokens=whole(config, "scheduler_config.max_num_batched_tokens"),
        max_model_len=whole(config, "model_config.max_model_len"),
        kv_cache_tokens=_kv_cache_tokens(config, engines),
        startup=process_age(),
        buckets=_custom_buckets(config),
        info=_info(config, version),
        features=frozenset(name for name, on in _features(config).items() if on),
        gpus=_gpus(config),
        precisions=precisions(config),
        draft_tokens=whole(config, "speculative_config.num_speculative_tokens"),
    )


def placement(config: Any, engines: Sequence[str]) -> Placement:
    """Return which of this host's devices go to which of the engines that a serving process drives."""
    local = at(config, "parallel_config.data_parallel_size_local")
    rank = at(config, "parallel_config.data_parallel_rank_local")
    here = engines[:local] if type(local) is int and local >= 0 else engines
    return Placement(model_name(config), tuple(here), _gpus(config), rank if type(rank) is int and rank >= 0 else 0)


def _gpus(config: Any) -> int:
    """Return how many GPUs one engine works on: its ranks of tensor, pipeline and prefill context parallelism."""
    return whole(config, "parallel_config.world_size") or 1


def _kv_cache_tokens(config: Any, engines: int) -> int | None:
    """Return the tokens one engine's KV cache holds; vLLM adds the blocks of all engines up."""
    if told := whole(config, "cache_config.kv_cache_size_tokens"):
        return told
    blocks = whole(config, "cache_config.num_gpu_blocks")
    size = whole(config, "cache_config.block_size")
    return blocks * size // max(engines, 1) if blocks and size else None


def _custom_buckets(config: Any) -> dict[str, list[float]]:
    given = at(config, "observability_config.custom_histogram_buckets")
    taken: dict[str, list[float]] = {}
    for family, bounds in given.items() if isinstance(given, dict) else ():
        try:
            if family in FAMILIES:
                taken[family] = list(check(family, bounds))
        except (TypeError, ValueError) as error:
            LOGGER.warning("--custom-histogram-buckets %s is not used: %s", family, clean(str(error), LONGEST_REASON))
    return taken


def _features(config: Any) -> dict[str, bool]:
    return {
        "pooling": at(config, "model_config.runner_type") == "pooling",
        "iteration_details": bool(at(config, "observability_config.enable_logging_iteration_details")),
        "cudagraph": bool(at(config, "observability_config.cudagraph_metrics")),
        "mfu": bool(at(config, "observability_config.enable_mfu_metrics")),
        "kv_residency": bool(at(config, "observability_config.kv_cache_metrics")),
        "kv_connector": bool(at(config, "kv_transfer_config.kv_connector")),
        "kv_consumer": bool(at(config, "kv_transfer_config.is_kv_consumer")),
        "nan_check": any(os.environ.get(name, "0") not in ("", "0") for name in NAN_CHECKS),
        "watermark": at(config, "watermark_config") is not None,
        "lora": at(config, "lora_config") is not None,
        "speculation": at(config, "speculative_config") is not None,
    }


def _info(config: Any, version: str) -> dict[str, str]:
    paths = {
        "runner": "model_config.runner_type",
        "dtype": "model_config.dtype",
        "quantization": "model_config.quantization",
        "max_model_len": "model_config.max_model_len",
        "block_size": "cache_config.block_size",
        "kv_cache_dtype": "cache_config.cache_dtype",
        "tensor_parallel_size": "parallel_config.tensor_parallel_size",
        "pipeline_parallel_size": "parallel_config.pipeline_parallel_size",
        "data_parallel_size": "parallel_config.data_parallel_size",
        "prefix_caching": "cache_config.enable_prefix_caching",
        "chunked_prefill": "scheduler_config.enable_chunked_prefill",
        "speculative_method": "speculative_config.method",
        "kv_connector": "kv_transfer_config.kv_connector",
        "kv_role": "kv_transfer_config.kv_role",
    }
    found = {label: at(config, path) for label, path in paths.items()}
    info = {label: word(value) for label, value in found.items() if value is not None}
    return {label: value for label, value in {"vllm_version": version, **info}.items() if label in INFO_LABELS}


def process_age() -> float:
    """Return the seconds since this process was started, as the kernel says."""
    try:
        with open("/proc/self/stat", encoding="ascii", errors="replace") as stat:  # noqa: PTH123
            ticks = int(stat.read().rpartition(")")[2].split()[19])
        return max(time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"), 0.0)
    except (OSError, ValueError, IndexError, AttributeError):
        return max(time.monotonic() - _IMPORTED, 0.0)


_IMPORTED = time.monotonic()


def has_iteration_details() -> bool:
    """Return whether vLLM's stats can hold iteration details; before 0.26 the option for them only logs."""
    stats = getattr(sys.modules.get("vllm.v1.metrics.stats"), "SchedulerStats", None)
    return hasattr(stats, "iteration_details")


def has_request_ids() -> bool:
    """Return whether vLLM's stats of finished requests hold their ids; before 0.20 they do not."""
    stats = getattr(sys.modules.get("vllm.v1.metrics.stats"), "FinishedRequestStats", None)
    fields = {*getattr(stats, "__dataclass_fields__", ()), *getattr(stats, "__annotations__", ())}
    return not fields or "request_id" in fields
