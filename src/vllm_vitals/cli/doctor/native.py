"""Checks of vLLM's own metrics: shown beside ours, or fetched from their URL."""

import ssl
from collections.abc import Iterator
from pathlib import Path

from vllm_vitals._util.http import DownloadError
from vllm_vitals._util.trust import Trust
from vllm_vitals.catalog import CATALOG
from vllm_vitals.cli.doctor.finding import Finding, fail, ok, skip, warn
from vllm_vitals.cli.doctor.launch import Launch
from vllm_vitals.config.settings import NativeSettings
from vllm_vitals.vllm_page.mapping import mapped, relevant
from vllm_vitals.vllm_page.parse import PageError, fetch

MULTIPROCESS = "PROMETHEUS_MULTIPROC_DIR"
USUAL = "vLLM shows its metrics at http://HOST:8000/metrics"


def together(launch: Launch) -> Iterator[Finding]:
    """Check that our metrics and vLLM's own can be shown together where that is asked for."""
    settings = launch.prometheus
    if settings is None or not settings.enabled or not (settings.join_native or settings.include_native):
        yield skip("our metrics and vLLM's own are served apart")
        return
    name = "join_native" if settings.join_native else "include_native"
    variable = f"VITALS_PROMETHEUS__{name.upper()}"
    several = launch.api_servers > 1
    if launch.sidecar:
        yield warn(
            f"prometheus.{name} has no effect with a sidecar: that has none of vLLM's own metrics",
            f"Scrape vLLM's /metrics too where you need them, and unset {variable}.",
        )
    elif settings.join_native and (several or MULTIPROCESS in launch.environ):
        why = "with several API servers" if several else f"with {MULTIPROCESS} set"
        yield warn(
            f"prometheus.join_native has no effect {why}: vLLM's /metrics then shows files, never our collector",
            f"Scrape our own port, and unset {variable}{'' if several else f' or {MULTIPROCESS}'}.",
        )
    elif directory := launch.environ.get(MULTIPROCESS):
        yield _from_files(directory)
    else:
        yield ok(f"prometheus.{name} will work")


def _from_files(directory: str) -> Finding:
    """Judge the directory that all processes of vLLM write their own metrics to, and others may as well."""
    if files := len(list(Path(directory).glob("*.db"))):
        return warn(
            f"prometheus.include_native adds up all that {MULTIPROCESS}={directory} holds, and {files} files of another vLLM, "
            "or of a run before, are there already",
            f"Unset {MULTIPROCESS}: vLLM makes a directory for itself. Else give each vLLM an empty one: what shares a "
            "directory, such as two containers, is added up, and may write over each other's files.",
        )
    return ok(f"prometheus.include_native will work, by the files in {MULTIPROCESS}={directory}")


def url(launch: Launch) -> Iterator[Finding]:
    """Check that the page of vLLM's metrics can be had where it has to be fetched, by fetching it once."""
    settings = launch.native
    if settings is None:
        yield skip("the settings are wrong (see settings)")
    elif settings.url is None:
        yield skip("native.url is not set: nothing is fetched from vLLM's /metrics")
    else:
        yield _fetched(settings, settings.url, f"native.url ({launch.origin('native', 'url')})")


def _fetched(settings: NativeSettings, address: str, what: str) -> Finding:
    try:
        families = fetch(address, settings.timeout, trust=Trust(settings.tls_ca, settings.tls_cert, settings.tls_key))
    except DownloadError as error:
        if isinstance(error.__cause__, ConnectionRefusedError):
            return warn(
                f"{what}: nothing listens there: {error}",
                "That is as it should be while vLLM is not up: look again once it is. Else correct VITALS_NATIVE__URL; "
                f"{USUAL}.",
            )
        if isinstance(error.__cause__, ssl.SSLCertVerificationError):
            return fail(
                f"{what} cannot be fetched: {error}",
                "Set VITALS_NATIVE__TLS_CA to the CA that signed its certificate, and name the host as that does.",
            )
        return fail(f"{what} cannot be fetched: {error}", f"Correct VITALS_NATIVE__URL; {USUAL}.")
    except PageError as error:
        return fail(f"{what} is no page of metrics: {error}", f"Correct VITALS_NATIVE__URL; {USUAL}.")
    found = {metric for metric, _ in mapped(relevant(families))}
    if not found:
        return fail(
            f"{what} answers, with {len(families)} metrics of which none is vLLM's",
            f"Correct VITALS_NATIVE__URL; {USUAL}, unless it runs with --disable-log-stats.",
        )
    return ok(f"{what} answers: it gives {len(found)} of our {len(CATALOG)} metrics")
