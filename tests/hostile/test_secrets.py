"""Secrets in every form that a peer may give back: none is told, whole or in part, and nothing else is lost."""

import json
import logging
import string
import time
from collections.abc import Callable
from unittest.mock import patch
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.hostile.receiver import FORMS, cut, listening, told
from tests.unit.builders import examples
from tests.unit.otlp import Pusher
from vllm_vitals._util import log as logs
from vllm_vitals._util.redact import HIDDEN, LEAST_SECRET, MOST_SEARCHED, Redactor, of_header, of_url, shown_url
from vllm_vitals.cli.doctor import CHECKS
from vllm_vitals.cli.doctor import command as doctor

ODD = "/?#@:&=%+;'\"\\<>!$*()[]{}|^~`., "
letters = string.ascii_letters + string.digits + ODD
secrets = st.text(letters, min_size=12, max_size=60).filter(
    lambda text: len(set(text.strip())) > 6 and text == text.strip()
)
words = st.text(string.ascii_letters + string.digits, min_size=10, max_size=40)
passages = st.sampled_from(["", "token ", "<p>", '{"error": "', "no such key: ", "%", "&", "\\", "a" * 5000])
forms = st.sampled_from(FORMS)


@examples(300)
@given(secret=secrets, form=forms, before=passages, after=passages)
@example("0123456789abcdef/?x", FORMS[0], "", "")
def test_a_secret_is_hidden_in_every_form(secret: str, form: Callable[[str], str], before: str, after: str) -> None:
    shown = Redactor([secret]).clean(f"{before}{form(secret)}{after}")
    assert not told(secret, shown), shown
    assert len(shown) <= MOST_SEARCHED
    if len(before) < MOST_SEARCHED:
        assert HIDDEN in shown


@examples(300)
@given(secret=st.text(string.ascii_letters + string.digits, min_size=60, max_size=3000), form=forms, ends=st.tuples(st.integers(0), st.integers(0)))  # fmt: skip
def test_a_secret_that_is_cut_off_is_hidden(secret: str, form: Callable[[str], str], ends: tuple[int, int]) -> None:
    """A form is cut as a text, so an escape may be cut in its middle."""
    shown = Redactor([secret]).clean(f"bad token {cut(form(secret), *ends)}")
    assert not told(secret, shown), shown
    assert shown.startswith("bad tok")


@examples(100)
@given(text=st.text(max_size=400), secret=words)
def test_a_text_without_a_secret_stays_as_it_is(text: str, secret: str) -> None:
    if not told(secret, text):
        assert Redactor([secret]).clean(text) == text


def test_what_is_too_short_for_a_secret_hides_nothing() -> None:
    for length in range(LEAST_SECRET):
        assert Redactor(["1" * length]).clean("1 of 11111") == "1 of 11111"
    assert Redactor(["1" * LEAST_SECRET]).clean("1 of 11111") == f"1 of {HIDDEN}1"
    assert Redactor(["pass"]).clean("passing by", short=False) == "passing by"


@pytest.mark.parametrize("text", ["a", "%61", "&#97;", "\\u0061", "\\", "&", "%25", "%", " ", "ab", "\\u00", "&#x"])
def test_the_time_grows_with_the_text_alone(text: str) -> None:
    """In processor time of this thread, of which eight times the text takes about eight times as much."""
    redactor = Redactor(["a" * 1500, "ab" * 700])

    def seconds(length: int) -> float:
        whole, begun = text * length, time.thread_time()
        redactor.clean(whole, len(whole))
        return time.thread_time() - begun

    few = min(seconds(4000) for _ in range(5))
    assert min(seconds(32000) for _ in range(3)) < 40 * max(few, 1e-3)


