"""The checks of `vllm-vitals doctor`, in the order of the report."""

from collections.abc import Callable, Iterator

from vllm_vitals.cli.doctor import endpoint, gpu, installation, native, otlp, serve, wire
from vllm_vitals.cli.doctor.finding import Finding
from vllm_vitals.cli.doctor.launch import Launch, settings

Check = Callable[[Launch], Iterator[Finding]]

CHECKS: dict[str, Check] = {
    "python": installation.python,
    "vllm": installation.vllm,
    "plugin": installation.registered,
    "vllm-plugins": installation.allowed,
    "frontend": installation.frontend,
    "settings": settings,
    "serve": serve.expectations,
    "port": endpoint.port,
    "reach": endpoint.reach,
    "tls": endpoint.tls,
    "wire": wire.wire,
    "native": native.together,
    "native-url": native.url,
    "gpu": gpu.devices,
    "otlp": otlp.receiver,
}
