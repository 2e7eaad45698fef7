"""Command line of the bench."""

import argparse
import json
import os
import platform
from collections.abc import Callable
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path

from .options import Options

FIGURES = ("hook", "cpu", "lag", "hostile", "scrape", "push", "collector", "delay", "quantiles", "soak")
FULL = Options(
    candidates=("none", "builtin", "otel", "ours", "sidecar"),
    running=(1, 64, 256, 1024, 4096),
    seconds=5.0,
    rounds=5,
    lag_seconds=3.0,
    lag_rounds=3,
    scrapes=20,
    push_engines=(1, 8, 64),
    push_rounds=3,
    tries=30,
    soak_seconds=600.0,
)
QUICK = replace(
    FULL,
    running=(64, 1024),
    seconds=1.0,
    rounds=2,
    lag_seconds=1.0,
    lag_rounds=2,
    scrapes=5,
    push_engines=(1, 8),
    push_rounds=1,
    tries=8,
    soak_seconds=30.0,
)


def parse() -> argparse.Namespace:
    """Return the command line, parsed."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a first look: fewer sizes, short and few rounds")
    parser.add_argument("--only", type=_names(FIGURES), default=FIGURES, help="figures, comma separated")
    parser.add_argument("--candidates", type=_names(FULL.candidates), default=FULL.candidates, help="comma separated")
    parser.add_argument("--seconds", type=float, help="length of one measurement")
    parser.add_argument("--rounds", type=int, help="how often the candidates take turns")
    parser.add_argument("--soak-seconds", type=float, help="length of the soak")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    return parser.parse_args()


def _names(known: tuple[str, ...]) -> Callable[[str], tuple[str, ...]]:
    """Return a parser of comma separated names, all of them known."""

    def parse_names(text: str) -> tuple[str, ...]:
        names = tuple(text.split(","))
        if unknown := set(names) - set(known):
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(sorted(unknown))}; choose from {', '.join(known)}")
        return names

    return parse_names


def options(args: argparse.Namespace) -> Options:
    """Return the sizes that the command line asks for."""
    given = {name: getattr(args, name) for name in ("candidates", "seconds", "rounds", "soak_seconds")}
    given |= {"lag_seconds": args.seconds, "lag_rounds": args.rounds, "push_rounds": args.rounds}
    chosen = {name: value for name, value in given.items() if value is not None}
    return replace(QUICK if args.quick else FULL, **chosen)


def main() -> None:
    """Measure, print each figure as it is done, and keep them."""
    args = parse()
    # vLLM's warnings about a machine without a GPU would drown the tables.
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    from .engine import vllm_config

    vllm_config()  # Made once: every measurement's process inherits it.
    chosen, figures = options(args), []
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.2f}\n", flush=True)
    for name in args.only:
        figures.append(import_module(f".{name}", __package__).run(chosen))
        print(figures[-1].text(), flush=True)
    if args.json:
        args.json.write_text(json.dumps([asdict(figure) for figure in figures], indent=2))


if __name__ == "__main__":
    main()
