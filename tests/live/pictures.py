"""The README's pictures: a real run as `vllm-vitals dashboards preview` shows it. `make pictures` makes them anew."""

import sys
import tempfile
from pathlib import Path

from PIL import Image
from typer.testing import CliRunner

from tests.live.bootstrap import REPO
from tests.live.model import make_model
from tests.live.provoke import watched
from vllm_vitals.cli import app

PICTURES = REPO / "docs" / "pictures"
BOARDS = {"fleet": 1075, "engine": 925, "latency": 925}
"""The boards, and how many pixels of each are shown: what is above the third title."""
BEGUN = "min(min_over_time(timestamp(vllm_engine_requests_running > 0)[1h:1s]))"
"""When the first request ran."""


def main() -> int:
    """Run vLLMs on which everything happens, and take the pictures."""
    with tempfile.TemporaryDirectory() as home, watched(make_model(Path(home, "model")), Path(home)) as running:
        running.provoke()
        stores = running.stores
        seconds = int(stores.scraped.query(f"time() - {BEGUN}")) + 5
        options = [
            "--prometheus",
            f"http://127.0.0.1:{stores.scraped.port}",
            "--range",
            f"{seconds}s",
            "--scrape-interval",
            "3s",
        ]
        for name, height in BOARDS.items():
            path = PICTURES / f"{name}.png"
            ran = CliRunner().invoke(app, ["dashboards", "preview", name, *options, "--out", str(path)])
            print(ran.output, end="")
            if ran.exit_code:
                return ran.exit_code
            cut(path, height)
    return 0


def cut(path: Path, height: int) -> None:
    """Shorten a picture to this height, or to the next line above it that goes through nothing."""
    with Image.open(path) as found:
        taken = found.convert("RGB")
    while height > 1 and len(taken.crop((0, height - 1, taken.width, height)).getcolors() or ()) != 1:
        height -= 1
    taken.crop((0, 0, taken.width, height)).save(path, optimize=True)


if __name__ == "__main__":
    sys.exit(main())
