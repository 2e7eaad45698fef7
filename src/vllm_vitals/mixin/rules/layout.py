"""PromQL over several lines, so that a person can read a long rule."""

import re
from collections.abc import Iterator

WIDTH = 100
"""Characters that a line should not exceed."""
INDENT = "  "
LOOSEST_FIRST = (("or",), ("and", "unless"), ("==", "!=", "<=", ">=", "<", ">"), ("+", "-"), ("*", "/"))
"""PromQL's binary operators as far as they are used here, those that bind least first."""
SUBQUERY = re.compile(r"\[[^]]*\]$")
PAIRS = {"(": ")", "{": "}", "[": "]"}


def laid_out(text: str, indent: str = "") -> str:
    """Return an expression whose lines are no longer than `WIDTH` where they can be broken."""
    if len(indent + text) <= WIDTH:
        return indent + text
    for operators in LOOSEST_FIRST:
        first, *rest = _split(text, operators)
        if rest:
            return "\n".join([laid_out(first, indent), *(_operand(piece, indent) for piece in rest)])
    return _opened(text, indent)


def _operand(piece: str, indent: str) -> str:
    """Return an operator with its matching and what follows it."""
    outer = next((place for place, char in enumerate(piece) if char == "(" and _is_operand(piece, place)), None)
    if len(indent + piece) <= WIDTH or outer is None:
        return indent + piece
    return _opened(piece, indent, outer)


def _is_operand(piece: str, place: int) -> bool:
    """Tell whether a parenthesis begins what an operator is applied to, and not the labels that it is matched on."""
    return not piece[:place].rstrip().endswith((" on", " group_left", " by")) and piece.endswith(")")


def _opened(text: str, indent: str, place: int | None = None) -> str:
    """Return a call or what is in parentheses with its inside on lines of its own."""
    whole = SUBQUERY.sub("", text)
    start = place if place is not None else _last_group(whole)
    if start is None or not whole.endswith(")"):
        return indent + text
    inside = ",\n".join(laid_out(part, indent + INDENT) for part in _arguments(whole[start + 1 : -1]))
    return f"{indent}{whole[: start + 1]}\n{inside}\n{indent}){text[len(whole) :]}"


def _last_group(text: str) -> int | None:
    """Return where the parenthesis opens that closes at the end of a text."""
    return next(
        (place for place, depth, char in _outside(text) if char == "(" and depth == 0 and _closes(text, place)), None
    )


def _closes(text: str, place: int) -> bool:
    depth = 0
    for at, _, char in _outside(text[place:]):
        depth += (char == "(") - (char == ")")
        if not depth:
            return place + at == len(text) - 1
    return False


def _split(text: str, operators: tuple[str, ...]) -> list[str]:
    """Return a text cut before each of some binary operators that stand outside of all parentheses."""
    places = [
        place + 1
        for place, depth, char in _outside(text)
        if char == " " and depth == 0 and any(text.startswith(f"{each} ", place + 1) for each in operators)
    ]
    return [text[start:end].rstrip() for start, end in zip([0, *places], [*places, len(text)], strict=True)]


def _arguments(text: str) -> list[str]:
    places = [place + 1 for place, depth, char in _outside(text) if char == "," and depth == 0]
    return [text[start:end].strip(" ,") for start, end in zip([0, *places], [*places, len(text)], strict=True)]


def _outside(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield each character that is in no string, with its place and how deep in parentheses it is."""
    depth, quoted, escaped = 0, False, False
    for place, char in enumerate(text):
        if quoted:
            quoted, escaped = escaped or char != '"', char == "\\" and not escaped
            continue
        quoted = char == '"'
        depth -= char in PAIRS.values()
        yield place, depth, char
        depth += char in PAIRS
