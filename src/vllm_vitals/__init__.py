"""The vital signs of a vLLM engine, read from the inside at every step."""

import sys
from importlib.metadata import version
from pathlib import Path

__version__ = version("vllm-vitals")

# Where the package was copied in beside a vLLM (deploy/docker/package.sh), what that lacks may lie next to it. It comes
# last, so that nothing stands in the way of what vLLM has.
_spare = Path(__file__).parent.with_name("vllm_vitals_spare") / f"{sys.version_info[0]}.{sys.version_info[1]}"
if _spare.is_dir() and str(_spare) not in sys.path:
    sys.path.append(str(_spare))
