"""Whatever clients of the scrape endpoint do, probes and honest scrapers are answered, and nothing is left of it."""

import contextlib
import http.client
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trustme

from tests.hostile.endpoint_target import (
    ENGINES,
    HONEST,
    HOST,
    Target,
    held,
    read_all,
    status_of,
)
from tests.waiting import wait_until
from vllm_vitals.exporters.prometheus import limits

MOST_GROWTH = 64 * 1024 * 1024
FEW = {"CLIENTS": 24, "ADDRESS_CLIENTS": 10, "WAITING": 16, "ADDRESS_WAITING": 8}
ATTACKERS = {"test": 14, "all": 100}
"""Of each kind at once: more than one address may have, of `FEW` connections or of as many as are allowed outside of tests."""
SERIES = b"vitals_steps_total{"
GET = b"GET /metrics HTTP/1.1\r\nHost: a\r\n"

Attack = Callable[[socket.socket], None]
"""What one client does with its connection; it may raise an OSError, and then comes again."""


@pytest.fixture(scope="module")
def allowed(effort: str) -> dict[str, float]:
    return {"test": FEW, "all": {}}[effort]


@pytest.fixture
def attackers(effort: str) -> int:
    return ATTACKERS[effort]


@pytest.fixture(scope="module")
def target(allowed: dict[str, float]) -> Iterator[Target]:
    with Target(limits=allowed) as made:
        yield made


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def tls_files(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    certificate, folder = authority.issue_cert(HOST), tmp_path_factory.mktemp("tls")
    files = {"tls_cert": folder / "cert.pem", "tls_key": folder / "key.pem"}
    files["tls_cert"].write_bytes(b"".join(blob.bytes() for blob in certificate.cert_chain_pems))
    files["tls_key"].write_bytes(certificate.private_key_pem.bytes())
    return files


@pytest.fixture(scope="module")
def tls_target(authority: trustme.CA, tls_files: dict[str, Path], allowed: dict[str, float]) -> Iterator[Target]:
    with Target(trusting(authority), limits=allowed, **tls_files) as made:
        yield made


def trusting(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


def serves(target: Target, source: str = HONEST) -> None:
    """Check that a probe and a scraper get what they ask for."""
    assert target.ask("/healthz", source)[::2] == (200, b"ok\n")
    assert target.ask("/readyz", source)[::2] == (200, b"ok\n")
    status, headers, body = target.ask(source=source)
    assert (status, int(headers["content-length"]), body.count(SERIES)) == (200, len(body), ENGINES)


@contextlib.contextmanager
def nothing_is_left_of_it(target: Target) -> Iterator[None]:
    """Check that what comes in the block costs little memory, and that everything is as before in the end."""
    serves(target)
    target.forget_peak()
    before, said = target.usage(), target.said()
    yield
    wait_until(lambda: target.usage().files <= before.files, what=target.usage)
    wait_until(lambda: target.usage().threads <= before.threads, what=target.usage)
    assert target.peak() - before.resident < MOST_GROWTH
    serves(target)
    assert target.said() == said


@contextlib.contextmanager
def attacked(target: Target, attack: Attack, clients: int) -> Iterator[None]:
    """Let clients of one address attack again and again while the block lasts, which begins when each has once."""
    ended, begun = threading.Event(), threading.Semaphore(0)

    def repeat() -> None:
        while not ended.is_set():
            with contextlib.suppress(OSError), target.connect() as connection:
                attack(connection)
            begun.release()
            ended.wait(0.02)

    threads = [threading.Thread(target=repeat, daemon=True) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        for _ in threads:
            assert begun.acquire(timeout=60)
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join(60)


def flood_of_headers(connection: socket.socket) -> None:
    connection.sendall(GET)
    for _ in range(90):
        connection.sendall(b"Accept: " + b"a/b;q=0.1," * 6500 + b"\r\n")
    connection.sendall(b"\r\n")
    read_all(connection)


def many_small_headers(connection: socket.socket) -> None:
    connection.sendall(GET + b"a:\r\n" * 100_000)
    read_all(connection)


def long_target(connection: socket.socket) -> None:
    connection.sendall(b"GET /" + b"%61" * 100_000)
    read_all(connection)


def trickle(connection: socket.socket) -> None:
    for byte in GET:
        connection.sendall(bytes([byte]))
        time.sleep(0.01)


def say_nothing(connection: socket.socket) -> None:
    connection.settimeout(0.3)
    connection.recv(1)


def leave_at_once(_: socket.socket) -> None:
    """Connect, and no more."""


def reset(connection: socket.socket) -> None:
    connection.sendall(GET + b"\r\n")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")


def read_nothing(connection: socket.socket) -> None:
    connection.sendall(GET + b"\r\n")
    time.sleep(0.3)


def read_slowly(connection: socket.socket) -> None:
    connection.sendall(GET + b"\r\n")
    for _ in range(10):
        connection.recv(100)
        time.sleep(0.03)


def pipeline(connection: socket.socket) -> None:
    connection.sendall((GET + b"\r\n") * 2000)
    read_all(connection)


def endless_body(connection: socket.socket) -> None:
    connection.sendall(b"POST /metrics HTTP/1.1\r\nContent-Length: 1000000000\r\n\r\n")
    for _ in range(100):
        connection.sendall(bytes(65536))


def scrape_in_a_loop(connection: socket.socket) -> None:
    connection.sendall(b"GET /metrics?name[]=%d HTTP/1.1\r\n\r\n" % id(connection))
    read_all(connection)


def garbage(connection: socket.socket) -> None:
    connection.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)) * 100)
    read_all(connection)