@examples(300)
@given(
    user=words, password=secrets, host=st.sampled_from(["host", "host:4318", "[::1]:4318", "a.example:1"]), key=words
)
def test_a_url_is_shown_without_its_secrets(user: str, password: str, host: str, key: str) -> None:
    """Percent-encoded or not: `S3cr/etPass` ends the host of a URL for whoever reads it from the left."""
    for proof in (password, quote(password, safe="")):
        url = f"https://{user}:{proof}@{host}/v1/metrics?api_key={key}#{key}"
        shown = shown_url(url)
        for secret in (user, password, proof, key):
            assert not told(secret, shown), shown
        assert shown == "https://***" or shown.startswith(f"https://{host}")
        redactor = Redactor(of_url(url))
        for secret in (proof, password, key):
            assert not told(secret, redactor.clean(f"cannot reach {secret} at {url}"))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://user:S3cr/etPass@host:4318", "https://host:4318"),
        ("https://user:S3cr?etPass@host:4318/v1", "https://host:4318/v1"),
        ("https://user:S3cr#etPass@host:4318", "https://host:4318"),
        ("https://user:S3cr@etPass@host:4318", "https://host:4318"),
        ("https://user:123/456@host", "https://***"),
        ("https://host/v1?to=a@b&key=c", "https://***"),
        ("https://host/v1/metrics?key=c", "https://host/v1/metrics"),
        ("http://[::1]:4318/v1", "http://[::1]:4318/v1"),
        ("user:S3cret@host:4317", "host:4317"),
        ("host:4317", "host:4317"),
        ("http://user:S3cret", "http://user:***"),
        ("http://user:S3cret/v1?a=b", "http://user:***"),
        ("user:S3cret", "user:***"),
        ("dns:host:4317", "dns:host:4317"),
        ("unix:run/a.sock", "unix:run/a.sock"),
        ("unix:///run/a.sock", "unix:///run/a.sock"),
        ("dns:///a:1", "dns:///a:1"),
        ("http://host:80/metrics", "http://host:80/metrics"),
        ("http://[::1]/a:b", "http://[::1]/a:b"),
        ("http://host/a:b", "http://host/a:b"),
        ("http://me:pass@host:80/a?b=c#d", "http://host:80/a"),
        ("http://me:pa/s?s#w@rd@host", "http://***"),
        ("http://me:pass", "http://me:***"),
        ("http://me:12/pass:word", "http://me:12/pass:word"),
        ("http://me:pa/ss:word", "http://me:***"),
        ("http://[::1]:pass", "http://[::1]:***"),
        ("me:pass", "me:***"),
        ("http://me pass", "http://***"),
        ("http://host/metrics/token=pass", "http://host/metrics/token=***"),
        ("http://host/http://me:pass", "http://host/http://***"),
        ("a=http://me:pass", "***"),
        ('{"a": "http://host", "b": "http://me:pass"', "***"),
        ("", ""),
    ],
)
def test_how_urls_are_shown(url: str, shown: str) -> None:
    assert shown_url(url) == shown


@examples(60)
@given(token=secrets, user=words, password=words)
def test_of_a_header_each_part_is_secret(token: str, user: str, password: str) -> None:
    from base64 import b64encode

    for scheme in ("Bearer ", "bearer  ", "Basic ", "ApiKey ", "", "Api-Token "):
        redactor = Redactor(of_header(f"{scheme}{token}"))
        assert not told(token, redactor.clean(f"you sent {token}"))
        assert "you sent" in redactor.clean(f"you sent {scheme}{token}")
    pair = b64encode(f"{user}:{password}".encode()).decode()
    redactor = Redactor(of_header(f"Basic {pair}"))
    for secret in (user, password, pair):
        assert not told(secret, redactor.clean(f"you are {secret}"))


# --- In what we log and print


@examples(60)
@given(secret=secrets, form=forms)
def test_no_line_of_ours_tells_a_secret(secret: str, form: Callable[[str], str]) -> None:
    """Also in a traceback, and in what somebody forgot to redact."""
    pusher = Pusher("http://127.0.0.1:9", headers={"authorization": f"Bearer {secret}"})
    with listening() as lines:
        logs.LOGGER.info("sent %s", form(secret))
        logs.LOGGER.warning("failed", exc_info=ValueError(form(secret)))
        logs.LOGGER.log(logging.ERROR, "%d of these", 3)
    assert lines[0].startswith("vllm-vitals: sent ")
    assert "ValueError: " in lines[1]
    assert lines[2] == "vllm-vitals: 3 of these"
    assert not told(secret, "\n".join(lines)), lines
    pusher.close()


def test_a_line_that_cannot_be_written_tells_nothing() -> None:
    pusher = Pusher("http://127.0.0.1:9", headers={"authorization": "Bearer 0123456789abcdef"})
    with listening() as lines:
        logs.LOGGER.info("%d", "0123456789abcdef")
    assert lines == ["vllm-vitals: a line could not be written: TypeError"]
    pusher.close()


@examples(40)
@given(token=words, password=secrets, key=words, wrong=st.booleans(), in_json=st.booleans())
def test_doctor_tells_no_secret(token: str, password: str, key: str, *, wrong: bool, in_json: bool) -> None:
    """Whether the settings are right or wrong; and the receiver is not there."""
    proof = quote(password, safe="")
    environ = {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": f"http://user:{proof}@127.0.0.1:9/v1/metrics?api_key={key}"}
    if in_json:
        environ["VITALS_OTLP__HEADERS"] = json.dumps({"authorization": f"Bearer {token}"})
    else:
        environ["OTEL_EXPORTER_OTLP_HEADERS"] = f"authorization=Bearer%20{token}"
    if wrong:
        environ |= {"VITALS_OTLP__TIMEOUT": token, "VITALS_OTLP__PROTOCOL": password}
    with patch.object(doctor, "CHECKS", {name: CHECKS[name] for name in ("settings", "otlp")}):
        report = doctor.examine(environ).as_json()
    for secret in (token, password, proof, key):
        assert not told(secret, report), report
    assert ("not taken" in report or "nothing listens" in report) is not wrong
