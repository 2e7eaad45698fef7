"""The settings that the chart renders are settings of the product, and every value ends up where it belongs."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from helm.generate.values import read
from tests.helm.render import (
    CHART,
    SERVE,
    Object,
    containers,
    merged,
    objects,
    of_set,
    parsed,
    pods,
    the,
    variables,
    workload,
)
from vllm_vitals.config.load import Loaded, load
from vllm_vitals.config.settings import Settings

FILES = {
    "/etc/vllm-vitals-tls/tls.crt", "/etc/vllm-vitals-tls/tls.key", "/etc/vllm-vitals-client-ca/ca.crt",
    "/etc/vllm-vitals-otlp-ca/ca.crt", "/etc/vllm-vitals-otlp/tls.crt", "/etc/vllm-vitals-otlp/tls.key",
}  # fmt: skip
"""What Secrets put into a pod."""


def settings_file(found: list[Object]) -> dict[str, Any]:
    """Return what the settings file says."""
    (config,) = (each for each in found if each["metadata"]["name"].endswith("-settings"))
    return dict(yaml.safe_load(config["data"]["vitals.yaml"]))


def environment(found: list[Object], container: Object, home: Path) -> dict[str, str]:
    """Return a container's variables with its files in a directory, and `secret` for each secret."""
    file = home / "vitals.yaml"
    file.write_text(yaml.safe_dump(settings_file(found)))
    made = {}
    for name, value in variables(container).items():
        if isinstance(value, dict):
            made[name] = "name=secret" if name.endswith("HEADERS") else "secret"
        elif value in FILES:
            secret = home / value.replace("/", "_")
            secret.write_text("PEM")
            made[name] = str(secret)
        else:
            made[name] = str(file) if name == "VITALS_CONFIG" else value
    return {name: value for name, value in made.items() if name.startswith(("VITALS_", "OTEL_"))}


def read_by(found: list[Object], name: str, home: Path) -> Loaded:
    """Return the settings that a container of vLLM's pod has."""
    container = containers(workload(found)["spec"]["template"]["spec"])[name]
    loaded = load(environment(found, container, home))
    assert not loaded.warnings
    return loaded


def test_the_product_takes_them(values: Path, rendered: list[Object], tmp_path: Path) -> None:
    if yaml.safe_load(values.read_text()).get("mode") != "serve":
        return
    for name, container in containers(workload(rendered)["spec"]["template"]["spec"]).items():
        if "VITALS_CONFIG" in variables(container):
            read_by(rendered, name, tmp_path)


def test_attach_renders_them_only_when_asked() -> None:
    assert not [each for each in objects({}) if each["metadata"]["name"].endswith("-settings")]
    found = objects({"attach": {"configMap": True}, "extraSettings": {"stale_after": 5}})
    assert Settings.model_validate(settings_file(found)).stale_after == 5


