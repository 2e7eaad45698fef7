"""What vLLM's configuration holds: it changes from release to release, so nothing is taken to be there."""

from typing import Any

from vllm_vitals._util.labels import shown
from vllm_vitals.vllm.fields import MOST_INT


def at(config: Any, path: str) -> Any:
    """Return the attribute at a dotted path, `None` where a release has none."""
    for name in path.split("."):
        try:
            config = getattr(config, name, None)
        except Exception:  # noqa: BLE001 - a computed property may raise
            return None
    return config


def whole(config: Any, path: str) -> int | None:
    """Return the positive whole number at a dotted path, or `None`."""
    value = at(config, path)
    return value if type(value) is int and 0 < value < MOST_INT else None


def word(value: Any) -> str:
    """Return a value as a label shows it."""
    return shown(value).removeprefix("torch.")
