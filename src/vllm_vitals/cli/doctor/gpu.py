"""The check of the GPUs: whether a driver can be asked, which devices it shows, and which of them will be sampled."""

import os
import re
import time
from collections.abc import Iterator, Sequence

from vllm_vitals.cli.doctor.finding import Finding, ok, skip, warn
from vllm_vitals.cli.doctor.installed import module_file
from vllm_vitals.cli.doctor.launch import Launch
from vllm_vitals.gpu import amd_source
from vllm_vitals.gpu.choice import EVERY, VENDORS, Choice
from vllm_vitals.gpu.processes import Family
from vllm_vitals.gpu.sampler import SOURCES
from vllm_vitals.gpu.source import DownError, LostError, NoDriverError, Source
from vllm_vitals.gpu.visible import AMD, NVIDIA, Listed

REPAIR = {
    NVIDIA: "nvidia-smi has to work here, as this user. A container needs the GPUs (--gpus, or NVIDIA_VISIBLE_DEVICES) with "
    "the capability `utility` (NVIDIA_DRIVER_CAPABILITIES).",
    AMD: "amd-smi has to work here, as this user. A container needs --device=/dev/kfd --device=/dev/dri.",
}
VARIABLES = {
    NVIDIA: ("CUDA_VISIBLE_DEVICES",),
    AMD: ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
}
GROUPS = "Let the user be in the groups that own it and /dev/dri/renderD*, mostly render and video."


def devices(launch: Launch) -> Iterator[Finding]:
    """Check what the sampler will see."""
    settings = launch.gpu
    if settings is None:
        yield skip("the settings are wrong (see settings)")
    elif not settings.enabled:
        yield skip(f"gpu.enabled is off ({launch.origin('gpu', 'enabled')}): the GPUs are not sampled")
    elif launch.sidecar:
        yield skip(
            launch.by_sidecar("samples the GPUs"),
            "Run this command where the sidecar runs, without VITALS_WIRE__SIDECAR, to see what it will see.",
        )
    elif launch.api_servers < 1:
        yield skip(
            "no API server runs here, so nothing samples the GPUs of this node",
            "`vllm-vitals sidecar` does, with VITALS_GPU__DEVICES=all.",
        )
    else:
        yield from _vendors(launch, settings.devices)


def _vendors(launch: Launch, wanted: str | None) -> Iterator[Finding]:
    choice = Choice(wanted, launch.environ)
    vendors = VENDORS if wanted == EVERY else _built_for()
    absent: list[str] = []
    for vendor in vendors:
        source = SOURCES[vendor](Family())
        try:
            listed = source.open()
            yield from _shown(launch, source, listed, choice)
        except NoDriverError as error:
            absent.append(f"{vendor}: {error}")
        except DownError as error:
            yield warn(f"{vendor}: the driver is there, but its GPUs cannot be read: {error}", REPAIR[vendor])
        finally:
            source.close()
        if vendor == AMD:
            yield from _permission()
    if choice.trouble():
        yield warn(choice.trouble(), "Correct VITALS_GPU__DEVICES, or unset it.")
    if len(absent) == len(vendors):
        yield skip(
            f"no GPU driver is here, so there will be no hw.* metrics ({'; '.join(absent)})",
            "Nothing to do on a machine without GPUs. Else look whether the driver is loaded, and a container has it.",
        )


def _shown(launch: Launch, source: Source, listed: Sequence[Listed], choice: Choice) -> Iterator[Finding]:
    """Judge what a driver shows, and what of it is chosen."""
    vendor, count = source.vendor, sum(len(gpu.parts) or 1 for gpu in listed)
    if not listed:
        yield warn(f"{vendor}: the driver shows no GPU to this user", REPAIR[vendor])
        return
    chosen = choice(vendor, listed)
    if not chosen and launch.gpu and launch.gpu.devices is None:
        names = [name for name in VARIABLES[vendor] if name in launch.environ]
        said = ", ".join(f"{name}={launch.environ[name]!r}" for name in names)
        yield warn(
            f"{vendor}: of {count} GPUs none will be sampled, by {said or 'what the driver shows'}",
            f"Correct {', '.join(names) or 'that'}, or name the devices in VITALS_GPU__DEVICES.",
        )
    answers = [_answer(source, identity) for identity in chosen if identity]
    if good := [name for name, trouble in answers if not trouble]:
        yield ok(f"{vendor}: {len(good)} of {count} will be sampled: {', '.join(good)}")
    silent = [f"{name}: {trouble}" for name, trouble in answers if trouble]
    silent += [gpu.trouble for gpu in listed if not gpu.id and "" in chosen]
    if silent:
        yield warn(f"{vendor}: GPUs that do not answer: {'; '.join(silent)}", REPAIR[vendor])


def _answer(source: Source, identity: str) -> tuple[str, str]:
    """Return what a device is called, and why it cannot be read."""
    try:
        device = source.device(identity)
        name = f"{device.gpu.name or 'GPU'} {identity}"
        device.read(time.monotonic())
    except LostError as error:
        return identity, str(error)
    return name, ""


def _permission() -> Iterator[Finding]:
    """Look whether this user may use AMD's driver: its numbers can be had without, but vLLM cannot work."""
    gate = amd_source.DRIVER[0]
    if gate.exists() and not os.access(gate, os.R_OK | os.W_OK):
        yield warn(f"{AMD}: user {os.geteuid()} may not use {gate}, so vLLM will find no GPU", GROUPS)


def _built_for() -> tuple[str, ...]:
    """Return whose GPUs the PyTorch that is installed can work on, without importing it; all if that is not clear."""
    init = module_file("torch")
    try:
        text = (init.parent / "version.py").read_text(encoding="utf-8") if init else ""
    except OSError:
        text = ""
    built = {name: value != "None" for name, value in re.findall(r"^(cuda|hip)\b[^=\n]*=\s*(\S+)", text, re.MULTILINE)}
    if built.get("hip"):
        return (AMD,)
    return (NVIDIA,) if built.get("cuda") else VENDORS
