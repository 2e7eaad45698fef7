"""What happens at a checkpoint, for tests that look at the state there."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

from vllm_vitals._util.pacing import checkpoint


@contextmanager
def at_checkpoints(look: Callable[[], object]) -> Iterator[None]:
    """Call `look` instead of `checkpoint()`, wherever one of our modules that are loaded calls it."""
    modules = [module for name, module in list(sys.modules.items()) if name.startswith("vllm_vitals.")]
    patches = [
        mock.patch.object(module, "checkpoint", look)
        for module in modules
        if getattr(module, "checkpoint", None) is checkpoint
    ]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in patches:
            patch.stop()
