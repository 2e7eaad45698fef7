"""The allowed values of a setting in words, from its JSON schema."""

import json
from collections.abc import Mapping
from typing import Any

from vllm_vitals._util.directory import LONGEST_PATH
from vllm_vitals.cli.output import number

Schema = Mapping[str, Any]
WORDS = {
    "boolean": "true or false",
    "integer": "a whole number",
    "number": "a number",
    "string": "text",
    "object": "JSON",
    "array": "a JSON list",
}


def default(value: Any) -> str:
    """Return a setting's default as the text of a variable, or `not set` if it has none."""
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return str(value).lower()
    value = getattr(value, "value", value)  # an enum's
    if isinstance(value, float):
        return number(value)
    return json.dumps(value) if isinstance(value, dict | list | tuple) else str(value)


def allowed(schema: Schema, definitions: Mapping[str, Schema]) -> str:
    """Return the allowed values of a schema as a phrase."""
    if "$ref" in schema:
        return allowed(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    if schema.get("format") == "unix-socket":
        return f"an absolute path of at most {LONGEST_PATH} bytes"
    if "anyOf" in schema:
        choices = (allowed(each, definitions) for each in schema["anyOf"] if each.get("type") != "null")
        return " or ".join(dict.fromkeys(choices))
    if "enum" in schema:
        return ", ".join(map(str, schema["enum"]))
    if "const" in schema:
        return str(schema["const"])
    return _simple(schema, definitions)


def _simple(schema: Schema, definitions: Mapping[str, Schema]) -> str:
    kind = schema.get("type", "")
    if schema.get("format") in ("path", "file-path"):
        return "the path of a readable file"
    if kind in LIMITS:
        return WORDS[kind] + LIMITS[kind](schema)
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"JSON: name to {allowed(schema['additionalProperties'], definitions)}"
    if kind == "array" and "items" in schema:
        each = allowed(schema["items"], definitions)
        return "a list of numbers" if each == WORDS["number"] else f"a list, each {each}"
    return WORDS.get(kind, "JSON")


def _range(schema: Schema) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        return f" from {low:g} to {high:.15g}"
    over, under = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    words = {"at least": low, "at most": high, "over": over, "under": under}
    parts = [f"{word} {bound:.15g}" for word, bound in words.items() if bound is not None]
    return f", {' and '.join(parts)}" if parts else ""


def _length(schema: Schema) -> str:
    low, high = schema.get("minLength"), schema.get("maxLength")
    if high is not None:
        return f" of {low or 0} to {high} characters"
    return ", not empty" if low else ""


LIMITS = {"integer": _range, "number": _range, "string": _length}