def client_hello() -> bytes:
    ours, theirs = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(theirs, ours, server_hostname=HOST).do_handshake()
    return ours.read()


HELLO = client_hello()


def half_a_handshake(connection: socket.socket) -> None:
    connection.sendall(HELLO[: len(HELLO) // 2])
    time.sleep(0.3)


def a_handshake_without_an_end(connection: socket.socket) -> None:
    connection.sendall(HELLO)
    time.sleep(0.3)


PLAIN = (flood_of_headers, many_small_headers, long_target, trickle, say_nothing, leave_at_once, reset, read_nothing,
         read_slowly, pipeline, endless_body, scrape_in_a_loop, garbage)  # fmt: skip
TLS = (garbage, half_a_handshake, a_handshake_without_an_end, say_nothing, leave_at_once, reset)


@pytest.mark.parametrize("attack", PLAIN)
def test_probes_and_scrapers_are_answered(target: Target, attack: Attack, attackers: int) -> None:
    with nothing_is_left_of_it(target), attacked(target, attack, attackers):
        serves(target)
        serves(target)


@pytest.mark.parametrize("attack", TLS)
def test_probes_and_scrapers_are_answered_over_tls(tls_target: Target, attack: Attack, attackers: int) -> None:
    with nothing_is_left_of_it(tls_target), attacked(tls_target, attack, attackers):
        serves(tls_target)
        serves(tls_target)


@pytest.mark.parametrize("attack", [say_nothing, trickle, read_nothing])
def test_who_shares_the_address_of_attackers_is_answered_too(target: Target, attack: Attack, attackers: int) -> None:
    """Not always at once: its address may have no room for another page, or enough newer connections to lose it."""

    def served() -> bool:
        with contextlib.suppress(ConnectionError, http.client.HTTPException):
            return all(target.ask(path, HOST).status == 200 for path in ("/healthz", "/readyz", "/metrics"))
        return False

    with attacked(target, attack, attackers):
        wait_until(served)


def slow_reader(target: Target) -> socket.socket:
    """Return a client that has asked for the page and reads nothing of it; no buffer holds all of it."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.bind((HOST, 0))
    client.connect((HOST, target.port))
    client.sendall(GET + b"\r\n")
    return client


def test_a_probe_is_answered_while_every_other_slot_reads_its_answer_slowly(target: Target) -> None:
    slots = 6
    readers: list[socket.socket] = []
    with held(readers), target.limited(CLIENTS=slots, ADDRESS_CLIENTS=slots, WAITING=slots - 2):
        for _ in range(slots):
            readers.append(slow_reader(target))
            assert readers[-1].recv(1) == b"H"
        for _ in range(3):
            assert target.ask("/healthz").status == 200
            assert target.ask().status == 200


def test_a_slow_reader_is_given_up_at_the_end_of_its_exchange(target: Target) -> None:
    files = target.files()
    with target.limited(EXCHANGE_SECONDS=1.0):
        readers = [slow_reader(target) for _ in range(3)]
        with held(readers):
            begun = [reader.recv(1) for reader in readers]
            wait_until(lambda: target.usage().files <= files, what=target.usage)
            for first, reader in zip(begun, readers, strict=True):
                assert status_is_cut(first + read_all(reader))


def test_answers_that_nobody_reads_do_not_pile_up(target: Target) -> None:
    """Each reader holds another page; what all of them hold has a limit, and the oldest go first."""
    first = slow_reader(target)
    with held([first]), target.limited(ANSWER_BYTES=1):
        assert first.recv(1) == b"H"
        second = slow_reader(target)
        with held([second]):
            assert second.recv(1) == b"H"
            first.settimeout(60)
            assert status_is_cut(b"H" + read_all(first))
            assert target.ask("/healthz").status == 200


def status_is_cut(answer: bytes) -> bool:
    head, _, body = answer.partition(b"\r\n\r\n")
    return len(body) < int(head.lower().partition(b"content-length: ")[2].split()[0] if head else 1)


# --- What one client gets


def talk(target: Target, said: bytes, *, half_closed: bool = False) -> bytes:
    with target.open() as client:
        with contextlib.suppress(ConnectionError):
            client.sendall(said)
            if half_closed:
                client.shutdown(socket.SHUT_WR)
        return read_all(client)


OVER = limits.HEAD_BYTES + 1
ANSWERS = {
    b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n": 200,
    b"GET /healthz HTTP/1.0\r\n\r\n": 200,
    b"GET /healthz HTTP/1.1\n\n": 200,
    b"\r\n\r\nGET /healthz HTTP/1.1\r\n\r\n": 200,
    b"GET http://host:9464/healthz HTTP/1.1\r\n\r\n": 200,
    b"GET HTTPS://host/healthz?a=b HTTP/1.1\r\n\r\n": 200,
    b"GET /healthz HTTP/1.1\r\nContent-Length: 5\r\n\r\nabcde": 200,
    b"GET /healthz HTTP/1.1\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n": 200,  # the body need not come
    b"GET /healthz HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n0\r\n\r\n": 200,
    b"GET /healthz HTTP/1.1\r\n\r\nGET /metrics HTTP/1.1\r\n\r\n": 200,
    b"GET http://host HTTP/1.1\r\n\r\n": 404,
    b"GET http://host/a?b=/healthz HTTP/1.1\r\n\r\n": 404,
    b"GET http://host?/healthz HTTP/1.1\r\n\r\n": 404,
    b"OPTIONS * HTTP/1.1\r\n\r\n": 405,
    b"POST /metrics HTTP/1.1\r\nContent-Length: 1000000000000\r\nExpect: 100-continue\r\n\r\n": 405,
    b"POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\n\0\0\0": 405,
    b"GET /healthz\r\n\r\n": 400,
    b"GET  /healthz HTTP/1.1\r\n\r\n": 400,
    b"GET /healthz HTTP/1.1 \r\n\r\n": 400,
    b"GET /health\0z HTTP/1.1\r\n\r\n": 400,
    b"GET /healthz HTTP/1.1\r\nAccept: a\0b\r\n\r\n": 400,
    b"GET /healthz HTTP/1.1\r\nAccept: a\rb\r\n\r\n": 400,
    b"GET /healthz HTTP/1.1\r\nAccept a\r\n\r\n": 400,
    b"GET /healthz HTTP/1.1\r\nAccept : a\r\n\r\n": 400,
    b"GET /healthz HTTP/1.1\r\nAccept: a\r\n folded\r\n\r\n": 400,
    b"GET /healthz HTTP/1.1\r\n: a\r\n\r\n": 400,
    b"GET healthz HTTP/1.1\r\n\r\n": 400,
    b"CONNECT host:80 HTTP/1.1\r\n\r\n": 400,
    b"GET ftp://host/healthz HTTP/1.1\r\n\r\n": 400,
    b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03": 400,
    b"GET /metrics?" + b"a=b&" * (limits.QUERY_FIELDS + 1) + b" HTTP/1.1\r\n\r\n": 400,
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n": 505,
    b"GET /" + b"a" * OVER: 414,
    b"GET /healthz HTTP/1.1\r\nAccept: " + b"a" * OVER: 431,
    b"GET /healthz HTTP/1.1\r\n" + b"a: b\r\n" * (limits.HEAD_FIELDS + 1) + b"\r\n": 431,
}


def test_each_request_gets_its_status_and_one_sentence(target: Target) -> None:
    for request, status in ANSWERS.items():
        answer = talk(target, request)
        assert (status_of(answer), request[:60]) == (status, request[:60])
        assert answer.endswith(b"\n")
        assert answer.partition(b"\r\n\r\n")[2].count(b"\n") == 1


@pytest.mark.parametrize("form", [b"/metrics", b"http://host:9464/metrics"])
def test_a_request_in_many_pieces_gets_the_page(target: Target, form: bytes) -> None:
    with target.connect() as client:
        for byte in b"GET %b HTTP/1.1\r\nHost: a\r\n\r\n" % form:
            client.sendall(bytes([byte]))
        answer = read_all(client)
    assert (status_of(answer), answer.count(SERIES)) == (200, ENGINES)


def test_who_closes_its_half_gets_its_answer(target: Target) -> None:
    answer = talk(target, GET + b"\r\n", half_closed=True)
    assert (status_of(answer), answer.count(SERIES)) == (200, ENGINES)
    assert status_of(talk(target, GET, half_closed=True)) == 400
    assert talk(target, b"", half_closed=True) == b""


def test_a_head_that_takes_long_is_told_so(target: Target) -> None:
    with target.limited(HEAD_SECONDS=0.2):
        assert status_of(talk(target, GET)) == 408
        assert talk(target, b"") == b""


def say(target: Target, said: bytes) -> bytes:
    """Talk without TLS."""
    with target.connect() as client:
        client.sendall(said)
        return read_all(client)


def test_a_handshake_that_takes_long_is_ended(tls_target: Target) -> None:
    with tls_target.limited(HANDSHAKE_SECONDS=0.2):
        for begun in (b"", HELLO[:50]):
            assert say(tls_target, begun) == b""
        wait_until(lambda: say(tls_target, HELLO))  # its own part of the handshake, and then no more


def test_a_refusal_is_read_by_who_still_sends(target: Target, tls_target: Target) -> None:
    """No reset takes the answer away."""
    for _ in range(10):
        for each in (target, tls_target):
            assert status_of(talk(each, GET + b"Accept: " + b"a" * 40_000)) == 431


def test_an_answer_is_read_by_who_sends_more_than_its_request(target: Target, tls_target: Target) -> None:
    """Another request comes while the page is rendered, after all that was read of this client."""
    for each in (target, tls_target):
        for _ in range(5):
            with each.open() as client:
                client.sendall(GET + b"\r\n")
                time.sleep(0.002)
                for _ in range(5):
                    client.sendall(GET + b"\r\n")
                answer = read_all(client)
            assert (status_of(answer), answer.count(SERIES)) == (200, ENGINES)


def test_a_head_without_a_body_is_what_head_asks_for_when_it_is_refused_too(target: Target) -> None:
    for request in (b"HEAD /healthz HTTP/1.1\r\n a\r\n\r\n", b"\r\nHEAD /a HTTP/1.1\r\n\r\n"):
        answer = talk(target, request)
        assert answer.startswith(b"HTTP/1.1 40")
        assert answer.endswith(b"\r\n\r\n")


def test_too_many_that_wait_for_a_page_are_told_when_to_come_again(target: Target) -> None:
    with target.limited(ADDRESS_WAITING=0):
        status, headers, body = target.ask()
        assert (status, headers["retry-after"], body.count(b"\n")) == (503, "1", 1)
        assert target.ask("/healthz").status == 200


# --- What it costs


def test_a_hostile_request_costs_no_more_than_an_honest_one(target: Target) -> None:
    """In processor time of the process, whoever else keeps the machine busy."""

    def cost(client: Callable[[], object], times: int) -> float:
        before = target.processor()
        for _ in range(times):
            client()
        return (target.processor() - before) / times

    def hostile(attack: Attack) -> Callable[[], None]:
        def once() -> None:
            with contextlib.suppress(OSError), target.connect() as connection:
                attack(connection)

        return once

    honest = cost(target.ask, 10)
    for attack in (flood_of_headers, many_small_headers, long_target, garbage, endless_body, pipeline):
        assert cost(hostile(attack), 10) < 2 * honest, attack.__name__


def test_the_number_of_threads_does_not_depend_on_that_of_clients(target: Target, attackers: int) -> None:
    serves(target)
    threads = target.usage().threads
    with attacked(target, trickle, attackers):
        assert target.usage().threads <= threads


def unaccepted(target: Target) -> socket.socket:
    """Return a client for which the endpoint has no descriptor, once the endpoint has said so.

    It hangs up on a client a moment after that one has its answer, and then has a descriptor again: so more than one
    client may have to come.
    """
    while True:
        target.tell("exhaust")
        client = target.connect()
        client.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
        wait_until(
            lambda client=client: "cannot accept" in target.said("WARNING") or can_be_read(client), what=target.said
        )
        if "cannot accept" in target.said("WARNING"):
            return client
        client.close()


def can_be_read(client: socket.socket) -> bool:
    return bool(select.select([client], [], [], 0)[0])


@pytest.fixture
def short_of_descriptors(target: Target) -> Iterator[Target]:
    serves(target)
    target.forget()
    yield target
    target.tell("release")
    serves(target)


def test_without_descriptors_it_waits_says_so_once_and_recovers(short_of_descriptors: Target) -> None:
    target = short_of_descriptors
    with target.limited(PAUSE_SECONDS=0.1), unaccepted(target) as client:
        start, before = time.monotonic(), target.processor()
        time.sleep(0.5)
        assert target.processor() - before < (time.monotonic() - start) / 10
        assert target.said("WARNING").count("cannot accept") == 1
        target.tell("release")
        assert status_of(read_all(client)) == 200


def test_idle_connections_make_room_when_descriptors_run_out(short_of_descriptors: Target) -> None:
    target = short_of_descriptors
    target.tell("allow 6")
    idle = [target.connect() for _ in range(30)]
    with held(idle), target.limited(HEAD_SECONDS=600.0, ADDRESS_CLIENTS=80, CLIENTS=160):
        for _ in range(5):
            assert target.ask("/healthz").status == 200
        assert "cannot accept" in target.said("WARNING")
        assert "Traceback" not in target.said()
