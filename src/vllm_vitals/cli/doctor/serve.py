"""Checks of how vLLM is going to be started: what to expect from it."""

from collections.abc import Iterator

from vllm_vitals.cli.doctor.finding import Finding, fail, ok, skip, warn
from vllm_vitals.cli.doctor.launch import Launch
from vllm_vitals.cli.doctor.plugins import NATIVE
from vllm_vitals.cli.doctor.serve_command import ServeCommand

UNKNOWN = (
    "Give it after two dashes to have it checked: vllm-vitals doctor -- vllm serve MODEL ... . In general: offline LLM "
    "and LLMEngine never load stat-logger plugins, --headless nodes have none (their engines' steps are told by the head "
    "node), and of several API servers one collects and exports for all."
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


def _headless(command: ServeCommand) -> Iterator[Finding]:
    yield ok(
        "--headless: this node runs engines only; no plugin loads here and nothing listens here",
        "Scrape the head node: it tells of this node's engines too. Where no plugin loads there either (Rust front end), "
        f"run {NATIVE}.",
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
            f"{count} API servers: they send to the sidecar"
            if launch.sidecar
            else f"{count} API servers: one of them collects for all, so there is one endpoint and one push"
        )
    elif command.data_parallel_rank is not None or command.data_parallel_external_lb:
        yield ok(
            "one API server, for this data-parallel rank",
            "Another rank on this machine is a vLLM of its own and needs a prometheus.port of its own, or one sidecar for "
            "all of them.",
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
            "Restart vLLM after it has scaled up: vitals_plugin_detached == 1 says so within half a minute of its generating on.",
        )


def _supervised(launch: Launch) -> Finding:
    settings = launch.prometheus
    if settings is None or not settings.port or launch.sidecar:
        return ok("--data-parallel-multi-port-external-lb: one API server for each local rank")
    return fail(
        "--data-parallel-multi-port-external-lb: the servers of all local ranks want the same port "
        f"{settings.port}, and only the first gets it",
        "Let all of them send to one sidecar (VITALS_WIRE__SIDECAR), or set VITALS_PROMETHEUS__PORT=0: each takes a free "
        "port then and names it in its log.",
    )
