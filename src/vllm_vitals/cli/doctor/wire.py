"""The check of the connection to a collector in another process: a sidecar, or one of several API servers."""

import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from vllm_vitals._util.directory import OPEN_TO_OTHERS
from vllm_vitals.cli.doctor.finding import Finding, fail, ok, skip
from vllm_vitals.cli.doctor.launch import Launch
from vllm_vitals.deployment.leader_lock import meeting_point

TIMEOUT_SECONDS = 2.0
SET_SOCKET = "set VITALS_WIRE__SOCKET to a path in a directory that only this user may write to"


def wire(launch: Launch) -> Iterator[Finding]:
    """Check that steps sent to another process will arrive."""
    settings = launch.wire
    if settings is None:
        yield skip("the settings are wrong (see settings)")
    elif launch.api_servers < 1:
        yield skip("no API server runs here, so no steps are sent from here")
    elif settings.sidecar:
        yield _sidecar(settings.sidecar, f"wire.sidecar ({launch.origin('wire', 'sidecar')})")
    elif launch.api_servers > 1:
        yield _meeting((settings.socket or meeting_point()).parent)
    else:
        yield skip("no sidecar is set, and a single API server sends its steps to no other process")


def _sidecar(path: Path, what: str) -> Finding:
    start = f"Start `vllm-vitals sidecar --socket {path}`, as the user that vLLM runs as."
    try:
        if finding := _not_ours(path.parent, f"Run vLLM and the sidecar as the same user. {start}", "the sidecar"):
            return finding
        if path.exists() and not path.is_socket():
            return fail(f"{what}: {path} exists, but is not a socket", f"Remove it. {start}")
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(TIMEOUT_SECONDS)
            probe.connect(str(path))
        owner = path.stat().st_uid
    except OSError as error:
        return _unreached(path, what, start, error)
    if owner != os.geteuid():
        return fail(f"{what}: a process of user {owner} listens at {path}, but this is user {os.geteuid()}", start)
    return ok(f"{what}: a sidecar listens at {path}")


def _unreached(path: Path, what: str, start: str, error: OSError) -> Finding:
    if isinstance(error, FileNotFoundError):
        return fail(f"{what}: {path} does not exist: no sidecar was started yet, or it has another path", start)
    if isinstance(error, ConnectionRefusedError):
        return fail(f"{what}: nothing listens at {path} any more", start)
    if isinstance(error, TimeoutError | BlockingIOError):
        return fail(f"{what}: the process that listens at {path} accepts no connection", f"It hangs: stop it. {start}")
    return fail(f"{what}: {path} cannot be reached: {error.strerror or error}", start)


def _meeting(directory: Path) -> Finding:
    """Check the directory for the socket of several API servers, without creating it."""
    what = f"{directory}, the directory for the socket of the API servers,"
    fix = f"Correct that, or {SET_SOCKET}."
    try:
        if finding := _not_ours(directory, f"Remove it, or {SET_SOCKET}.", "the API servers"):
            return finding
        if os.access(directory, os.W_OK | os.X_OK):
            return ok(f"{what} can be used")
        return fail(f"{what} cannot be written to", fix)
    except FileNotFoundError:
        if os.access(directory.parent, os.W_OK | os.X_OK):
            return ok(f"{what} will be created")
        return fail(
            f"{what} cannot be created: {directory.parent} does not exist, or this user may not write to it", fix
        )
    except OSError as error:
        return fail(f"{what} cannot be used: {error.strerror or error}", fix)


def _not_ours(directory: Path, advice: str, who: str) -> Finding | None:
    """Return why a directory cannot be used: it must belong to this user alone.

    Raises:
        OSError: when it does not exist, or cannot be read.
    """
    found = directory.lstat()
    if stat.S_ISLNK(found.st_mode):
        return fail(f"{directory} is a symbolic link; symbolic links are not followed", advice)
    if not stat.S_ISDIR(found.st_mode):
        return fail(f"{directory} is not a directory", advice)
    if found.st_uid != os.geteuid():
        return fail(f"{directory} belongs to user {found.st_uid}, but this is user {os.geteuid()}", advice)
    if found.st_mode & OPEN_TO_OTHERS:
        mode = f"{stat.S_IMODE(found.st_mode):04o}"
        return fail(
            f"other users may write to {directory} (mode {mode}), so {who} will refuse to listen there",
            f"Run chmod 0700 {directory}, or use a path in a new directory below it, which will be created with that mode.",
        )
    return None
