"""`values.yaml` with its comments: each value, what is said of it, and what more its schema shall have."""

from dataclasses import dataclass, field
from typing import Any

import yaml


@dataclass
class Value:
    """One value, or the mapping that holds others."""

    path: tuple[str, ...]
    default: Any
    description: str = ""
    shown: str = ""
    """What stands in place of the default in tables."""
    keywords: dict[str, Any] = field(default_factory=dict)
    """JSON Schema keywords."""
    setting: str | None = None
    """The setting that it becomes, `""` for all of them."""
    rules: bool = False
    """Whether it configures the rules."""
    inner: dict[str, "Value"] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Return its path as one writes it."""
        return ".".join(self.path)


def read(text: str) -> Value:
    """Return the tree of values of a `values.yaml`."""
    root = yaml.compose(text, yaml.SafeLoader)
    if not isinstance(root, yaml.MappingNode):
        raise TypeError("values.yaml must hold a mapping")
    return _value((), root, text.splitlines(), 0)


def _value(path: tuple[str, ...], node: yaml.Node, lines: list[str], line: int) -> Value:
    made = Value(path, yaml.safe_load(yaml.serialize(node)))
    _describe(made, _comments(lines, line))
    if isinstance(node, yaml.MappingNode) and not made.keywords and made.setting is None:
        for key, content in node.value:
            inner = _value((*path, key.value), content, lines, key.start_mark.line)
            made.inner[key.value] = inner
    return made


def _comments(lines: list[str], line: int) -> list[str]:
    """Return the comment lines right above a line, without their marks."""
    first = line
    while first > 0 and lines[first - 1].lstrip().startswith("#"):
        first -= 1
    return [each.lstrip().removeprefix("#").removeprefix(" ") for each in lines[first:line]]


def _describe(value: Value, comments: list[str]) -> None:
    for comment in comments:
        word, _, rest = comment.partition(" ")
        match word:
            case "@schema":
                value.keywords |= yaml.safe_load(rest)
            case "@rules":
                value.rules = True
            case "@setting":
                value.setting = rest.strip()
            case "@default":
                value.shown = rest.removeprefix("-- ")
            case "--":
                value.description = rest
            case _ if value.description:
                value.description += f" {comment.strip()}"
