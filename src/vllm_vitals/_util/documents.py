"""YAML and TOML that somebody else wrote: checked while it is read, so that no file takes long or much memory.

What is said of a document never quotes it: a line that is wrong may hold a password.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from yaml.constructor import SafeConstructor
from yaml.resolver import Resolver

from vllm_vitals._util.bounds import clean, name_or_hidden
from vllm_vitals._util.files import read

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MOST_VALUES = 10_000
"""Keys and values of a document; those behind an alias count each time that they are named."""
DEEPEST = 32
"""Lists and mappings within each other."""
LONGEST_SCALAR = 128
"""Characters of a number or a date; a longer one is text."""
MOST_BRACKETS = 2000
"""Of TOML, whose parser calls itself for each that is opened."""
MOST_DOTS = 32
"""In one key of TOML, whose parser takes time that grows with the square of their number."""
MOST_PROBLEMS = 10
LONGEST_PROBLEM = 300
STANDARD = "tag:yaml.org,2002:"
MERGE = f"{STANDARD}merge"
"""The tag of `<<`, with which a mapping may take over several others."""
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
QUOTED = re.compile(r"'[^'<][^']+'")
"""What the parsers quote of a document; not the name of a token, such as `'<block end>'`."""


class DocumentError(ValueError):
    """A document cannot be read; `lines` say why, each fit to be shown."""

    def __init__(self, *lines: str) -> None:
        self.lines = [clean(line, LONGEST_PROBLEM) for line in lines]
        super().__init__("\n".join(self.lines))


class RepeatedKeyError(DocumentError):
    """A mapping has a key more than once: only its last value would count."""


def load(path: Path, *, unique: bool = True) -> Any:
    """Return what a file holds: TOML where its name ends so, YAML (and so JSON) else.

    `unique`: YAML may have no key twice in a mapping.

    Raises:
        DocumentError: when it cannot be read; `OSError` never.
    """
    kind = "TOML" if path.suffix == ".toml" else "YAML"
    try:
        text = read(path).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DocumentError(f"cannot be read: {error}") from None
    try:
        return toml(text) if kind == "TOML" else yaml_(text, unique=unique)
    except RepeatedKeyError:
        raise
    except DocumentError as error:
        raise DocumentError(*(f"is not valid {kind}: {line}" for line in error.lines)) from None
    except RecursionError:
        raise DocumentError(f"is not valid {kind}: it is nested too deep") from None
    except Exception as error:  # noqa: BLE001 - the parsers raise whatever their code runs into
        raise DocumentError(f"is not valid {kind}: {_parsers_words(error)}") from None


def _parsers_words(error: Exception) -> str:
    """Return what a parser says, without what it quotes of the document."""
    mark = getattr(error, "problem_mark", None)
    if mark is not None:
        problem = QUOTED.sub("'...'", clean(getattr(error, "problem", None) or "", LONGEST_PROBLEM))
        return f"line {mark.line + 1}, column {mark.column + 1}: {problem}"
    if isinstance(error, yaml.reader.ReaderError):
        return f"it has a character that YAML does not allow, at position {error.position}"
    if isinstance(error, tomllib.TOMLDecodeError):
        return QUOTED.sub("'...'", clean(str(error), LONGEST_PROBLEM))
    return "a number in it is too long" if isinstance(error, ValueError) else type(error).__name__


def toml(text: str) -> dict[str, Any]:
    """Return what TOML says; raise `DocumentError`, or what its parser raises."""
    if text.count("[") + text.count("{") > MOST_BRACKETS:
        raise DocumentError(f"it has more than {MOST_BRACKETS} opening brackets")
    if text.count("=") + text.count(",") > MOST_VALUES:
        raise DocumentError(f"it has more than {MOST_VALUES} values")
    for number, line in enumerate(text.split("\n"), 1):
        many = line.count(".") > MOST_DOTS and not line.lstrip().startswith("#")
        if many and any(part.count(".") > MOST_DOTS for part in re.split(r"[=,\[\]{}]", line)):
            raise DocumentError(f"line {number} has more than {MOST_DOTS} dots in one key or value")
    return tomllib.loads(text)


def yaml_(text: str, loader: Any = LOADER, *, unique: bool = True) -> Any:
    """Return what YAML says, `None` when it says nothing; raise `DocumentError`, or what its parser raises."""
    root = _Composer().compose(yaml.parse(text, Loader=loader))
    if root is None:
        return None
    if unique and (twice := list(_twice(root, (), set()))):
        more = [f"and {len(twice) - MOST_PROBLEMS} more"] if len(twice) > MOST_PROBLEMS else []
        raise RepeatedKeyError(*twice[:MOST_PROBLEMS], *more)
    return _Constructor().construct_document(root)


class _Composer:
    """Makes nodes of events; no deeper and no more than is allowed, with all that aliases stand for."""

    def __init__(self) -> None:
        self._resolver = Resolver()
        self._open: list[Any] = []
        """The collections that the parser is in."""
        self._anchors: dict[str, Any] = {}
        self._sizes: dict[int, int] = {}
        """By the id of a node: how many values it stands for. Nodes that are open are not in here."""
        self._first: list[int] = []
        """How many values there were before each open collection."""
        self._count = 0

    def compose(self, events: Iterator[Any]) -> Any:
        root: Any = None
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent) and root is not None:
                raise _at(event, "a second document begins; there may be one")
            if isinstance(event, yaml.CollectionEndEvent):
                node = self._open.pop()
                self._sizes[id(node)] = self._count - self._first.pop()
            elif isinstance(event, yaml.NodeEvent):
                node = self._node(event)
                root = node if root is None else root
        return root

    def _node(self, event: Any) -> Any:
        if isinstance(event, yaml.AliasEvent):
            node = self._anchors.get(event.anchor or "")
            if node is None:
                raise _at(event, "an alias has no anchor before it")
            if id(node) not in self._sizes:
                raise _at(event, "an alias leads back to what it is in")
            self._add(self._sizes[id(node)], event)
        else:
            self._add(1, event)
            node = self._made(event)
            if event.anchor is not None:
                self._anchors[event.anchor] = node
        self._place(node)
        if isinstance(event, yaml.CollectionStartEvent):
            if len(self._open) >= DEEPEST:
                raise _at(event, f"it is nested deeper than {DEEPEST} levels")
            self._open.append(node)
            self._first.append(self._count - 1)
        return node

    def _add(self, values: int, event: Any) -> None:
        self._count += values
        if self._count > MOST_VALUES:
            raise _at(event, f"it has more than {MOST_VALUES} values, with those that aliases stand for")

    def _made(self, event: Any) -> Any:
        mark: Any = event.start_mark
        tag: Any = event.tag if event.tag not in (None, "!") else None
        if isinstance(event, yaml.ScalarEvent):
            implicit = event.implicit if len(event.value) <= LONGEST_SCALAR else (False, True)
            resolved = self._resolver.resolve(yaml.ScalarNode, event.value, implicit)  # type: ignore[no-untyped-call]
            node = yaml.ScalarNode(tag or resolved, event.value, mark, None)
            self._sizes[id(node)] = 1
            return node
        kind, usual = (
            (yaml.SequenceNode, "seq") if isinstance(event, yaml.SequenceStartEvent) else (yaml.MappingNode, "map")
        )
        return kind(tag or STANDARD + usual, [], mark, None)

    def _place(self, node: Any) -> None:
        """Put a node into the collection that is open; a mapping gets its keys and values in turn."""
        if not self._open:
            return
        owner = self._open[-1]
        if isinstance(owner, yaml.SequenceNode):
            owner.value.append(node)
        elif owner.value and owner.value[-1][1] is None:
            owner.value[-1] = (owner.value[-1][0], node)
        else:
            owner.value.append((node, None))


class _Constructor(SafeConstructor):
    """Makes values of nodes, and says of what it cannot make only where that is."""

    def construct_object(self, node: Any, deep: bool = False) -> Any:  # noqa: FBT001, FBT002 - PyYAML's signature
        if not node.tag.startswith(STANDARD):
            raise _at(node, "a tag that is not allowed")
        kind = clean(node.tag.removeprefix(STANDARD), 20)
        if isinstance(node, yaml.ScalarNode) and kind != "str" and len(node.value) > LONGEST_SCALAR:
            raise _at(node, f"a value of type {kind} may have {LONGEST_SCALAR} characters")
        try:
            return super().construct_object(node, deep=deep)
        except DocumentError:
            raise
        except yaml.MarkedYAMLError as error:
            raise DocumentError(_parsers_words(error)) from None
        except Exception:  # noqa: BLE001 - `!!int ""` is an IndexError, a date that does not exist a ValueError
            raise _at(node, f"a value that is not a valid {kind}") from None


def _at(place: Any, problem: str) -> DocumentError:
    return DocumentError(f"line {place.start_mark.line + 1}: {problem}")


def _twice(node: Any, path: tuple[str, ...], seen: set[int]) -> Iterator[str]:
    """Yield a line for each key that a mapping of YAML has more than once: only its last value would count."""
    if id(node) in seen or not isinstance(node, yaml.CollectionNode):
        return
    seen.add(id(node))
    first: dict[tuple[str, str], int] = {}
    for place, each in enumerate(node.value):
        key, value = each if isinstance(node, yaml.MappingNode) else (None, each)
        inner = (*path, name_or_hidden(key.value) if isinstance(key, yaml.ScalarNode) else str(place))
        if isinstance(key, yaml.ScalarNode) and key.tag != MERGE:
            name, line = (key.tag, key.value), key.start_mark.line + 1
            if name in first:
                yield f"{'.'.join(inner)} is given on line {first[name]} and again on line {line}; a key may be given once"
            first.setdefault(name, line)
        yield from _twice(value, inner, seen)
