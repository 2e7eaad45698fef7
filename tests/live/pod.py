"""A pod of the chart on this machine: its volumes are directories, its containers processes with the rendered variables.

Paths that a container mounts are replaced by those of the directories, in its command, its variables and the files that
ConfigMaps hold; nothing else of what was rendered is changed.
"""

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.helm.render import Object, containers, of_kind, variables

Paths = Mapping[str, Path]


class Pod:
    """Volumes and containers of one pod."""

    def __init__(self, found: list[Object], spec: Object, home: Path) -> None:
        self._home, self._processes = home, dict[str, subprocess.Popen[bytes]]()
        self._containers = containers(spec)
        self._volumes: dict[str, Path] = {each["name"]: home / each["name"] for each in spec["volumes"]}
        for each in spec["volumes"]:
            self._volumes[each["name"]].mkdir()
            if "configMap" in each:
                (config,) = (
                    one for one in of_kind(found, "ConfigMap") if one["metadata"]["name"] == each["configMap"]["name"]
                )
                for name, text in config["data"].items():
                    (self._volumes[each["name"]] / name).write_text(self._here(text, self._everywhere()))

    def volume(self, name: str) -> Path:
        """Return the directory that is a volume."""
        return self._volumes[name]

    def run(self, name: str, path: str, image: Paths | None = None) -> None:
        """Run a container to its end; `image` says where some of its image's files are here."""
        with self._started(name, path, image or {}) as process:
            assert process.wait(300) == 0, self.log(name)

    def start(self, name: str, path: str) -> subprocess.Popen[bytes]:
        """Start a container; it runs until the pod is stopped."""
        process = self._started(name, path, {})
        self._processes[name] = process
        return process

    def stop(self, *names: str) -> None:
        """End some containers, or all: the last first, as Kubernetes ends native sidecars after the others."""
        for name in names or reversed(list(self._processes)):
            process = self._processes.pop(name)
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)

    def log(self, name: str) -> str:
        """Return what a container has said."""
        return (self._home / f"{name}.log").read_text(errors="replace")

    def environment(self, name: str, path: str, image: Paths | None = None) -> dict[str, str]:
        """Return the variables of a container: those that are rendered, and those that its image has."""
        paths = self._mounts(self._containers[name]) | dict(image or {})
        given = {key: _value(value) for key, value in variables(self._containers[name]).items()}
        return {"PATH": path, **{key: self._here(value, paths) for key, value in given.items()}}

    def _started(self, name: str, path: str, image: Paths) -> subprocess.Popen[bytes]:
        container = self._containers[name]
        paths = self._mounts(container) | dict(image)
        command = [self._here(word, paths) for word in (*container["command"], *container.get("args", []))]
        with (self._home / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                ["/usr/bin/env", *command],  # which looks for the command on the container's PATH, not on ours
                env=self.environment(name, path, image), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                process_group=0, cwd=self._home,
            )  # fmt: skip

    def _mounts(self, container: Object) -> dict[str, Path]:
        return {each["mountPath"]: self._volumes[each["name"]] for each in container["volumeMounts"]}

    def _everywhere(self) -> dict[str, Path]:
        return {path: place for each in self._containers.values() for path, place in self._mounts(each).items()}

    @staticmethod
    def _here(text: str, paths: Paths) -> str:
        longest_first = "|".join(re.escape(path) for path in sorted(paths, key=len, reverse=True))
        return re.sub(rf"(?<![\w./-])({longest_first})(?![\w-])", lambda found: str(paths[found[1]]), text)


def _value(value: Any) -> str:
    """Return a variable's text; one that comes from the pod itself is made up."""
    return value if isinstance(value, str) else "from-the-pod"


@contextlib.contextmanager
def running(found: list[Object], spec: Object, home: Path) -> Iterator[Pod]:
    """Hold a pod, and leave nothing of it behind."""
    pod = Pod(found, spec, home)
    try:
        yield pod
    finally:
        pod.stop()
