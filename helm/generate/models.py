"""The models of vllm-vitals as JSON Schema that Helm's older validators understand."""

from functools import cache
from typing import Any

from vllm_vitals.catalog.slo import OBJECTIVES
from vllm_vitals.config.settings import Settings

Schema = dict[str, Any]
DURATION = {"type": "string", "pattern": r"^[0-9]{1,9}(\.[0-9]{1,9})? ?(ms|s|m|h)?$"}
BOUNDS = {"gt": "exclusiveMinimum", "ge": "minimum", "lt": "exclusiveMaximum", "le": "maximum"}
"""What pydantic calls limits behind a validator of ours, and JSON Schema does not."""
SHARE = {"type": "string", "pattern": r"^[0-9]{1,9}(\.[0-9]{1,9})? ?%?$"}
"""What a model takes besides numbers, which its own schema does not tell."""


@cache
def _settings() -> Schema:
    made = inlined(Settings.model_json_schema())
    slo = made["properties"]["slos"]["items"]["properties"]
    for name in OBJECTIVES:
        slo[name] = alternatives([slo[name], DURATION])
    slo["target"] = alternatives([slo["target"], SHARE])
    return made


def settings() -> Schema:
    """Return the schema of the settings file."""
    return inlined(_settings())


def inlined(schema: Schema) -> Schema:
    """Return a copy without references, titles and defaults; tuples are written as draft 7 has them."""
    return dict(_inlined(schema, schema.get("$defs", {})))


def _inlined(part: Any, definitions: Schema) -> Any:
    if isinstance(part, list):
        return [_inlined(each, definitions) for each in part]
    if not isinstance(part, dict):
        return part
    if "$ref" in part:
        definition = definitions[part["$ref"].rpartition("/")[2]]
        return _inlined({**definition, **{key: each for key, each in part.items() if key != "$ref"}}, definitions)
    made = {
        BOUNDS.get(key, key): {name: _inlined(each, definitions) for name, each in content.items()}
        if key == "properties"
        else _inlined(content, definitions)
        for key, content in part.items()
        if key not in ("$defs", "title", "default", "format", "writeOnly")
    }
    if isinstance(tuple_ := made.pop("prefixItems", None), list):
        made["items"] = tuple_
    return made


def plain(schema: Schema) -> Schema:
    """Return a schema that may be null as one that may not: a value that is left empty is not rendered."""
    choices = [each for each in schema.get("anyOf", []) if each.get("type") != "null"]
    rest = {key: each for key, each in schema.items() if key != "anyOf"}
    return {**rest, **choices[0]} if len(choices) == 1 else dict(schema)


def alternatives(schemas: list[Schema]) -> Schema:
    """Return a schema of any of some."""
    choices = [choice for each in schemas for choice in each.get("anyOf", [each])]
    told = next((each["description"] for each in schemas if "description" in each), None)
    bare = [{key: each for key, each in choice.items() if key != "description"} for choice in choices]
    return {"anyOf": bare} | ({"description": told} if told else {})
