"""Keeps the named definitions of a module, and what they refer to, and drops the rest."""

import __future__

import ast
import types
from collections.abc import Iterable, Iterator

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_ANNOTATIONS = ("annotation", "returns")


def compiled(source: str, keep: Iterable[str], filename: str) -> types.CodeType:
    """Compile `shake(source, keep)`, its annotations left unevaluated: they name heavy classes."""
    code: types.CodeType = compile(
        shake(source, keep), filename, "exec", __future__.annotations.compiler_flag, dont_inherit=True
    )
    return code


def shake(source: str, keep: Iterable[str]) -> ast.Module:
    """Reduce `source` to the top-level names in `keep` and their dependencies.

    A name like `Class.method` keeps that method alone of the class. Names the source does not
    define are passed over: releases differ in what they have.
    """
    tree = ast.parse(source)
    names, methods = _split(keep)
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name in methods:
            node.body = [item for item in node.body if isinstance(item, _FUNCTIONS) and item.name in methods[node.name]]
    needed = _closure(tree, names)
    tree.body = [kept for node in tree.body if (kept := _reduced(node, needed)) is not None]
    return tree


def _split(keep: Iterable[str]) -> tuple[set[str], dict[str, set[str]]]:
    """Return the top-level names, and the methods to keep of the classes that are kept in part."""
    names: set[str] = set()
    methods: dict[str, set[str]] = {}
    for path in keep:
        name, _, method = path.partition(".")
        names.add(name)
        if method:
            methods.setdefault(name, set()).add(method)
    return names, methods


def _closure(tree: ast.Module, names: set[str]) -> set[str]:
    """Return `names` and every top-level name reached from them."""
    uses = {defined: _loads(node) for node in tree.body for defined in _defines(node)}
    needed: set[str] = set()
    pending = list(names)
    while pending:
        name = pending.pop()
        if name not in needed:
            needed.add(name)
            pending.extend(uses.get(name, ()))
    return needed


def _loads(node: ast.AST) -> set[str]:
    """Return the names `node` refers to when it runs; annotations do not run (see `compiled`)."""
    if isinstance(node, ast.Name):
        return {node.id}
    parts = (child for name, value in ast.iter_fields(node) if name not in _ANNOTATIONS for child in _nodes(value))
    return set().union(*map(_loads, parts))


def _nodes(value: object) -> list[ast.AST]:
    items = value if isinstance(value, list) else [value]
    return [item for item in items if isinstance(item, ast.AST)]


def _defines(node: ast.stmt) -> Iterator[str]:
    """Yield the names a top-level statement binds."""
    if isinstance(node, (ast.ClassDef, *_FUNCTIONS)):
        yield node.name
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from (_bound(alias) for alias in node.names)
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield node.target.id
    elif isinstance(node, ast.Assign):
        yield from (target.id for target in node.targets if isinstance(target, ast.Name))


def _bound(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def _reduced(node: ast.stmt, needed: set[str]) -> ast.stmt | None:
    """Return `node` as it is still needed, or None."""
    if isinstance(node, ast.ImportFrom) and node.module == "__future__":
        return node
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        node.names = [alias for alias in node.names if _bound(alias) in needed]
        return node if node.names else None
    return node if needed.intersection(_defines(node)) else None
