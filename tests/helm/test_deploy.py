"""`deploy/`: what is there for those without Helm says what the chart says, and what names the chart's parts, names them right."""

import io
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from cloudcoil.models.fluxcd.helm import v2 as flux
from cloudcoil.models.fluxcd.source import v1 as source
from dockerfile_parse import DockerfileParser

from tests.helm.binaries import ROOT, tools
from tests.helm.render import (
    ATTACH,
    SERVE,
    Object,
    containers,
    merged,
    objects,
    of_kind,
    parsed,
    the,
    variables,
    workload,
)
from tests.helm.test_kubernetes import lost
from tests.helm.typescript import problems
from tests.live.bootstrap import prometheus_tools
from tests.rules.fleet import series
from tests.rules.promtool import recorded, run
from vllm_vitals import __version__
from vllm_vitals.config.load import load
from vllm_vitals.mixin.rules import RulesConfig

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DEPLOY = ROOT / "deploy"
HELMS = ("app.kubernetes.io/managed-by", "helm.sh/chart")
"""Labels that say that Helm looks after an object."""
KEDA: dict[str, Any] = {"crds": {"keda": "present"}, "autoscaling": {
    "burnRate": 2, "target": {"name": "qwen"},
    "keda": {"enabled": True, "serverAddress": "http://prometheus-operated.monitoring.svc:9090"},
}}  # fmt: skip
PLAIN: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "kubernetes/attach.yaml": (
        'Monitor and rules beside any vLLM whose pods are labelled vllm-vitals/scrape: "true".',
        merged(ATTACH, {"fullnameOverride": "vllm-vitals", "dashboards": {"enabled": False}}), ("PodMonitor", "PrometheusRule"),
    ),
    "kubernetes/serve.yaml": (
        "A vLLM with the plugin and its sidecar. Replace REGISTRY, and the model.",
        merged(SERVE, {"fullnameOverride": "vllm", "dashboards": {"enabled": False}, "sidecar": {"enabled": True},
                       "image": {"repository": "REGISTRY/vllm-vitals"}, "vllm": {"model": "Qwen/Qwen3-0.6B"},
                       "tests": {"enabled": False}, "prometheusRule": {"enabled": False}}), (),
    ),
    "keda/scaledobject.yaml": ("KEDA scales the Deployment `qwen` on saturation and SLOs.", KEDA, ("ScaledObject",)),
    "hpa/hpa.yaml": (
        "An HPA scales the Deployment `qwen` on saturation and SLOs; prometheus-adapter.yaml gives it the metrics.",
        merged(KEDA, {"autoscaling": {"keda": {"enabled": False}, "hpa": {"enabled": True}}}), ("HorizontalPodAutoscaler",),
    ),
}  # fmt: skip


