"""HTML put together so that nothing in it can be anything but text unless it was made here."""

from html import escape


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def tag(name: str, *inside: str, **attributes: object) -> Markup:
    """Return an element; what is inside is escaped unless it is `Markup`.

    An attribute's name may end in `_` (`class_`) and has `-` for `_`; one that is `None` or `False` is left out, one
    that is `True` has no value.
    """
    shown = "".join(_attribute(key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items())
    return Markup(f"<{name}{shown}>{joined(*inside)}</{name}>")


def joined(*parts: str) -> Markup:
    """Return one text of many, each escaped unless it is `Markup`."""
    return Markup("".join(part if isinstance(part, Markup) else escape(part) for part in parts))


def _attribute(name: str, value: object) -> str:
    if value is None or value is False:
        return ""
    return f" {name}" if value is True else f' {name}="{escape(str(value))}"'
