"""What lies beside an injected package is there for what vLLM lacks, and for nothing else."""

import os
import subprocess
import sys
from pathlib import Path

import vllm_vitals

CODE = "import vllm_vitals, only_spare, yaml, sys; print(sys.path[-1], only_spare.__file__, yaml.__file__, sep='\\n')"


def test_spare_packages_come_last(tmp_path: Path) -> None:
    (tmp_path / "vllm_vitals").symlink_to(Path(vllm_vitals.__file__).parent)
    spare = tmp_path / "vllm_vitals_spare" / f"{sys.version_info[0]}.{sys.version_info[1]}"
    spare.mkdir(parents=True)
    for name in ("only_spare", "yaml"):
        (spare / f"{name}.py").touch()
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    last, lent, own = subprocess.check_output([sys.executable, "-c", CODE], env=environment, text=True).splitlines()
    assert (last, lent) == (str(spare), str(spare / "only_spare.py"))
    assert not own.startswith(str(tmp_path))


def test_without_them_the_path_is_left_alone() -> None:
    code = "import sys; before = list(sys.path); import vllm_vitals; print(sys.path == before)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "True\n"
