"""A real Prometheus."""

import json
import math
import subprocess
from pathlib import Path
from urllib.parse import quote

from tests.live.bootstrap import prometheus_tools
from tests.live.server import fetch, free_port

CONFIG = """
global: {{scrape_interval: 1s}}
scrape_configs:
  - job_name: vllm
    static_configs: [{{targets: ["localhost:{port}"]}}]
"""


class Prometheus:
    """A Prometheus server that scrapes one port, or what a configuration says."""

    def __init__(self, home: Path, target: int, config: str = CONFIG) -> None:
        binary, _ = prometheus_tools()
        self.port = free_port()
        (home / "prometheus.yml").write_text(config.format(port=target))
        self.process = subprocess.Popen(
            [
                binary, f"--config.file={home}/prometheus.yml", f"--storage.tsdb.path={home}/data",
                f"--web.listen-address=127.0.0.1:{self.port}", "--enable-feature=exemplar-storage",
            ],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def query(self, expression: str) -> float:
        """Return the sum of an instant query's values, NaN without any."""
        try:
            answer = json.loads(fetch(f"http://127.0.0.1:{self.port}/api/v1/query?query={quote(expression)}"))
        except OSError:
            return math.nan
        values = [float(series["value"][1]) for series in answer["data"]["result"]]
        return math.fsum(values) if values else math.nan
