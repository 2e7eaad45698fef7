"""What a `vllm serve` command line says that matters to a stat logger."""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from vllm_vitals._util import documents
from vllm_vitals._util.bounds import clean
from vllm_vitals.cli.doctor.installed import Release

DEFAULT_PORT = 8000
COUNTED_BY_RANKS = (0, 15)
"""The first vLLM that starts as many API servers as there are data-parallel ranks."""
WHOLE = {
    "--api-server-count": "-asc", "--data-parallel-size": "-dp", "--data-parallel-size-local": "-dpl",
    "--data-parallel-rank": "-dpn", "--data-parallel-start-rank": "-dpr", "--port": "",
}  # fmt: skip
SWITCHES = {
    "--headless": "", "--disable-log-stats": "", "--enable-elastic-ep": "", "--data-parallel-hybrid-lb": "-dph",
    "--data-parallel-external-lb": "-dpe", "--data-parallel-multi-port-external-lb": "-dpm",
}  # fmt: skip


class CommandError(ValueError):
    """A command line that vLLM would not take either."""


@dataclass
class ServeCommand:
    """The options of `vllm serve` that bear on the plugin."""

    api_server_count: int | None
    data_parallel_size: int | None
    data_parallel_size_local: int | None
    data_parallel_rank: int | None
    data_parallel_start_rank: int | None
    port: int | None
    headless: bool
    disable_log_stats: bool
    enable_elastic_ep: bool
    data_parallel_hybrid_lb: bool
    data_parallel_external_lb: bool
    data_parallel_multi_port_external_lb: bool

    def api_servers(self, release: Release | None) -> int:
        """Return how many API servers this vLLM starts on this host, or in each of its ranks; 0 on a headless node."""
        if self.headless:
            return 0
        count = self._servers_unless_told(release) if self.api_server_count is None else self.api_server_count
        return min(count, 1) if self.enable_elastic_ep else count

    def _servers_unless_told(self, release: Release | None) -> int:
        one_each = self.data_parallel_multi_port_external_lb or self.data_parallel_external_lb
        if one_each or self.data_parallel_rank is not None or (release and release < COUNTED_BY_RANKS):
            return 1
        if self.data_parallel_hybrid_lb or self.data_parallel_start_rank is not None:
            return self.data_parallel_size_local or 1
        return self.data_parallel_size or 1


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise CommandError(message)


def parse(words: Sequence[str]) -> ServeCommand:
    """Return what a command line says; other options and the words before them are passed over.

    Raises:
        CommandError: when an option lacks its value or has one of the wrong kind.
    """
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config")
    for name, short in WHOLE.items():
        parser.add_argument(*filter(None, (name, short)), type=int)
    for name, short in SWITCHES.items():
        parser.add_argument(*filter(None, (name, short)), action=argparse.BooleanOptionalAction, default=False)
    dashed = [_dashed(word) for word in words]
    told, _ = parser.parse_known_args(dashed)
    if told.config:
        told, _ = parser.parse_known_args([*_from_file(Path(told.config)), *dashed])
    del told.config
    return ServeCommand(**vars(told))


def _dashed(word: str) -> str:
    """Return an option as vLLM reads it: underscores in its name are dashes."""
    name, equals, value = word.partition("=")
    return f"{name.replace('_', '-')}{equals}{value}" if word.startswith("--") else word


def _from_file(path: Path) -> Iterator[str]:
    """Yield the options of vLLM's own configuration file as words; the command line's come later and win."""
    try:
        content = documents.load(path, unique=False)
    except documents.DocumentError as error:
        raise CommandError(f"--config {clean(str(path), 300)} {error}") from None
    for name, value in content.items() if isinstance(content, dict) else ():
        yield from _words(_dashed(f"--{name}"), value)


def _words(option: str, value: Any) -> Iterator[str]:
    if value is True:
        yield option
    elif isinstance(value, int | float | str) and value is not False:
        yield f"{option}={value}"
