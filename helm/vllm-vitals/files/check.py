"""What `helm test` runs: the settings that vLLM has are valid, and the endpoint tells of an engine that is up."""

import os
import ssl
import sys
import time
from urllib.request import urlopen

from vllm_vitals.config.load import SettingsError, load

WAIT = 120.0
"""Seconds for the page to show an engine."""


def look(url: str) -> str:
    """Return what is wrong with the page, `""` if nothing is."""
    context = None
    if url.startswith("https://"):
        context = ssl.create_default_context(cafile=os.environ.get("CHECK_CA") or None)
    try:
        with urlopen(url, timeout=10, context=context) as answer:  # noqa: S310 - the chart's own Service
            page = answer.read().decode()
    except OSError as error:
        return f"{url} does not answer: {error}"
    up = [line for line in page.splitlines() if line.startswith("vllm_engine_up{")]
    if not any(line.endswith((" 1", " 1.0")) for line in up):
        return f"{url} answers, but no engine is up: {up or 'there is no vllm_engine_up'}"
    sys.stdout.write(f"{url}: {len(up)} engines, {len(page.splitlines())} lines\n")
    return ""


def main() -> int:
    """Check, and return the exit code."""
    try:
        loaded = load(os.environ)
    except SettingsError as error:
        sys.stdout.write(f"the settings are wrong:\n{error}\n")
        return 1
    sys.stdout.write(f"the settings are valid: {', '.join('.'.join(path) for path in loaded.origins)}\n")
    url = os.environ.get("CHECK_URL")
    end = time.monotonic() + WAIT
    while url and (problem := look(url)):
        if time.monotonic() > end:
            sys.stdout.write(f"{problem}\n")
            return 1
        time.sleep(2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
