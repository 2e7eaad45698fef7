"""The one place that keeps secrets out of logs, errors and output."""

import re
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator
from contextlib import suppress
from html.entities import html5
from urllib.parse import unquote, unquote_plus

HIDDEN = "***"
MOST_SEARCHED = 4096
"""Characters of a text that are searched; of the rest nothing is shown."""
FRAGMENT = 8
"""Characters in a row that tell a part of a secret from chance."""
ONES = b"\1" * FRAGMENT
LEAST_SECRET = 4
"""Characters from which a whole value may be a secret; `1` is a tenant, and in every other word."""
MOST_SECRET = 16384
"""Characters of a secret that are looked for; no server takes a header as long as that."""
LEVELS = 4
"""How many encodings may lie over one another, the text as it is among them."""
SCHEMES = frozenset(
    {"apikey", "api-key", "api-token", "basic", "bearer", "digest", "key", "negotiate", "splunk", "token"}
)
"""What an `Authorization` begins with, which is no secret."""

SPACES = (*range(0x21), *range(0x7F, 0xA1), 0xAD, 0x1680, *range(0x2000, 0x2010), *range(0x2028, 0x2030), 0x205F,
          *range(0x2060, 0x2070), 0x3000, 0xFEFF)  # fmt: skip
SQUEEZE: dict[int, int | None] = {
    **dict.fromkeys((*SPACES, ord("+")), None),
    0x130: ord("i"),
    0x3A3: 0x3C3,
    0x3C2: 0x3C3,
}
"""Leaves out white space, and `+` which may stand for it; the letters are those whose lower case is no single one."""

PERCENT = re.compile(r"(?:%[0-9A-Fa-f]{2})+")
ENTITY = re.compile(r"&(?:#0{0,8}([0-9]{1,7})|#[xX]0{0,8}([0-9A-Fa-f]{1,6})|([A-Za-z]{2,24}));?")
ESCAPE = re.compile(r"(?:\\u[0-9A-Fa-f]{4})+|\\x[0-9A-Fa-f]{2}|\\[0-7]{3}|\\U[0-9A-Fa-f]{8}|\\[^uUx0-7]", re.DOTALL)
SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,30}://|(?:dns|ipv4|ipv6|unix|unix-abstract|vsock):")
"""Or what gRPC has in its place."""
PEM = "-----BEGIN"
"""What a key or certificate begins with."""
HOST = r"(?:\[[0-9A-Fa-f:.%]*\]|[^\s:@\[\]]*)"
HOST_PORT = re.compile(rf"{HOST}(?::[0-9]{{0,5}})?")
HOST_COLON = re.compile(rf"{HOST}:")
VALUE = re.compile("=|://")
"""What comes before a value or a URL, where only a path is expected."""
MOST_CODE, SURROGATES = 0x10FFFF, range(0xD800, 0xE000)
CONTROLS = {ord("n"): "\n", ord("r"): "\r", ord("t"): "\t", ord("b"): "\b", ord("f"): "\f"}


class Redactor:
    """Hides secrets in texts, in whatever form a peer gives them back, in time that grows with the text alone.

    Found are a secret of `LEAST_SECRET` to `FRAGMENT` characters as a whole, and of a longer one any `FRAGMENT`
    characters in a row: so a secret that is cut off at either end is found too. Letter case and white space do not
    count, and the text may be percent-encoded, escaped as in HTML or JSON, or base64.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        """Take note of secrets; those too short to be any are left out."""
        forms = {form for secret in secrets for form in _forms(secret[:MOST_SECRET])}
        self._short = tuple(sorted({form for form in forms if LEAST_SECRET <= len(form) < FRAGMENT}, key=len))
        self._parts = frozenset(
            form[place : place + FRAGMENT] for form in forms for place in range(len(form) - FRAGMENT + 1)
        )

    def clean(self, text: str, limit: int = MOST_SEARCHED, *, short: bool = True) -> str:
        """Return the beginning of a text without secrets; it is decoded where that shows one.

        `short`: look for those too that are short enough to be in other words by chance.
        """
        shown = plain = text[:limit]
        if not self._parts and not self._short:
            return shown
        for _ in range(LEVELS):
            hidden = self._hide(plain, short=short)
            if hidden != plain:
                shown = hidden  # of all encodings the innermost: a part may be legible further out
            decoded = decode(plain)
            if decoded == plain:
                break
            plain = decoded
        return shown

    def _hide(self, text: str, *, short: bool) -> str:
        squeezed = text.translate(SQUEEZE).lower()
        secret = self._secret(squeezed, short=short)
        if not any(secret):
            return text
        kept = [place for place, letter in enumerate(text) if SQUEEZE.get(ord(letter), 0) is not None]
        pieces, end = [], 0
        last = 0
        while (first := secret.find(1, last)) >= 0:
            last = secret.find(0, first)
            last = len(secret) if last < 0 else last
            pieces += [text[end : kept[first]], HIDDEN]
            end = kept[last - 1] + 1
        return "".join([*pieces, text[end:]])

    def _secret(self, squeezed: str, *, short: bool) -> bytearray:
        """Return a byte for each letter, 1 where it belongs to a secret."""
        parts, found = self._parts, bytearray(len(squeezed))
        for place in range(len(squeezed) - FRAGMENT + 1) if parts else ():
            if squeezed[place : place + FRAGMENT] in parts:
                found[place : place + FRAGMENT] = ONES
        for secret in self._short if short else ():
            place = squeezed.find(secret)
            while place >= 0:
                found[place : place + len(secret)] = ONES[: len(secret)]
                place = squeezed.find(secret, place + len(secret))
        return found


def decode(text: str) -> str:
    """Return a text with percent-encoding and the escapes of HTML and JSON read, one level of each."""
    if "%" in text:
        text = PERCENT.sub(lambda found: unquote(found[0]), text)
    if "&" in text:
        text = ENTITY.sub(_entity, text)
    return ESCAPE.sub(_escape, text) if "\\" in text else text


def of_header(value: str) -> Iterator[str]:
    """Yield what is secret of a header's value: all of it, and each of its words."""
    words = value.split()
    if words and words[0].lower().rstrip(":") in SCHEMES:
        words = words[1:]
    yield " ".join(words)
    yield from words if len(words) > 1 else ()
    for word in words:
        with suppress(ValueError):
            pair = b64decode(word + "=" * (-len(word) % 4), validate=True).decode()
            if ":" in pair and pair.isprintable():  # Basic
                yield from (pair, *pair.split(":", 1))


