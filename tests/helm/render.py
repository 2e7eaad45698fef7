"""What a Helm makes of the chart: objects, notes, or the words in which it refuses.

What was rendered once is not rendered again, and not parsed again, in this process.
"""

import json
import pickle
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.helm.binaries import ROOT, tools

CHART = ROOT / "helm" / "vllm-vitals"
SETS = sorted((CHART / "ci").glob("*-values.yaml"))
MAJORS = (3, 4)
RELEASE, NAMESPACE = "demo", "llm"
IMAGE = "registry.example.com/vllm-vitals"
BUILT_IN = ("v1", "apps/v1", "policy/v1", "networking.k8s.io/v1", "autoscaling/v2")
SERVE: dict[str, Any] = {
    "mode": "serve",
    "crds": {"prometheusOperator": "present"},
    "image": {"repository": IMAGE},
    "vllm": {"model": "m"},
}
ATTACH: dict[str, Any] = {"crds": {"prometheusOperator": "present"}}

Object = dict[str, Any]


class Refused(Exception):  # noqa: N818 - what it says is no error of ours
    """Helm did not render; its words."""


def merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Return mappings laid over each other, the last on top."""
    made: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            inner = made.get(key)
            made[key] = merged(inner, value) if isinstance(inner, dict) and isinstance(value, Mapping) else value
    return made


def helm(major: int, *words: str, values: Mapping[str, Any] | Path | None = None) -> str:
    """Return what a command says; raise `Refused` when it fails."""
    given = () if values is None else ("-f", str(values) if isinstance(values, Path) else "-")
    text = None if isinstance(values, Path) or values is None else yaml.safe_dump(dict(values))
    done = subprocess.run(
        [tools(major).helm, *words, *given], input=text, capture_output=True, text=True, check=False, timeout=250
    )
    if done.returncode:
        raise Refused(done.stdout + done.stderr)
    return done.stdout


def text(values: Mapping[str, Any] | Path, *words: str, major: int = 4) -> str:
    """Return the manifests of the chart with some values."""
    given = str(values) if isinstance(values, Path) else json.dumps(values, sort_keys=True)
    manifests, refused = _rendered(given, words, major, is_path=isinstance(values, Path))
    if refused:
        raise Refused(refused)
    return manifests


@cache
def _rendered(values: str, words: tuple[str, ...], major: int, *, is_path: bool) -> tuple[str, str]:
    """Return manifests, or else in which words Helm refuses."""
    given = Path(values) if is_path else json.loads(values)
    try:
        return helm(major, "template", RELEASE, str(CHART), "--namespace", NAMESPACE, *words, values=given), ""
    except Refused as refused:
        return "", str(refused)


def objects(values: Mapping[str, Any] | Path, *words: str, major: int = 4) -> list[Object]:
    """Return the objects of the chart with some values."""
    return parsed(text(values, *words, major=major))


def parsed(manifests: str) -> list[Object]:
    """Return the objects of a text, each time new ones."""
    return list(pickle.loads(_parsed(manifests)))  # noqa: S301 - by ourselves


@cache
def _parsed(manifests: str) -> bytes:
    return pickle.dumps([each for each in yaml.load_all(manifests, yaml.CSafeLoader) if each])


def of_set(path: Path, major: int = 4) -> str:
    """Return the manifests of one of the chart's sets of values."""
    return text(path, major=major)


def notes(values: Mapping[str, Any], *words: str) -> str:
    """Return NOTES.txt, which a Helm without a cluster renders and does not show: here as part of an object."""
    with tempfile.TemporaryDirectory() as directory:
        chart = shutil.copytree(CHART, Path(directory) / "vllm-vitals")
        said = (chart / "templates" / "NOTES.txt").read_text()
        wrapped = (
            '{{- define "notes" -}}\n'
            + said
            + '{{- end }}\nkind: Notes\nmetadata: {name: notes}\nsaid: {{ include "notes" . | toJson }}\n'
        )
        (chart / "templates" / "notes.yaml").write_text(wrapped)
        manifests = helm(4, "template", RELEASE, str(chart), "--namespace", NAMESPACE, *words, values=values)
    return str(the(parsed(manifests), "Notes")["said"])


def of_kind(found: list[Object], kind: str, name: str = "") -> list[Object]:
    """Return the objects of a kind, of a name if one is given."""
    return [each for each in found if each["kind"] == kind and name in ("", each["metadata"]["name"])]


def the(found: list[Object], kind: str, name: str = "") -> Object:
    """Return the only object of a kind."""
    (only,) = of_kind(found, kind, name)
    return only


def workload(found: list[Object], component: str = "vllm") -> Object:
    """Return the Deployment or StatefulSet of a component."""
    (only,) = (
        each
        for each in found
        if each["kind"] in ("Deployment", "StatefulSet")
        and each["metadata"]["labels"]["app.kubernetes.io/component"] == component
    )
    return only


def template(found: list[Object], component: str = "vllm") -> Object:
    """Return what the pods of a component are made from."""
    return dict(workload(found, component)["spec"]["template"])


def pods(found: list[Object]) -> Iterator[tuple[str, Object, Object]]:
    """Yield the name, the metadata and the spec of whatever makes a pod."""
    for each in found:
        if each["kind"] in ("Deployment", "StatefulSet"):
            template = each["spec"]["template"]
            yield each["metadata"]["name"], template["metadata"], template["spec"]
        elif each["kind"] == "Pod":
            yield each["metadata"]["name"], each["metadata"], each["spec"]


def containers(spec: Object) -> dict[str, Object]:
    """Return all containers of a pod by their names."""
    return {each["name"]: each for each in (*spec.get("initContainers", []), *spec["containers"])}


def variables(container: Object) -> dict[str, Any]:
    """Return the variables of a container: text, or where they come from."""
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in container.get("env", [])}


def ports(spec: Object) -> dict[str, int]:
    """Return the named ports of a pod."""
    return {
        port["name"]: port["containerPort"]
        for container in containers(spec).values()
        for port in container.get("ports", [])
    }


def selects(selector: Object, labels: Mapping[str, str]) -> bool:
    """Tell whether a label selector selects what has some labels."""
    exact = all(labels.get(key) == value for key, value in (selector.get("matchLabels") or {}).items())
    return exact and all(_meets(each, labels) for each in selector.get("matchExpressions") or [])


def _meets(expression: Object, labels: Mapping[str, str]) -> bool:
    key, values = expression["key"], expression.get("values", [])
    match expression["operator"]:
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case _:
            return key not in labels