@pytest.mark.parametrize(
    ("values", "setting", "wanted"),
    [
        ({"exporters": {"prometheus": {"enabled": False}, "otlp": {"enabled": True, "endpoint": "http://c:4318"}},
          "podMonitor": {"enabled": False}}, "prometheus.enabled", False),
        ({}, "prometheus.host", "0.0.0.0"),  # noqa: S104
        ({"exporters": {"prometheus": {"host": "::"}}}, "prometheus.host", "::"),
        ({"exporters": {"prometheus": {"port": 9999}}}, "prometheus.port", 9999),
        ({"exporters": {"prometheus": {"includeNative": True}}}, "prometheus.include_native", True),
        ({"exporters": {"prometheus": {"joinNative": True}}}, "prometheus.join_native", True),
        ({}, "otlp.enabled", False),
        ({"exporters": {"otlp": {"enabled": True, "endpoint": "https://c"}}}, "otlp.endpoint", "https://c"),
        ({"exporters": {"otlp": {"enabled": True}}, "otelCollector": {"enabled": True}}, "otlp.endpoint",
         "http://demo-vllm-vitals-otel.llm.svc:4318"),
        ({"exporters": {"otlp": {"enabled": True, "protocol": "grpc"}}, "otelCollector": {"enabled": True}},
         "otlp.endpoint", "http://demo-vllm-vitals-otel.llm.svc:4317"),
        ({"exporters": {"otlp": {"enabled": True}}, "otelCollector": {"enabled": True, "kind": "operator"}},
         "otlp.endpoint", "http://demo-vllm-vitals-otel-collector.llm.svc:4318"),
        *(({"exporters": {"otlp": {"enabled": True, "endpoint": "http://c:4318", value: given}}}, f"otlp.{name}", given)
          for value, name, given in [
              ("protocol", "protocol", "grpc"), ("compression", "compression", "none"), ("timeout", "timeout", 3),
              ("interval", "interval", 7.5), ("temporality", "temporality", "delta"),
              ("histograms", "histograms", "exponential"), ("includeNative", "include_native", True),
              ("serviceName", "service_name", "chat"), ("resource", "resource", {"team": "a"}),
          ]),
        ({"exporters": {"otlp": {"enabled": True, "endpoint": "c:4317", "protocol": "grpc", "tls": {"insecure": True}}}},
         "otlp.insecure", True),
        ({"gpu": {"enabled": False}}, "gpu.enabled", False),
        ({"gpu": {"interval": 2.5}}, "gpu.interval", 2.5),
        ({"gpu": {"devices": "0,1"}}, "gpu.devices", "0,1"),
        ({"sidecar": {"enabled": True}}, "wire.sidecar", Path("/run/vllm-vitals/wire/vitals.sock")),
        ({}, "wire.sidecar", None),
        ({"extraSettings": {"wire": {"buffer": 2**30}}}, "wire.buffer", 2**30),
        ({"extraSettings": {"gen_ai": {"enabled": False}}}, "gen_ai.enabled", False),
        ({"extraSettings": {"strict": True}}, "strict", True),
        ({"extraSettings": {"prometheus": {"retry_interval": 9}}}, "prometheus.retry_interval", 9),
    ],
)  # fmt: skip
def test_a_value_becomes_its_setting(values: dict[str, Any], setting: str, wanted: Any) -> None:
    settings: Any = Settings.model_validate(settings_file(objects(merged(SERVE, values))))
    for name in setting.split("."):
        settings = getattr(settings, name)
    assert settings == wanted


def test_every_setting_beside_a_value_is_one_of_the_product() -> None:
    names = []

    def look(value: Any) -> None:
        names.extend([value.setting] if value.setting else [])
        for each in value.inner.values():
            look(each)

    look(read((CHART / "values.yaml").read_text()))
    for name in names:
        kind: Any = Settings
        for part in name.split("."):
            assert part in kind.model_fields, name
            kind = kind.model_fields[part].annotation
    assert len(names) > 15


def test_defaults_are_the_products() -> None:
    """BackgroundCall from where it listens, what the chart renders without being asked is what there is without it."""
    settings = Settings.model_validate(settings_file(objects(SERVE)))
    ours = settings.model_dump()
    default = Settings().model_dump()
    ours["prometheus"]["host"] = default["prometheus"]["host"]
    default["otlp"]["enabled"] = False  # without an endpoint that is the same
    assert ours == default


def test_slos_are_judged_as_they_are_written() -> None:
    given = [
        {"name": "chat", "target": "99%", "ttft": "500ms", "tpot": 0.05, "prompt_tokens": [None, 4000]},
        {"name": "long", "target": 0.95, "e2e": "1.5m", "errors": "ignore", "finish_reasons": ["stop"]},
    ]
    chat, long = Settings.model_validate(settings_file(objects(merged(SERVE, {"slos": given})))).slos
    assert (chat.target, chat.ttft, chat.tpot, chat.prompt_tokens) == (0.99, 0.5, 0.05, (None, 4000))
    assert (long.target, long.e2e, long.errors, long.finish_reasons) == (0.95, 90, "ignore", ["stop"])


