"""Files of settings as somebody hostile, or a broken disk, would write them."""

import json
from typing import Any

import yaml
from hypothesis import strategies as st

from vllm_vitals.config.settings import Settings

SECRET = "Tr0ub4dor"  # noqa: S105 - it is planted to be looked for
SECRETS: dict[str, Any] = {
    "otlp": {"endpoint": f"https://user:{SECRET}@collector:4318/v1", "headers": {"authorization": f"Bearer {SECRET}"}},
    "native": {"url": f"http://me:{SECRET}/{SECRET}@localhost:8000/metrics?token={SECRET}"},
}
TOKENS = [
    "a", "strict", "otlp", "headers", "queue_size", "slos", "buckets", ": ", "\n", "\n  ", "- ", "{", "}", "[", "]", ",", "&a ", "*a",
    "*b", "!!int ", "!!float ", "!!binary ", "!!timestamp ", "!!set ", "!!omap ", "!!python/object/apply:os.getcwd ", "!x ", "<<", "? ",
    "|\n", ">\n", "'", '"', "\\", "#", "%TAG ! x\n", "---\n", "...\n", "2024-13-45", "1:1:1", "0x", "9" * 200, "~", ".inf", ".nan", "\t",
    "\x00", "\x85", "\u2028", "\ufeff", "=", "[[a]]\n", "'''", '"""', ".", "true", f"Bearer {SECRET}",
]  # fmt: skip

scalars = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.dates() | st.binary(max_size=5) | st.text(max_size=20)
)
keys = st.sampled_from(sorted(Settings.model_fields)) | st.text(max_size=6)
inner = (
    st.sampled_from(
        ["enabled", "port", "timeout", "tls_cert", "url", "devices", "interval", "peak_flops", "name", "ttft"]
    )
    | keys
)
values = st.recursive(
    scalars, lambda each: st.lists(each, max_size=4) | st.dictionaries(inner, each, max_size=4), max_leaves=12
)
trees = st.dictionaries(keys, values | st.dictionaries(inner, values, max_size=4), max_size=5)
json_texts = st.one_of(
    values.map(lambda value: json.dumps(value, default=str)),
    st.lists(st.sampled_from(["{", "}", "[", "]", ",", ":", '"', "\\u", "1", "NaN", "null", '"a":', "9" * 5000]), max_size=12).map("".join),
    st.integers(1, 3000).map(lambda depth: "[" * depth),
    st.text(max_size=20).map(lambda text: "{" + text),
)  # fmt: skip


def _toml(tree: dict[str, Any]) -> str:
    """Return TOML: every value as JSON, which it mostly is."""
    return "\n".join(f"{json.dumps(key)} = {json.dumps(value, default=str)}" for key, value in tree.items())


def _aliased(tree: dict[str, Any]) -> str:
    """Return YAML that names the first value again and again."""
    text = yaml.safe_dump({"first": tree}, sort_keys=False).replace("first:", "first: &first", 1)
    return f"{text}{''.join(f'{key}: *first{chr(10)}' for key in tree if str(key).isidentifier())}"


@st.composite
def damaged(draw: st.DrawFn, texts: st.SearchStrategy[str]) -> bytes:
    """Return a text that may be cut, and may have one bit that is not what it was."""
    content = bytearray(draw(texts).encode("utf-8", "surrogatepass"))
    how = draw(st.sampled_from(["whole", "cut", "bit", "doubled"]))
    place = draw(st.integers(0, max(len(content) - 1, 0)))
    if how == "cut":
        del content[place:]
    elif how == "bit" and content:
        content[place] ^= 1 << draw(st.integers(0, 7))
    elif how == "doubled":
        content += content[place:]
    return bytes(content)


tokens = st.lists(st.sampled_from(TOKENS), max_size=40).map("".join)
yaml_texts = trees.map(lambda tree: yaml.safe_dump(tree, allow_unicode=True)) | trees.map(_aliased) | tokens
toml_texts = trees.map(_toml) | tokens
files = st.one_of(
    st.tuples(st.just(".yaml"), damaged(yaml_texts)),
    st.tuples(st.just(".toml"), damaged(toml_texts)),
    st.tuples(st.sampled_from([".yaml", ".yml", ".toml"]), st.binary(max_size=200)),
)
"""The ending of a file's name, and what it holds."""
with_secrets = st.one_of(
    st.tuples(st.just(".yaml"), damaged(st.just(yaml.safe_dump(SECRETS) + "queue_size: -1\nnative: {interval: x}\n"))),
    st.tuples(
        st.just(".yaml"), damaged(st.just(yaml.safe_dump({**SECRETS, "queue_size": []}, default_flow_style=True)))
    ),
    st.tuples(
        st.just(".toml"), damaged(st.just("queue_size = -1\n" + _toml(SECRETS["otlp"]).join(["[otlp]\n", "\n"])))
    ),
)
