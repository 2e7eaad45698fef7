"""A real Alertmanager, and somebody whom it tells."""

import json
import shutil
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from typing_extensions import Self

from tests.live.bootstrap import debian_package
from tests.live.pages import eventually
from tests.live.server import fetch, free_port

CONFIG = """
route:
  receiver: us
  group_by: ["..."]
  group_wait: 0s
  group_interval: 1s
  repeat_interval: 1h
receivers:
  - name: us
    webhook_configs: [{{url: "{url}", send_resolved: true}}]
"""


class Receiver:
    """A webhook that keeps what it is told, in order."""

    def __init__(self) -> None:
        self.alerts: list[dict[str, Any]] = []
        heard = self.alerts

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                heard.extend(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["alerts"])
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/"

    def heard(self, name: str, status: str) -> list[dict[str, Any]]:
        """Return what was told of an alert that was firing, or resolved."""
        return [each for each in list(self.alerts) if each["labels"]["alertname"] == name and each["status"] == status]

    def latest(self, name: str) -> str | None:
        """Return what was told last of an alert, `None` if nothing was."""
        told = [each["status"] for each in list(self.alerts) if each["labels"]["alertname"] == name]
        return told[-1] if told else None

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class Alertmanager:
    """An Alertmanager that tells one webhook of each alert at once."""

    def __init__(self, home: Path, url: str) -> None:
        self.port = free_port()
        (home / "alertmanager.yml").write_text(CONFIG.format(url=url))
        program, self._directory = _program()
        self._command = [
            program, f"--config.file={home}/alertmanager.yml", f"--storage.path={home}/alertmanager",
            f"--web.listen-address=127.0.0.1:{self.port}", "--cluster.listen-address=",
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command, cwd=self._directory, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        if not eventually(self._ready):
            self.__exit__()
            raise RuntimeError(f"Alertmanager is not ready: {self._command}")
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(timeout=20)

    def _ready(self) -> bool:
        try:
            return bool(fetch(f"http://127.0.0.1:{self.port}/-/ready", timeout=2))
        except OSError:
            return False


def _program() -> tuple[Path, Path | None]:
    """Return a real Alertmanager and the directory to start it in; unpacked from its Debian package if it is not installed.

    Debian's looks for its templates at a fixed place. In the unpacked one that is made relative, by a path as long.
    """
    installed = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")
    if installed:
        return Path(installed), None
    home = debian_package("prometheus-alertmanager")
    binary, ours = home / "usr/bin/prometheus-alertmanager", home / "alertmanager"
    if not ours.is_file():
        ours.write_bytes(binary.read_bytes().replace(b"/usr/share/prometheus/", b"usr/share/prometheus//"))
        ours.chmod(0o755)
    return ours, home
