"""Headers as gRPC has them."""

from base64 import b64decode

BINARY = "-bin"
"""The end of the name of a header that holds bytes; their text is base64."""


def binary(name: str, value: str) -> bytes:
    """Return the bytes of a header of that kind; raise `ValueError` when its text, which is not shown, is no base64."""
    try:
        return b64decode(value.rstrip("=") + "=" * (-len(value.rstrip("=")) % 4), validate=True)
    except ValueError as error:
        raise ValueError(f"the header {name!r} must be written in base64, for its name ends with {BINARY}") from error
