"""A stand-in for `VllmConfig` with exactly the sections and fields a release has."""

import ast
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.compat.releases import Release

#: What a served model sets; a release that lacks a field does not get it.
SERVED: Mapping[str, Mapping[str, Any]] = {
    "cache_config": {"block_size": 16, "num_gpu_blocks": 1000, "metrics_info": lambda: {"block_size": "16"}},
    "device_config": {"device_type": "cpu"},
    "model_config": {"model": "org/m", "served_model_name": "m", "max_model_len": 4096, "is_diffusion": False},
    "observability_config": {"show_hidden_metrics": False},
    "parallel_config": {"data_parallel_size": 1, "_api_process_count": 1, "_api_process_rank": 0},
    "scheduler_config": {"max_num_seqs": 128, "max_num_batched_tokens": 2048},
}


def make_config(release: Release, **changes: Mapping[str, Any]) -> SimpleNamespace:
    """Make the configuration of a served model, with `changes` per section.

    A section that is None by default, like `lora_config`, comes into being by a change to it.
    """
    classes = _config_classes(release.root)
    config = SimpleNamespace()
    for name, annotation, default in _fields(classes["VllmConfig"]):
        section = classes.get(_section_class(annotation))
        used = section and (name in changes or "None" not in ast.unparse(annotation))
        values = {**SERVED.get(name, {}), **changes.get(name, {})}
        setattr(config, name, _section(section, values) if section and used else default)
    return config


def _section(body: ast.ClassDef, values: Mapping[str, Any]) -> SimpleNamespace:
    """Make a section with the defaults of its class, and those of `values` that the class knows."""
    section = SimpleNamespace(**{name: default for name, _, default in _fields(body)})
    known = {item.name for item in body.body if isinstance(item, ast.FunctionDef)} | set(vars(section))
    vars(section).update({name: value for name, value in values.items() if name in known})
    return section


@functools.cache
def _config_classes(root: Path) -> dict[str, ast.ClassDef]:
    """Return every class of the `vllm.config` package below `root`."""
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in sorted((root / "vllm" / "config").glob("*.py")))
    return {node.name: node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)}


def _fields(body: ast.ClassDef) -> Iterator[tuple[str, ast.expr, Any]]:
    """Yield the name, annotation and default of each field that instances have."""
    for item in body.body:
        if not (isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)):
            continue
        if not ast.unparse(item.annotation).startswith(("ClassVar", "InitVar")):
            yield item.target.id, item.annotation, _default(item.value)


def _default(value: ast.expr | None) -> Any:
    """Return a literal default, also inside `Field(default=...)`; None for what is computed."""
    if isinstance(value, ast.Call):
        value = next((keyword.value for keyword in value.keywords if keyword.arg == "default"), None)
    try:
        return None if value is None else ast.literal_eval(value)
    except ValueError:
        return None


def _section_class(annotation: ast.expr) -> str:
    """Return the configuration class an annotation names, whether or not it allows None; else ""."""
    names = (node.id for node in ast.walk(annotation) if isinstance(node, ast.Name))
    return next((name for name in names if name.endswith("Config")), "")
