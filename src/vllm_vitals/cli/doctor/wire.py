"""The check of the way to a collector outside of a serving process: a sidecar, or one of several API servers."""

import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from vllm_vitals._util.directory import OPEN_TO_OTHERS
from vllm_vitals.cli.doctor.finding import Finding, fail, ok, skip
from vllm_vitals.cli.doctor.launch import Launch
from vllm_vitals.deployment.leader_lock import meeting_point

PATIENCE = 2.0
SET_SOCKET = "set VITALS_WIRE__SOCKET to a path in a directory that only this user may write to"


def wire(launch: Launch) -> Iterator[Finding]:
    """Check that steps which leave their process will arrive."""
    settings = launch.wire
    if settings is None:
        yield skip("the settings are wrong (see settings)")
    elif launch.api_servers < 1:
        yield skip("no API server runs here, so no steps leave from here")
    elif settings.sidecar:
        yield _sidecar(settings.sidecar, f"wire.sidecar ({launch.origin('wire', 'sidecar')})")
    elif launch.api_servers > 1:
        yield _meeting((settings.socket or meeting_point()).parent)
    else:
        yield skip("no sidecar is set, and one API server keeps its steps to itself")


def _sidecar(path: Path, what: str) -> Finding:
    start = f"Start `vllm-vitals sidecar --socket {path}`, as the user that vLLM runs as."
    try:
        if finding := _not_ours(path.parent, f"Run vLLM and the sidecar as the same user. {start}", "the sidecar"):
            return finding
        if path.exists() and not path.is_socket():
            return fail(f"{what}: {path} is there, and is no socket", f"Remove it. {start}")
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(PATIENCE)
            probe.connect(str(path))
        owner = path.stat().st_uid
    except OSError as error:
        return _unreached(path, what, start, error)
    if owner != os.geteuid():
        return fail(f"{what}: user {owner} listens at {path}, and this is user {os.geteuid()}", start)
    return ok(f"{what}: a sidecar listens at {path}")


def _unreached(path: Path, what: str, start: str, error: OSError) -> Finding:
    if isinstance(error, FileNotFoundError):
        return fail(f"{what}: there is no {path}: no sidecar was started yet, or it was given another path", start)
    if isinstance(error, ConnectionRefusedError):
        return fail(f"{what}: nobody listens at {path} any more", start)
    if isinstance(error, TimeoutError | BlockingIOError):
        return fail(f"{what}: who listens at {path} takes no connection", f"End it, it hangs. {start}")
    return fail(f"{what}: {path} cannot be reached: {error.strerror or error}", start)


def _meeting(directory: Path) -> Finding:
    """Judge the directory where several API servers meet, without making it."""
    what = f"{directory}, where the API servers meet,"
    fix = f"Correct that, or {SET_SOCKET}."
    try:
        if finding := _not_ours(directory, f"Remove it, or {SET_SOCKET}.", "the API servers"):
            return finding
        if os.access(directory, os.W_OK | os.X_OK):
            return ok(f"{what} can be used")
        return fail(f"{what} cannot be written to", fix)
    except FileNotFoundError:
        if os.access(directory.parent, os.W_OK | os.X_OK):
            return ok(f"{what} will be made")
        return fail(f"{what} cannot be made: {directory.parent} is not there, or this user may not write to it", fix)
    except OSError as error:
        return fail(f"{what} cannot be used: {error.strerror or error}", fix)


def _not_ours(directory: Path, advice: str, who: str) -> Finding | None:
    """Return what keeps a directory from being used, which must be ours alone.

    Raises:
        OSError: when it is not there, or cannot be looked at.
    """
    found = directory.lstat()
    if stat.S_ISLNK(found.st_mode):
        return fail(f"{directory} is a symbolic link, which is not followed", advice)
    if not stat.S_ISDIR(found.st_mode):
        return fail(f"{directory} is no directory", advice)
    if found.st_uid != os.geteuid():
        return fail(f"{directory} belongs to user {found.st_uid}, and this is user {os.geteuid()}", advice)
    if found.st_mode & OPEN_TO_OTHERS:
        mode = f"{stat.S_IMODE(found.st_mode):04o}"
        return fail(
            f"others may write to {directory} (mode {mode}), so {who} will refuse to listen there",
            f"chmod 0700 {directory}, or use a path in a new directory below it, which is made with that mode.",
        )
    return None
