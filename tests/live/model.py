"""A tiny random Llama, its tokenizer and LoRA adapters, written to disk with no download."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB = 1024
EOS, BOS = 0, 1
SPECIAL = ("<eos>", "<bos>")
# vLLM's CPU attention takes only certain head sizes; 64 is one of them.
HEAD, HEADS, KV_HEADS, LAYERS, FFN = 64, 2, 1, 2, 256
HIDDEN = HEAD * HEADS
RANK = 8
CHAT_TEMPLATE = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\\n' }}{% endfor %}assistant: "

Weights = dict[str, "np.ndarray[Any, np.dtype[np.float32]]"]


def make_model(directory: Path, *, seed: int = 0) -> Path:
    """Write the model and its tokenizer into ``directory`` unless they are there; return it."""
    if not (directory / "model.safetensors").is_file():
        directory.mkdir(parents=True, exist_ok=True)
        _tokenizer(seed).save(str(directory / "tokenizer.json"))
        _write_json(directory / "tokenizer_config.json", _tokenizer_config())
        _write_json(directory / "config.json", _model_config())
        _write_weights(directory / "model.safetensors", _model_weights(seed))
    return directory


def make_adapters(directory: Path, *, names: tuple[str, ...] = ("red", "blue")) -> dict[str, Path]:
    """Write one random LoRA adapter per name under ``directory``; return their paths by name."""
    paths = {name: directory / name for name in names}
    for seed, path in enumerate(paths.values(), start=1):
        if not (path / "adapter_model.safetensors").is_file():
            path.mkdir(parents=True, exist_ok=True)
            _write_json(path / "adapter_config.json", _adapter_config())
            _write_weights(path / "adapter_model.safetensors", _adapter_weights(seed))
    return paths


def _tokenizer(seed: int) -> Tokenizer:
    """Return a byte-level BPE tokenizer of exactly ``VOCAB`` entries, so every id has a text."""
    rng = random.Random(seed)
    words = ["".join(rng.choices("aeinorst", k=rng.randint(3, 8))) for _ in range(4000)]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB, special_tokens=list(SPECIAL), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([" ".join(words)], trainer)
    if tokenizer.get_vocab_size() != VOCAB:
        raise RuntimeError(f"tokenizer has {tokenizer.get_vocab_size()} entries, wanted {VOCAB}")
    return tokenizer


def _tokenizer_config() -> dict[str, Any]:
    # Releases of vLLM on transformers 4 know no newer class name than this one.
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": SPECIAL[EOS],
        "bos_token": SPECIAL[BOS],
        "model_max_length": 2048,
        "chat_template": CHAT_TEMPLATE,
    }


def _model_config() -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "head_dim": HEAD,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "num_hidden_layers": LAYERS,
        "intermediate_size": FFN,
        "vocab_size": VOCAB,
        "max_position_embeddings": 2048,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "torch_dtype": "float32",
    }


def _model_weights(seed: int) -> Weights:
    shapes = {"model.embed_tokens": (VOCAB, HIDDEN), "lm_head": (VOCAB, HIDDEN)}
    norms = ["model.norm"]
    for layer in (f"model.layers.{index}" for index in range(LAYERS)):
        norms += [f"{layer}.input_layernorm", f"{layer}.post_attention_layernorm"]
        shapes |= {f"{layer}.self_attn.{p}_proj": (HIDDEN, HIDDEN) for p in "qo"}
        shapes |= {f"{layer}.self_attn.{p}_proj": (HEAD * KV_HEADS, HIDDEN) for p in "kv"}
        shapes |= {f"{layer}.mlp.{p}_proj": (FFN, HIDDEN) for p in ("gate", "up")}
        shapes[f"{layer}.mlp.down_proj"] = (HIDDEN, FFN)
    ones = {f"{name}.weight": np.ones(HIDDEN, dtype=np.float32) for name in norms}
    return ones | _random({f"{name}.weight": shape for name, shape in shapes.items()}, seed)


def _adapter_config() -> dict[str, Any]:
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": RANK,
        "lora_alpha": 2 * RANK,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": ["q_proj", "v_proj"],
    }


def _adapter_weights(seed: int) -> Weights:
    shapes: dict[str, tuple[int, int]] = {}
    for index in range(LAYERS):
        for projection, width in (("q", HIDDEN), ("v", HEAD * KV_HEADS)):
            stem = f"base_model.model.model.layers.{index}.self_attn.{projection}_proj"
            shapes[f"{stem}.lora_A.weight"] = (RANK, HIDDEN)
            shapes[f"{stem}.lora_B.weight"] = (width, RANK)
    return _random(shapes, seed)


def _random(shapes: dict[str, tuple[int, int]], seed: int) -> Weights:
    rng = np.random.default_rng(seed)
    return {name: rng.normal(0, 0.05, shape).astype(np.float32) for name, shape in shapes.items()}


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _write_weights(path: Path, weights: Weights) -> None:
    """Write ``weights`` in one rename: this file's presence says that its directory is complete."""
    partial = path.with_suffix(".partial")
    save_file(weights, partial, metadata={"format": "pt"})
    partial.replace(path)