def of_url(url: str) -> Iterator[str]:
    """Yield what is secret of a URL: user, password, and the values of its query, however badly it is written."""
    rest = url[found.end() :] if (found := SCHEME.match(url)) else url
    proof, at, _ = rest.rpartition("@")
    if at:
        user, _, password = proof.partition(":")
        yield from (proof, user, password, *re.split(r"[/?#@:]", proof))
    else:
        yield _no_port(_until(rest, "/?#")[0])[1]
    for pair in re.split(r"[&;?#]", re.sub(r"\A[^?#]*[?#]?", "", rest)):
        yield pair.partition("=")[2] or pair


def shown_url(url: str) -> str:
    """Return a URL as it may be shown: without user, password, query and fragment.

    A user or password that is not percent-encoded may hold what ends them, so an `@` that comes later is taken for
    their end. Where it may also be a part of the path or the query, nothing but the scheme is shown. What is in the
    place of a port and is none is hidden: of a URL that was cut, it is the password. So is the rest of a path from a
    `=` on, for the `?` before it may be missing.
    """
    found = SCHEME.match(url)
    if not found and "://" in url:
        return HIDDEN  # a URL that is somewhere in a text
    scheme, rest = (found[0], url[found.end() :]) if found else ("", url)
    authority, later = _until(rest, "/?#")
    if "@" in later:
        before, _, rest = rest.rpartition("@")
        if "@" in before or HOST_PORT.fullmatch(authority):
            return f"{scheme}{HIDDEN}"
    else:
        rest = f"{authority.rpartition('@')[2]}{later}"
    authority, later = _until(rest, "/?#")
    host, wrong = _no_port(authority)
    if wrong:
        return f"{scheme}{'' if '@' in url else host}{HIDDEN}"
    path = _until(later, "?#")[0]
    value = VALUE.search(path)
    return f"{scheme}{authority}{path[: value.end()] + HIDDEN if value else path}"


def _no_port(authority: str) -> tuple[str, str]:
    """Return a host, and what is in the place of its port and is none."""
    if HOST_PORT.fullmatch(authority):
        return authority, ""
    host = HOST_COLON.match(authority)
    return (host[0], authority[host.end() :]) if host else ("", authority)


def shown_text(text: str) -> str:
    """Return a text as it may be shown: as a URL where it may be one; of a key its beginning."""
    begin, key, _ = text.partition(PEM)
    if key:
        return f"{shown_text(begin)}{PEM}{HIDDEN}"
    return shown_url(text) if "://" in text or "@" in text else text


def _until(text: str, ends: str) -> tuple[str, str]:
    place = min((place for end in ends if (place := text.find(end)) >= 0), default=len(text))
    return text[:place], text[place:]


def _forms(secret: str) -> Iterator[str]:
    """Yield the squeezed forms of a secret: as it is, decoded, and as base64 that begins at any byte."""
    plain = secret
    for _ in range(LEVELS):
        for each in {plain, unquote_plus(plain), plain.encode(errors="replace").decode("latin-1")}:
            yield from filter(_long, (_squeezed(each), *map(_squeezed, _base64(each))))
        decoded = decode(plain)
        if decoded == plain:
            return
        plain = decoded


def _base64(secret: str) -> Iterator[str]:
    """Yield what a secret looks like in base64, without the letters that what surrounds it takes part in."""
    data = secret.encode(errors="replace")
    for before in range(3):
        text = b64encode(b"\0" * before + data).decode()
        first = -(-before * 4 // 3)
        last = (before + len(data)) * 8 // 6
        if last - first >= FRAGMENT:
            inner = text[first:last]
            yield inner
            yield inner.translate({ord("+"): "-", ord("/"): "_"})


def _squeezed(text: str) -> str:
    return text.translate(SQUEEZE).lower()


def _long(form: str) -> bool:
    return len(form) >= LEAST_SECRET


def _entity(found: "re.Match[str]") -> str:
    decimal, hexadecimal, name = found.groups()
    if name:
        return html5.get(f"{name};", found[0])
    return _letter(int(decimal) if decimal else int(hexadecimal, 16), found[0])


def _escape(found: "re.Match[str]") -> str:
    text = found[0]
    if text.startswith("\\u"):  # two may be the halves of one letter
        halves = b"".join(int(each, 16).to_bytes(2, "big") for each in text.split("\\u")[1:])
        return halves.decode("utf-16-be", errors="replace")
    code = text[2:]
    if text[1] in "xU":
        return _letter(int(code, 16), text)
    if code:
        return chr(int(text[1:], 8))
    return CONTROLS.get(ord(text[1]), text[1])


def _letter(code: int, otherwise: str) -> str:
    return otherwise if code > MOST_CODE or code in SURROGATES else chr(code)
