"""What switches on the engine features that some metrics need."""

FEATURES = {
    "iteration_details": "--enable-logging-iteration-details",
    "cudagraph": "--cudagraph-metrics",
    "mfu": "--enable-mfu-metrics",
    "kv_residency": "--kv-cache-metrics",
    "kv_consumer": "--kv-transfer-config (kv_role kv_consumer or kv_both)",
    "nan_check": "VLLM_COMPUTE_NANS_IN_LOGITS=1",
    "watermark": "--watermark-config",
    "lora": "--enable-lora",
    "speculation": "--speculative-config",
}
"""The `vllm serve` option or the environment variable by `Metric.needs`."""
