"""The sources use only what other packages publish: no name with a leading underscore, by no way round."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[3] / "src"
PACKAGES = ("google", "grpc", "opentelemetry", "requests")
INSIDES = ("__code__", "__closure__", "__globals__", "__new__")
"""Ways to take a class or a function of somebody else's apart."""


def private(name: str) -> bool:
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


def foreign(module: str | None) -> bool:
    return (module or "").partition(".")[0] in PACKAGES


def root(node: ast.expr) -> str:
    """Return the name that a chain of attributes and calls begins with."""
    while isinstance(node, ast.Attribute | ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def names(tree: ast.AST) -> set[str]:
    """Return the names that stand for something of another package: imported, or assigned from such a name."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {(each.asname or each.name).partition(".")[0] for each in node.names if foreign(each.name)}
        elif isinstance(node, ast.ImportFrom) and foreign(node.module):
            found |= {each.asname or each.name for each in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and root(node.value) in found:
            found |= {each.attr if isinstance(each, ast.Attribute) else ast.unparse(each) for each in node.targets}
    return found


def violations(source: str) -> Iterator[str]:
    """Yield each use of a private name of another package."""
    tree = ast.parse(source)
    known = names(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = node.module if isinstance(node, ast.ImportFrom) else None
            for each in node.names:
                path = f"{module}.{each.name}" if module else each.name
                if foreign(path) and any(map(private, path.split("."))):
                    yield path
        elif isinstance(node, ast.Attribute):
            holder = node.value.attr if isinstance(node.value, ast.Attribute) else root(node.value)
            if (private(node.attr) or node.attr in INSIDES) and (holder in known or root(node.value) in known):
                yield ast.unparse(node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from [node.value] if foreign(node.value) and any(map(private, node.value.split("."))) else []


def test_the_sources_use_no_private_name_of_another_package() -> None:
    found = {
        (str(path.relative_to(SOURCES)), each)
        for path in SOURCES.rglob("*.py")
        for each in violations(path.read_text(encoding="utf-8"))
    }
    assert found == set()


@pytest.mark.parametrize(
    ("source", "use"),
    [
        ("from opentelemetry.context import _KEY", "opentelemetry.context._KEY"),
        ("from opentelemetry.sdk._internal import x", "opentelemetry.sdk._internal.x"),
        ("import grpc._channel", "grpc._channel"),
        ("import grpc\ngrpc.aio._base", "grpc.aio._base"),
        ("import grpc as g\nclass A:\n  def f(self):\n    self.c = g.channel()\n    self.c._x", "self.c._x"),
        ("from requests import Session as S\ns = S()\ns._adapters", "s._adapters"),
        ("from grpc import Channel\nChannel.__new__(Channel)", "Channel.__new__"),
        ("from opentelemetry.x import Exporter\nExporter.f.__code__", "Exporter.f.__code__"),
        ("log('opentelemetry.exporter._internal.encoder')", "opentelemetry.exporter._internal.encoder"),
    ],
)
def test_a_private_use_is_found(source: str, use: str) -> None:
    assert list(violations(source)) == [use]


def test_public_names_and_names_of_our_own_are_allowed() -> None:
    source = (
        "import grpc\nfrom ours import _mine\nclass A:\n  def f(self):\n    self._x = grpc.channel()\n    self._x.y()\n"
    )
    assert list(violations(source + "_mine._own")) == []
