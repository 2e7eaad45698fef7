"""A page as a picture, taken by the Chromium or Chrome of this machine."""

import os
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image, ImageChops

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
WIDTH = 1280
MARGIN = 16
TIMEOUT = 120
FLAGS = (
    "--headless", "--disable-gpu", "--hide-scrollbars", "--disable-background-networking", "--no-first-run",
    "--force-color-profile=srgb",
)  # fmt: skip


class PhotoError(Exception):
    """There is no browser, or it took no picture; the message says what to do."""


def browser() -> str:
    """Return the program of a browser that takes pictures; raise `PhotoError` when there is none."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if not found:
        raise PhotoError(f"a PNG takes a browser, one of {', '.join(BROWSERS)} on the PATH; an HTML file takes none")
    return found


def take(program: str, page: str, height: int, path: Path) -> None:
    """Write a PNG of a page that is at most `height` pixels high; raise `PhotoError` when the browser fails."""
    with TemporaryDirectory() as home:
        source, shot = Path(home, "page.html"), Path(home, "page.png")
        source.write_text(page, encoding="utf-8")
        flags = [*FLAGS, *(["--no-sandbox"] if os.geteuid() == 0 else [])]
        command = [
            program,
            *flags,
            f"--user-data-dir={home}/profile",
            f"--window-size={WIDTH},{height}",
            f"--screenshot={shot}",
            source.as_uri(),
        ]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=TIMEOUT)  # noqa: S603
        except subprocess.SubprocessError as error:
            raise PhotoError(f"{program} took no picture: {error}") from error
        if not shot.exists():
            raise PhotoError(f"{program} took no picture")
        with Image.open(shot) as taken:
            _cut(taken.convert("RGB")).save(path, optimize=True)


def _cut(taken: Image.Image) -> Image.Image:
    """Return a picture without the empty ground below its last panel."""
    ground = taken.getpixel((0, taken.height - 1))
    box = ImageChops.difference(taken, Image.new("RGB", taken.size, ground)).getbbox()
    return taken.crop((0, 0, taken.width, min(taken.height, box[3] + MARGIN))) if box else taken