def bare(value: Any) -> Any:
    """Return an object without what only Helm means something by."""
    if isinstance(value, dict):
        return {key: bare(each) for key, each in value.items() if key not in HELMS}
    return [bare(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", PLAIN)
def test_plain_manifests_are_fresh(name: str, request: pytest.FixtureRequest) -> None:
    about, values, kinds = PLAIN[name]
    found = [bare(each) for each in objects(values) if not kinds or each["kind"] in kinds]
    assert found
    head = f"# {about} For the namespace llm: replace it.\n# Generated from the chart by `nox -s helm -- --rewrite -k plain`; edit that, not this file.\n"
    made = head + "".join(f"---\n{yaml.safe_dump(each, sort_keys=False, width=110)}" for each in found)
    if request.config.getoption("--rewrite"):
        (DEPLOY / name).write_text(made)
    assert (DEPLOY / name).read_text() == made, "stale: nox -s helm -- --rewrite -k plain"


# The injection, in all its forms


def in_chart() -> Object:
    """Return the pod that the chart makes."""
    return dict(workload(objects(SERVE))["spec"]["template"]["spec"])


def check_injection(init: Object, vllm: Object, volumes: list[Object], *, port: bool = True) -> None:
    """Hold an injected pod against the chart's: the same command, variables, paths."""
    wanted_init, wanted = containers(in_chart())["vitals-inject"], containers(in_chart())["vllm"]
    assert init["command"] == wanted_init["command"]
    given, expected = variables(vllm), variables(wanted)
    for name in ("PYTHONPATH", "VITALS_CONFIG"):
        assert given[name] == expected[name]
    paths = {each["mountPath"]: each["name"] for each in vllm["volumeMounts"]}
    for each in wanted["volumeMounts"]:
        if each["name"].startswith("vitals-"):
            assert paths[each["mountPath"]] == each["name"]
    (target,) = [
        each for each in init.get("volumeMounts") or init["extraVolumeMounts"] if each["mountPath"] == "/package"
    ]
    assert target["name"] == paths["/opt/vllm-vitals/package"]
    assert {"vitals-package", "vitals-settings"} <= {each["name"] for each in volumes}
    if port:
        assert {"name": "vitals", "containerPort": 9464} in vllm["ports"]


def kustomized() -> list[Object]:
    directory = Path(__file__).parent / "kustomize"
    done = subprocess.run(
        [tools(4).kubectl, "kustomize", "--load-restrictor=LoadRestrictionsNone", directory],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return parsed(done.stdout)


@pytest.mark.parametrize(
    ("kind", "name"), [("Deployment", "qwen"), ("StatefulSet", "llama"), ("LeaderWorkerSet", "big")]
)
def test_kustomize_component(kind: str, name: str, tmp_path: Path) -> None:
    found = kustomized()
    each = the(found, kind, name)
    template = each["spec"].get("template") or each["spec"]["leaderWorkerTemplate"]["leaderTemplate"]
    spec = template["spec"]
    check_injection(containers(spec)["vitals-inject"], containers(spec)["vllm"], spec["volumes"])
    assert containers(spec)["vitals-inject"]["image"] == "registry.example.com/vllm-vitals:0.1.0"
    assert template["metadata"]["labels"]["vllm-vitals/scrape"] == "true", "what the chart attaches to by default"
    assert containers(spec)["vllm"]["image"] == "vllm/vllm-openai:v0.32.0"
    (config,) = [volume["configMap"]["name"] for volume in spec["volumes"] if volume["name"] == "vitals-settings"]
    file = tmp_path / "vitals.yaml"
    file.write_text(the(found, "ConfigMap", config)["data"]["vitals.yaml"])
    assert load({"VITALS_CONFIG": str(file)}).settings.prometheus.host == "0.0.0.0"  # noqa: S104


def test_kustomize_component_leaves_others_alone() -> None:
    (router,) = [each for each in of_kind(kustomized(), "Deployment") if each["metadata"]["name"] == "router"]
    assert router["spec"]["template"]["spec"] == {"containers": [{"name": "router", "image": "router:1"}]}
    worker = the(kustomized(), "LeaderWorkerSet")["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    assert set(worker["spec"]) == {"containers"}
    kept = containers(the(kustomized(), "Deployment", "qwen")["spec"]["template"]["spec"])["vllm"]
    assert variables(kept)["HF_HOME"] == "/cache"
    assert {"name": "http", "containerPort": 8000} in kept["ports"]


def read(name: str) -> Any:
    return yaml.safe_load((DEPLOY / "inject" / f"{name}.yaml").read_text())


def test_patch_of_production_stack() -> None:
    (engine,) = read("production-stack")["servingEngineSpec"]["modelSpec"]
    vllm = {"env": engine["env"], "volumeMounts": engine["extraVolumeMounts"]}
    check_injection(engine["initContainer"], vllm, engine["extraVolumes"], port=False)


def test_patch_of_llm_d() -> None:
    decode = read("llm-d")["decode"]
    check_injection(decode["initContainers"][0], decode["containers"][0], decode["volumes"])


def test_patch_of_kserve() -> None:
    predictor = read("kserve")["spec"]["predictor"]
    check_injection(predictor["initContainers"][0], predictor["model"], predictor["volumes"])


def test_patch_of_leader_worker_set() -> None:
    spec = read("leader-worker-set")["spec"]["leaderWorkerTemplate"]["leaderTemplate"]["spec"]
    check_injection(spec["initContainers"][0], spec["containers"][0], spec["volumes"])


@pytest.mark.parametrize("name", ["kserve", "llm-d", "production-stack"])
def test_the_chart_is_laid_beside_as_a_patch_says(name: str) -> None:
    """By the command in its comment, as a shell reads it."""
    text = re.sub(r"^# ?", "", (DEPLOY / "inject" / f"{name}.yaml").read_text(), flags=re.MULTILINE)
    (command,) = re.findall(r"helm upgrade --install vitals ./helm/vllm-vitals((?:.*\\\n)*.*)", text)
    words = shlex.split(command.replace("\\\n", " "), comments=True)
    sets = [word for flag, value in pairwise(words) if flag == "--set" for word in ("--set", value)]
    assert len(sets) == len(words)
    assert the(objects(ATTACH, *sets), "PodMonitor")


# Autoscaling


def queries(values: dict[str, Any]) -> Iterator[str]:
    for trigger in the(objects(values), "ScaledObject")["spec"]["triggers"]:
        yield trigger["metadata"]["query"]


def adapted() -> dict[str, str]:
    """Return the queries of prometheus-adapter's metrics, by their names."""
    rules: list[Object] = yaml.safe_load((DEPLOY / "hpa" / "prometheus-adapter.yaml").read_text())["rules"]["custom"]
    return {each["name"]["as"] or each["seriesQuery"].partition("{")[0]: each["metricsQuery"] for each in rules}


def asked_by_the_adapter(query: str) -> str:
    """Return a query of prometheus-adapter's as it asks for the pods of the namespace a."""
    names = {
        "<<.GroupBy>>": "namespace,pod",
        "<<.LabelMatchers>>": 'namespace="a",pod=~".+"',
        "<<.Series>>": "vllm_slo_requests_total",
    }
    for name, value in names.items():
        query = query.replace(name, value)
    return query


def test_prometheus_takes_every_query(tmp_path: Path) -> None:
    asked = [*queries(KEDA), *queries(merged(SERVE, KEDA, {"slos": [{"name": "a", "target": 0.9, "e2e": 1}]}))]
    asked += map(asked_by_the_adapter, adapted().values())
    rules = [{"record": "a:b", "expr": query, "labels": {"place": str(place)}} for place, query in enumerate(asked)]
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "g", "rules": rules}]}))
    done = subprocess.run([prometheus_tools()[1], "check", "rules", file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_adapter_has_what_the_hpa_wants() -> None:
    hpa = yaml.safe_load((DEPLOY / "hpa" / "hpa.yaml").read_text())
    assert {each["pods"]["metric"]["name"] for each in hpa["spec"]["metrics"]} == set(adapted())


def test_the_adapter_has_a_burn_rate_of_a_pod_without_requests(tmp_path: Path) -> None:
    """An HPA that lacks one of its metrics scales nothing down: idle pods would stay."""
    of = {"namespace": "a", "pod": "busy"}, {"namespace": "a", "pod": "idle"}
    given = {
        series("vllm_slo_requests_total", labels, slo="s", outcome=outcome): values
        for labels, values in zip(of, ("0+30x60", "7x60"), strict=True)
        for outcome in ("good", "bad")
    } | {series("vllm_slo_target_ratio", labels, slo="s"): "0.5x60" for labels in of}
    query = asked_by_the_adapter(adapted()["vllm_slo_burn_rate"])
    wanted = {series("", of[0]): 1.0, series("", of[1]): 0.0}  # half of the requests are bad, as the target allows
    assert run([recorded("totals", given, {query: wanted}, "30m")], tmp_path, RulesConfig()) == ""


# Argo CD and Flux


def test_argo_cd() -> None:
    each = yaml.safe_load((DEPLOY / "argocd" / "application.yaml").read_text())
    assert problems("argoproj.io", "ApplicationSpec", each["spec"]) == []
    assert (ROOT / each["spec"]["source"]["path"] / "Chart.yaml").exists()
    assert objects(merged(ATTACH, each["spec"]["source"]["helm"]["valuesObject"]))


def test_flux() -> None:
    repository, release = yaml.safe_load_all((DEPLOY / "flux" / "release.yaml").read_text())
    for each, model in ((repository, source.GitRepository), (release, flux.HelmRelease)):
        assert lost(each, model.model_validate(each).model_dump(by_alias=True, exclude_unset=True, mode="json")) == []
    chart = release["spec"]["chart"]["spec"]
    assert (ROOT / chart["chart"] / "Chart.yaml").exists()
    assert chart["sourceRef"]["name"] == repository["metadata"]["name"]
    assert workload(objects(release["spec"]["values"]))


# The images


@pytest.fixture
def dockerfile() -> DockerfileParser:
    parser = DockerfileParser(fileobj=io.BytesIO((DEPLOY / "docker" / "Dockerfile").read_bytes()))
    assert parser.is_multistage
    return parser


def stages(dockerfile: DockerfileParser) -> dict[str, list[tuple[str, str]]]:
    """Return the instructions of each stage by its name."""
    found: dict[str, list[tuple[str, str]]] = {}
    name = ""
    for each in dockerfile.structure:
        if each["instruction"] == "FROM":
            name = each["value"].split()[-1]
            found[name] = []
        elif name and each["instruction"] != "COMMENT":
            found[name].append((each["instruction"], each["value"]))
    return found


def test_images_are_pinned_and_no_root(dockerfile: DockerfileParser) -> None:
    text = dockerfile.content
    for image in re.findall(r"^ARG \w+_IMAGE=(\S+)$", text, re.MULTILINE):
        assert re.fullmatch(r"[\w./-]+:v?\d+\.\d+\.\d+[\w.-]*", image), f"{image} is not pinned"
    spec = in_chart()
    for name in ("vitals", "serving"):
        user = [value for instruction, value in stages(dockerfile)[name] if instruction == "USER"][-1]
        assert user == f"{spec['securityContext']['runAsUser']}:{spec['securityContext']['runAsGroup']}"
        labels = " ".join(value for instruction, value in stages(dockerfile)[name] if instruction == "LABEL")
        for label in ("title", "licenses", "version", "revision"):
            assert f"org.opencontainers.image.{label}=" in labels
        assert "sbom=" in labels
    assert f"ARG VERSION={__version__}\n" in text
    chart = containers(spec)["vllm"]["image"]
    assert f"ARG VLLM_IMAGE={chart}\n" in text


def test_the_image_holds_what_is_injected(dockerfile: DockerfileParser) -> None:
    source_, _ = containers(in_chart())["vitals-inject"]["command"][2:]
    (run,) = [value for _, value in stages(dockerfile)["build"] if value.startswith("./package.sh")]
    assert run.split()[2] == source_.removesuffix("/.")
    assert ("COPY", "--from=build /opt/vllm-vitals /opt/vllm-vitals") in stages(dockerfile)["vitals"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    ours = set(project["dependencies"])
    spare = {line for line in (DEPLOY / "docker" / "spare.txt").read_text().splitlines() if not line.startswith("#")}
    assert spare <= ours
    # What every vLLM asks for itself, in requirements/common.txt, and what only the command needs, which vLLM does not run.
    assert {re.split(r"[>=;]", each)[0] for each in ours - spare} == {
        "msgspec", "numpy", "prometheus-client", "pydantic", "pyyaml", "rich", "tomli", "typer",
    }  # fmt: skip
    ignored = (ROOT / ".dockerignore").read_text()
    for copied in ("pyproject.toml", "README.md", "LICENSE", "src", "deploy/docker"):
        assert f"!{copied}\n" in ignored


def test_hadolint_finds_nothing() -> None:
    """But that pip installs what it finds: the package's wheel, and of its dependencies the newest."""
    hadolint = Path(sys.executable).with_name("hadolint")
    ignored = ("--ignore=DL3013", "--ignore=DL3042")
    done = subprocess.run(
        [hadolint, *ignored, DEPLOY / "docker" / "Dockerfile"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")
