"""In which precision an engine multiplies matrices, as far as vLLM's configuration says so."""

import os
from typing import Any

from vllm_vitals.vllm.values import at, word

OF_DTYPE = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16"}
WEIGHTS_ONLY = {
    "auto_awq", "auto_gptq", "awq", "awq_marlin", "bitsandbytes", "experts_int8", "gguf", "gptq", "gptq_marlin",
    "int8_per_channel_weight_only", "moe_wna16",
}  # fmt: skip
"""Quantizations whose weights are made into the model's dtype before they are multiplied."""
FP8 = {
    "fbgemm_fp8", "fp8", "fp8_per_block", "fp8_per_channel", "fp8_per_tensor", "modelopt", "modelopt_mxfp8", "mxfp8",
    "ptpc_fp8",
}  # fmt: skip
FP4 = {"modelopt_fp4", "nvfp4_per_token"}
"""With these and `FP8`, vLLM multiplies in the model's dtype on a GPU that has no such units."""
OF_SCHEME = {("float", 8): "fp8", ("float", 4): "fp4", ("int", 8): "int8"}


def precisions(config: Any) -> tuple[str, ...]:
    """Return the precisions that the engine's matrices are multiplied in, the first that its GPUs have counts.

    There are none where that depends on more than the configuration, as with MXFP4.
    """
    own = _of_dtype(word(at(config, "model_config.dtype")))
    method = word(at(config, "model_config.quantization") or "")
    if not own or not method or method in WEIGHTS_ONLY:
        return own
    if method in FP8:
        return ("fp8", *own)
    if method in FP4:
        return ("fp4", *own)
    return _of_schemes(at(config, "model_config.hf_config.quantization_config"), own)


def _of_dtype(dtype: str) -> tuple[str, ...]:
    if dtype == "float32":
        exact = os.environ.get("VLLM_FLOAT32_MATMUL_PRECISION", "highest") == "highest"
        return ("fp32",) if exact else ("tf32",)
    return (OF_DTYPE[dtype],) if dtype in OF_DTYPE else ()


def _of_schemes(described: Any, own: tuple[str, ...]) -> tuple[str, ...]:
    """Return what a description in the manner of compressed-tensors says, if it says the same of all layers."""
    try:
        groups = described["config_groups"].values()
        found = {_of_scheme(group["weights"], group.get("input_activations"), own) for group in groups}
    except (AttributeError, KeyError, TypeError):
        return ()
    return found.pop() if len(found) == 1 else ()


def _of_scheme(weights: Any, activations: Any, own: tuple[str, ...]) -> tuple[str, ...]:
    if not activations:
        return own  # the weights alone are quantized
    kinds = {(each["type"], each["num_bits"]) for each in (weights, activations)}
    precision = OF_SCHEME.get(kinds.pop(), "") if len(kinds) == 1 else ""
    if not precision:
        return ()
    return (precision,) if precision == "int8" else (precision, *own)
