"""A child forked after the start is silent, and may start anew; each case runs in a process of its own."""

import json
import subprocess
import sys
from typing import Any

PRELUDE = """
import contextlib, json, os, select, signal, socket, sys, threading, time, urllib.request
from types import SimpleNamespace
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from vllm_vitals.deployment import runtime
from vllm_vitals.exporters.prometheus.exporter import PrometheusExporter
from vllm_vitals.exporters.prometheus.registry import VitalsCollector

CONFIG = SimpleNamespace(model_config=SimpleNamespace(served_model_name="m"))
STEPS = "vitals_steps_total", {"model_name": "m", "engine": "0"}


def start():
    host = runtime.runtime()
    queue = host.attach(CONFIG, [0], object, "0.32.0")
    host.expose("p", lambda: PrometheusExporter(host.aggregator, host.settings.prometheus, host.drainer.problem, CollectorRegistry))
    while not host.exporters["p"].ports:
        time.sleep(0.01)
    return host, queue


def step(queue, times=1):
    for _ in range(times):
        queue.record(SimpleNamespace(num_running_reqs=1), None, None, 0)


def steps(host):
    registry = CollectorRegistry()
    registry.register(VitalsCollector(host.aggregator))
    return registry.get_sample_value(*STEPS)


def scrape(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        return answer.read().decode()


def fork(child):
    \"\"\"Return the pipe of a child that writes what a function returns, and its process id.\"\"\"
    reader, writer = os.pipe()
    process = os.fork()
    if process:
        os.close(writer)
        return reader, process
    try:
        answer = child()
    except BaseException as error:
        answer = repr(error)
    os.write(writer, json.dumps(answer).encode())
    os._exit(0)


def outcome(reader, process):
    \"\"\"Return what the child wrote, or that it hangs.\"\"\"
    ready, _, _ = select.select([reader], [], [], 20)
    answer = json.loads(os.read(reader, 65536)) if ready else "hangs"
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return answer


host, queue = start()
step(queue, 3)
host.drainer.drain()
port = host.exporters["p"].ports[0]
"""


def run(body: str, **settings: str) -> Any:
    """Run a script after the prelude and return what it gives as `answer`."""
    variables = {"VITALS_PROMETHEUS__HOST": "127.0.0.1", "VITALS_PROMETHEUS__PORT": "0", "VITALS_DRAIN_INTERVAL": "10"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", f"{PRELUDE}\n{body}\nprint(json.dumps(answer))"],
        env={"PYTHONPATH": ":".join(sys.path), **variables, **settings},
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout.splitlines()[-1])


def test_what_a_child_records_goes_nowhere() -> None:
    body = """
def child():
    step(queue, 5)
    return [len(queue.calls), queue.dropped, queue.failed, runtime._runtime is None, not host.drainer.problem()]

answer = outcome(*fork(child))
"""
    assert run(body) == [0, 0, 0, True, False]


def test_what_waited_at_the_fork_counts_once_in_the_parent() -> None:
    body = """
step(queue, 4)
forgotten = outcome(*fork(lambda: len(queue.calls)))
host.drainer.drain()
answer = [forgotten, steps(host)]
"""
    assert run(body) == [0, 7.0]


def test_the_parent_goes_on() -> None:
    body = """
reader, process = fork(lambda: time.sleep(60))
step(queue)
host.drainer.drain()
page = scrape(port)
answer = ['vitals_steps_total{model_name="m",engine="0"} 4.0' in page, not host.drainer.problem()]
os.kill(process, signal.SIGKILL)
os.waitpid(process, 0)
"""
    assert run(body) == [True, True]


def test_the_port_goes_free_with_the_parent_though_the_child_lives() -> None:
    body = """
reader, process = fork(lambda: time.sleep(60))
host.stop()
answer = "held"
for _ in range(200):
    with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
        answer = "free"
        break
    time.sleep(0.1)
os.kill(process, signal.SIGKILL)
os.waitpid(process, 0)
"""
    assert run(body) == "free"


def test_a_client_of_the_parent_is_served_to_the_end_though_the_child_lives() -> None:
    body = """
client = socket.create_connection(("127.0.0.1", port), timeout=20)
client.sendall(b"GET /metrics")
while not len(host.exporters["p"]._server._slots):
    time.sleep(0.01)
reader, process = fork(lambda: time.sleep(60))
client.sendall(b" HTTP/1.1\\r\\n\\r\\n")
page = b""
while more := client.recv(65536):
    page += more
answer = [b"vitals_steps_total" in page, "vitals_steps_total" in scrape(port)]
os.kill(process, signal.SIGKILL)
os.waitpid(process, 0)
"""
    assert run(body) == [True, True]


def test_a_new_runtime_in_the_child_starts_from_zero_beside_the_parents() -> None:
    body = """
def child():
    again, drain = start()
    before = steps(again)
    step(drain, 2)
    again.drainer.drain()
    own = again.exporters["p"].ports[0]
    page = scrape(own)
    return [again is not host, own != port, before, steps(again), 'engine="0"} 2.0' in page, not again.drainer.problem()]

answer = [outcome(*fork(child)), steps(host)]
"""
    assert run(body) == [[True, True, 0.0, 2.0, True, True], 3.0]


def test_a_child_of_the_child_is_silent_too() -> None:
    body = """
def child():
    again, drain = start()

    def grandchild():
        step(drain, 2)
        return [len(drain.calls), runtime._runtime is None]

    return outcome(*fork(grandchild))

answer = outcome(*fork(child))
"""
    assert run(body) == [0, True]


HOLD = """
held, release = threading.Event(), threading.Event()

def hold():
    with host.aggregator.store.lock, host.drainer._draining, runtime._lock:
        held.set()
        release.wait(60)

threading.Thread(target=hold, daemon=True).start()
held.wait()
"""


def test_locks_that_were_held_at_the_fork_do_not_hang_the_child() -> None:
    body = f"""
{HOLD}
def child():
    step(queue)
    again, drain = start()
    step(drain)
    again.drainer.drain()
    result = steps(again)
    again.stop()
    return result

answer = outcome(*fork(child))
release.set()
"""
    assert run(body) == 1.0


def test_a_child_ends_at_once_and_leaves_the_parent_alone() -> None:
    body = """
process = os.fork()
if not process:
    sys.exit(7)
begin = time.monotonic()
_, status = os.waitpid(process, 0)
answer = [os.waitstatus_to_exitcode(status), time.monotonic() - begin < 50, "vitals_steps_total" in scrape(port)]
"""
    assert run(body) == [7, True, True]


def test_the_childs_copy_of_vllms_page_does_not_show_the_parents_numbers() -> None:
    body = """
def child():
    return REGISTRY.get_sample_value(*STEPS)

answer = [REGISTRY.get_sample_value(*STEPS), outcome(*fork(child))]
"""
    assert run(body, VITALS_PROMETHEUS__JOIN_NATIVE="true") == [3.0, None]


def test_the_childs_copy_of_vllms_page_does_not_hang() -> None:
    body = f"""
{HOLD}
answer = outcome(*fork(lambda: len(generate_latest(REGISTRY)) > 0))
release.set()
"""
    assert run(body, VITALS_PROMETHEUS__JOIN_NATIVE="true") is True


def test_a_new_runtime_in_the_child_is_on_vllms_page_once() -> None:
    body = """
def child():
    again, drain = start()
    step(drain)
    again.drainer.drain()
    return [s.value for family in REGISTRY.collect() for s in family.samples if s.name == STEPS[0]]

answer = outcome(*fork(child))
"""
    assert run(body, VITALS_PROMETHEUS__JOIN_NATIVE="true") == [1.0]
