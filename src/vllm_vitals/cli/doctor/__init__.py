"""The checks of `vllm-vitals doctor`, in the order in which they are told."""

from collections.abc import Callable, Iterator

from vllm_vitals.cli.doctor import endpoint, gpu, installation, native, otlp, plugins, serve, tls, wire
from vllm_vitals.cli.doctor.finding import Finding
from vllm_vitals.cli.doctor.launch import Launch, settings

Check = Callable[[Launch], Iterator[Finding]]

CHECKS: dict[str, Check] = {
    "python": installation.python,
    "vllm": installation.vllm,
    "plugin": plugins.registered,
    "vllm-plugins": plugins.allowed,
    "frontend": plugins.frontend,
    "settings": settings,
    "serve": serve.expectations,
    "port": endpoint.port,
    "reach": endpoint.reach,
    "tls": tls.tls,
    "wire": wire.wire,
    "native": native.together,
    "native-url": native.url,
    "gpu": gpu.devices,
    "otlp": otlp.receiver,
}
