"""The check of the planned command line: what to expect from it."""

from collections.abc import Iterator

from vllm_vitals.cli.doctor.finding import Finding, fail, ok, skip, warn
from vllm_vitals.cli.doctor.installation import NATIVE_SIDECAR
from vllm_vitals.cli.doctor.launch import Launch, ServeCommand

UNKNOWN = (
    "To have it checked, give it after two dashes: vllm-vitals doctor -- vllm serve MODEL ... . In general: offline LLM "
    "and LLMEngine never load stat-logger plugins. --headless nodes load none either; the head node reports the steps "
    "of their engines. Of several API servers, one collects and exports for all."
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
        "--headless: this node runs engines only. No plugin loads here, and there is no scrape endpoint here",
        "Scrape the head node: it reports the engines of this node too. If no plugin loads there either (Rust front "
        f"end), run {NATIVE_SIDECAR}.",
    )
    if command.disable_log_stats:
        yield warn(
            "--disable-log-stats on a headless node: its engines send no stats to the head node",
            "Remove --disable-log-stats. With it, running and waiting requests, KV cache and phases of these engines "
            "are unknown.",
        )


def _serving(launch: Launch, command: ServeCommand) -> Iterator[Finding]:
    count = launch.api_servers
    if command.data_parallel_multi_port_external_lb:
        yield _one_server_per_rank(launch)
    elif count > 1:
        yield ok(
            f"{count} API servers: they send to the sidecar"
            if launch.sidecar
            else f"{count} API servers: one of them collects for all, so there is one scrape endpoint and one push"
        )
    elif command.data_parallel_rank is not None or command.data_parallel_external_lb:
        yield ok(
            "one API server, for this data-parallel rank",
            "Another rank on this machine is another vLLM. It needs its own prometheus.port, or one sidecar for all of "
            "them.",
        )
    else:
        yield ok("one API server with all requests")
    if command.disable_log_stats and count > 1:
        yield warn(
            "--disable-log-stats with several API servers: the engines send no stats",
            "Remove --disable-log-stats. With it, running and waiting requests, KV cache and the phases of requests "
            "are unknown.",
        )
    elif command.disable_log_stats:
        yield ok("--disable-log-stats: only vLLM's log lines stop; our metrics are complete")
    if command.enable_elastic_ep:
        yield warn(
            "--enable-elastic-ep: vLLM silently drops every stat-logger plugin when it scales up",
            "Restart vLLM after it has scaled up. vitals_plugin_detached == 1 shows this within half a minute, while vLLM "
            "generates tokens.",
        )


def _one_server_per_rank(launch: Launch) -> Finding:
    settings = launch.prometheus
    if settings is None or not settings.port or launch.sidecar:
        return ok("--data-parallel-multi-port-external-lb: one API server for each local rank")
    return fail(
        "--data-parallel-multi-port-external-lb: the servers of all local ranks want the same port "
        f"{settings.port}, and only the first gets it",
        "Let all of them send to one sidecar (VITALS_WIRE__SIDECAR). Or set VITALS_PROMETHEUS__PORT=0: then each takes a "
        "free port and names it in its log.",
    )
