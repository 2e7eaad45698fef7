"""`values.schema.json`, from the values, what is said beside them, and the models of settings and rules.

Draft 7, the newest that Helm 3.17 knows. What has a default that is a mapping takes no other keys.
"""

import copy
import json
from typing import Any

from helm.generate import rules
from helm.generate.models import alternatives, plain, settings
from helm.generate.values import Value

Schema = dict[str, Any]
KINDS = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
SECRETS = ("otlp.headers",)
"""Settings that may hold a secret, and have no place in a ConfigMap."""
PLACED = ("prometheus.tls_cert", "prometheus.tls_key", "prometheus.tls_client_ca", "otlp.tls_ca", "otlp.tls_cert",
          "otlp.tls_key", "wire.sidecar", "gpu.devices", "otlp.endpoint", "otlp.service_name")  # fmt: skip
"""Settings that the chart sets by values of another form."""


def schema(values: Value) -> str:
    """Return the file."""
    taken = {each.setting for each in _all(values) if each.setting} | set(SECRETS) | set(PLACED)
    made = _schema(values, taken)
    # Helm gives a subchart these, too.
    made["properties"]["global"] = {"type": "object"}
    head = {"$schema": "http://json-schema.org/draft-07/schema#", "title": "Values of vllm-vitals"}
    return json.dumps({**head, **made}, indent=2) + "\n"


def _all(value: Value) -> list[Value]:
    return [value, *(each for inner in value.inner.values() for each in _all(inner))]


def _schema(value: Value, taken: set[str]) -> Schema:
    if value.rules:
        made = rules.schema()
    elif value.setting is not None:
        made = _of_setting(value, taken)
    elif value.inner:
        inner = {name: _schema(each, taken) for name, each in value.inner.items()}
        made = {"type": "object", "properties": inner, "additionalProperties": False}
    else:
        made = {"type": KINDS[type(value.default)]} if value.default is not None else {"type": ["integer", "null"]}
    described = {"description": value.description} if value.description else {}
    return {**described, **made, **value.keywords}


def _of_setting(value: Value, taken: set[str]) -> Schema:
    """Return the schema of a setting; for `extraSettings` that of all that have no value of their own."""
    name = value.setting or ""
    if not name:
        return _without(settings(), {each for each in taken if each})
    made = settings()
    for part in name.split("."):
        if part not in made.get("properties", {}):
            # The model has no such setting: nothing may be set.
            return {"type": "object", "maxProperties": 0}
        made = made["properties"][part]
    made = plain(made) if value.default is not None else alternatives([plain(made), {"type": "null"}])
    made.pop("default", None)
    return {key: each for key, each in made.items() if key not in ("title", "description")}


def _without(whole: Schema, taken: set[str]) -> Schema:
    made = copy.deepcopy(whole)
    for name in taken:
        *above, last = name.split(".")
        inner = made
        for section in above:
            inner = inner["properties"][section]
        inner["properties"].pop(last, None)
    left = {name: each for name, each in made["properties"].items() if each.get("properties") != {}}
    return {**made, "properties": left, "additionalProperties": False}
