"""Checks of how vLLM is going to be started: what to expect from it."""

from collections.abc import Iterator

from vllm_vitals.cli.checks.command import ServeCommand
from vllm_vitals.cli.checks.finding import Finding, fail, ok, skip, warn
from vllm_vitals.cli.checks.launch import Launch

MULTIPROCESS = "PROMETHEUS_MULTIPROC_DIR"
UNKNOWN = (
    "Give it after two dashes to have it checked: vllm-vitals doctor -- vllm serve MODEL ... . In general: offline LLM "
    "and LLMEngine never load stat-logger plugins, --headless nodes have none (their engines' steps are told by the head "
    "node), and with several API servers each listens on a port of its own, counted from prometheus.port."
)


def expectations(launch: Launch) -> Iterator[Finding]:
    """Tell what the planned command line means for our metrics."""
    if launch.command_error:
        yield fail(f"the command line cannot be read: {launch.command_error}", "vLLM would stop at the same place.")
    elif launch.command is None:
        yield skip("the planned command line is not known", UNKNOWN)
    elif launch.command.headless:
        yield from _headless(launch.command)
    else:
        yield from _serving(launch, launch.command)


def native(launch: Launch) -> Iterator[Finding]:
    """Check that our metrics and vLLM's own can be shown together where that is asked for."""
    settings = launch.prometheus
    several = launch.api_servers > 1
    if settings is None or not settings.enabled or not (settings.join_native or settings.include_native):
        yield skip("our metrics and vLLM's own are served apart")
    elif settings.join_native and (several or MULTIPROCESS in launch.environ):
        why = "with several API servers" if several else f"with {MULTIPROCESS} set"
        yield warn(
            f"prometheus.join_native has no effect {why}: vLLM's /metrics then shows files, never our collector",
            f"Scrape our own port, and unset VITALS_PROMETHEUS__JOIN_NATIVE{'' if several else f' or {MULTIPROCESS}'}.",
        )
    elif settings.include_native and several:
        yield warn(
            "prometheus.include_native with several API servers: each of our ports shows vLLM's metrics of all of them",
            "Keep the vllm:* series of one port only, or unset VITALS_PROMETHEUS__INCLUDE_NATIVE.",
        )
    else:
        name = "join_native" if settings.join_native else "include_native"
        yield ok(f"prometheus.{name} will work")


def _headless(command: ServeCommand) -> Iterator[Finding]:
    yield ok(
        "--headless: this node runs engines only; no plugin loads here and nothing listens here",
        "Scrape the head node: it tells of this node's engines too.",
    )
    if command.disable_log_stats:
        yield warn(
            "--disable-log-stats on a headless node: its engines send no stats to the head node",
            "Leave --disable-log-stats out, or running, waiting, KV cache and phases of these engines are not known.",
        )


def _serving(launch: Launch, command: ServeCommand) -> Iterator[Finding]:
    count = launch.api_servers
    if command.data_parallel_multi_port_external_lb:
        yield _supervised(launch)
    elif count > 1:
        yield ok(
            f"{count} API servers: each has an endpoint of its own",
            "Scrape every one of them: each shows the requests that it serves itself, so sum counters over the ports, and "
            "take the most recent of an engine's gauges.",
        )
    elif command.data_parallel_rank is not None or command.data_parallel_external_lb:
        yield ok(
            "one API server, for this data-parallel rank",
            "Another rank on this machine is a vLLM of its own and needs a prometheus.port of its own.",
        )
    else:
        yield ok("one API server with all requests")
    if command.disable_log_stats and count > 1:
        yield warn(
            "--disable-log-stats with several API servers: the engines send no stats",
            "Leave --disable-log-stats out, or running, waiting, KV cache and the phases of requests are not known.",
        )
    elif command.disable_log_stats:
        yield ok("--disable-log-stats: only vLLM's log lines stop; our metrics are complete")
    if command.enable_elastic_ep:
        yield warn(
            "--enable-elastic-ep: vLLM drops every stat-logger plugin when it scales up, without a word",
            "Watch vitals_step_age_seconds, and restart vLLM after it has scaled up.",
        )


def _supervised(launch: Launch) -> Finding:
    settings = launch.prometheus
    if settings is None or not settings.port:
        return ok("--data-parallel-multi-port-external-lb: one API server for each local rank")
    return fail(
        "--data-parallel-multi-port-external-lb: the servers of all local ranks want the same port "
        f"{settings.port}, and only the first gets it",
        "Set VITALS_PROMETHEUS__PORT=0: each takes a free port then and names it in its log.",
    )