SECRETS = merged(SERVE, {
    "exporters": {
        "prometheus": {"tls": {"enabled": True, "secretName": "t", "clientCASecret": "u"}},
        "otlp": {"enabled": True, "endpoint": "https://c", "headersSecret": {"name": "h"},
                 "tls": {"caSecret": "v", "clientSecret": "w"}},
    },
    "podMonitor": {"tlsConfig": {"insecureSkipVerify": True}},
})  # fmt: skip


@pytest.mark.parametrize("sidecar", [False, True])
def test_secrets_are_where_exports_are(sidecar: bool, tmp_path: Path) -> None:  # noqa: FBT001
    found = objects(merged(SECRETS, {"sidecar": {"enabled": sidecar}}))
    exporting, other = ("vitals", "vllm") if sidecar else ("vllm", "vitals-inject")
    settings = read_by(found, exporting, tmp_path).settings
    assert settings.prometheus.tls_cert
    assert settings.prometheus.tls_client_ca
    assert settings.otlp.tls_ca
    assert settings.otlp.tls_cert
    assert settings.otlp.headers["name"].get_secret_value() == "secret"
    spec = workload(found)["spec"]["template"]["spec"]
    mounted = {each["mountPath"]: each["name"] for each in containers(spec)[exporting]["volumeMounts"]}
    for file in FILES:
        volume = next(each for each in spec["volumes"] if each["name"] == mounted[str(Path(file).parent)])
        assert volume["secret"]["secretName"] in "tuvw"
    left = containers(spec)[other]
    assert not set(mounted) & {"/etc/vllm-vitals-tls"} & {each["mountPath"] for each in left["volumeMounts"]}
    assert not [name for name in variables(left) if "TLS" in name or "HEADERS" in name]


def test_nothing_secret_is_in_a_config_map(values: Path) -> None:
    """Secrets are named, never held: no object but a reference has a value for a header, a token or a key."""
    for each in parsed(of_set(values)):
        assert each["kind"] != "Secret"
        if each["kind"] == "ConfigMap":
            assert "headers" not in yaml.safe_dump(each["data"].get("vitals.yaml", ""))
    for _, _, spec in pods(parsed(of_set(values))):
        for container in containers(spec).values():
            for name, value in variables(container).items():
                if name.endswith(("HEADERS", "TOKEN", "AUTHORIZATION")):
                    assert set(value) == {"secretKeyRef"}


def test_hugging_face_token() -> None:
    found = objects(merged(SERVE, {"vllm": {"huggingface": {"tokenSecret": {"name": "hf", "key": "k"}}}}))
    vllm = containers(workload(found)["spec"]["template"]["spec"])["vllm"]
    assert variables(vllm)["HF_TOKEN"] == {"secretKeyRef": {"name": "hf", "key": "k"}}
    assert "HF_TOKEN" not in variables(containers(workload(objects(SERVE))["spec"]["template"]["spec"])["vllm"])


def test_new_settings_make_new_pods() -> None:
    def checksum(values: dict[str, Any]) -> str:
        template = workload(objects(merged(SERVE, values)))["spec"]["template"]
        return str(template["metadata"]["annotations"]["checksum/settings"])

    assert checksum({}) == checksum({})
    assert checksum({}) != checksum({"gpu": {"interval": 2}})


def test_the_helm_test_has_the_settings_that_vllm_has() -> None:
    found = objects(SERVE)
    (name,) = (each["name"] for each in the(found, "Pod")["spec"]["volumes"][1:2])
    volume = next(each for each in the(found, "Pod")["spec"]["volumes"] if each["name"] == name)
    assert volume["configMap"]["name"] == "demo-vllm-vitals-settings"
    assert variables(the(found, "Pod")["spec"]["containers"][0])["VITALS_CONFIG"] == "/etc/vllm-vitals/vitals.yaml"
