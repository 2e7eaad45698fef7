"""A real `VllmConfig` of a tiny model that exists only as a configuration file."""

import functools
import json
import pathlib
import tempfile

from vllm.config import ModelConfig, VllmConfig

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 4096,
    "torch_dtype": "float32",
}


@functools.cache
def vllm_config() -> VllmConfig:
    """Return the configuration of an engine that has started: its number of KV blocks is known."""
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "config.json").write_text(json.dumps(MODEL))
        model = ModelConfig(model=folder, served_model_name="bench", skip_tokenizer_init=True, max_model_len=4096)
    config = VllmConfig(model_config=model)
    config.cache_config.num_gpu_blocks = 10_000
    return config
