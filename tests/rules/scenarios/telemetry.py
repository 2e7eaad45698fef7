"""The plugin itself."""

from tests.rules.fleet import engine, healthy, replica, series, where
from tests.rules.promtool import Fires, Scenario

DROPS, ERRORS, FAILS, REFUSED = (
    "VllmVitalsStepsDropped",
    "VllmVitalsErrors",
    "VllmVitalsExportFailing",
    "VllmVitalsPointsRefused",
)
AGE, DETACHED, MISSING = "VllmVitalsStepAge", "VllmVitalsDetached", "VllmVitalsMissing"
SHARED = {"cluster": "c", "namespace": "n", "pod": "vllm-0", "model_name": "m"}
WHERE_SHARED = ", cluster c, namespace n, pod vllm-0"
WARNING = {"severity": "warning"}


def of_process(name: str, values: str, **more: str) -> dict[str, str]:
    return {series(name, replica(), **more): values}


def vllms(tokens: str, place: int = 0) -> dict[str, str]:
    """Return vLLM's own counter, which another job scrapes at another port of the pod."""
    labels = {**engine(place), "job": "vllm-native", "instance": f"10.0.0.{place}:8000"}
    return {series("vllm:generation_tokens_total", labels): tokens}


def ours(tokens: str, place: int = 0) -> dict[str, str]:
    return {series("vllm_tokens_generation_total", engine(place)): tokens}


def exports(done: str, failed: str, exporter: str = "otlp") -> dict[str, str]:
    of = {"vitals_exports_total": done, "vitals_exports_failed_total": failed}
    return {
        each: values for name, values in of.items() if values for each in of_process(name, values, exporter=exporter)
    }


SCENARIOS = (
    Scenario(DROPS, "a hundred a minute", of_process("vitals_steps_dropped_total", "0x4 0+100x60", process="1"), {
        "4m": [],
        "20m": [Fires({**replica(), "process": "1", **WARNING},
                      "1000 engine steps of serving process 1 were lost in the last 10m: counters are too low by what they held" + where())],
    }),
    Scenario(DROPS, "five, once", of_process("vitals_steps_dropped_total", "0x4 5x60", process="1"), {"5m": [], "20m": []}),
    Scenario(DROPS, "none since the start", of_process("vitals_steps_dropped_total", "900x60", process="1"), {"20m": []}),
    Scenario(ERRORS, "one a minute in two processes, reading",
             of_process("vitals_errors_total", "0+1x60", stage="read", process="0")
             | of_process("vitals_errors_total", "0+1x60", stage="read", process="1")
             | of_process("vitals_errors_total", "0x60", stage="export", process="0"), {
        "1m": [],
        "30m": [Fires({**replica(), "stage": "read", **WARNING},
                      "vllm-vitals swallowed 30 errors (read) in the last 15m; serving is not affected, numbers may be" + where())],
    }),
    Scenario(ERRORS, "two, once", of_process("vitals_errors_total", "0x4 2x60", stage="read", process="0"), {"6m": [], "15m": []}),
    Scenario(ERRORS, "restarted: it begins at 0 again",
             of_process("vitals_errors_total", "100x9 0x60", stage="read", process="0"), {"12m": [], "20m": []}),
    Scenario(FAILS, "all since the start, so that nothing counts its successes", exports("", "0+6x60"), {
        "2m": [],
        "20m": [Fires({**replica(), "exporter": "otlp", **WARNING},
                      "60 exports over otlp failed in the last 10m, more than 50% of all" + where())],
    }),
    Scenario(FAILS, "four of six", exports("0+2x60", "0+4x60"), {
        "20m": [Fires({**replica(), "exporter": "otlp", **WARNING},
                      "40 exports over otlp failed in the last 10m, more than 50% of all" + where())],
    }),
    Scenario(FAILS, "one of six", exports("0+5x60", "0+1x60"), {"20m": []}),
    Scenario(FAILS, "the push fails, the scrape does not: each by itself",
             exports("0+60x60", "", "prometheus") | exports("", "0+6x60"), {
        "20m": [Fires({**replica(), "exporter": "otlp", **WARNING},
                      "60 exports over otlp failed in the last 10m, more than 50% of all" + where())],
    }),
    Scenario(FAILS, "a receiver was restarted", exports("0+6x9 54 54 54 54+6x60", "0x9 1 2 3 3x60"), {"12m": [], "20m": []}),
    Scenario(REFUSED, "some of each push", of_process("vitals_exports_refused_points_total", "0+12x60", exporter="otlp"), {
        "3m": [],
        "20m": [Fires({**replica(), "exporter": "otlp", **WARNING},
                      "The receiver left 120 points out of pushes over otlp in the last 10m" + where())],
    }),
    Scenario(REFUSED, "none for an hour", of_process("vitals_exports_refused_points_total", "12x90", exporter="otlp"), {"20m": [], "80m": []}),
    Scenario(AGE, "vLLM goes on and we stand", {**healthy(age="0+60x60"), **vllms("0+600x60")}, {
        "8m": [],
        "20m": [Fires({**SHARED, **WARNING}, "vLLM generates tokens of m, and vllm-vitals has seen no step for 20m 0s" + WHERE_SHARED)],
    }),
    Scenario(AGE, "of two pods, one stands",
             {**healthy(0, age="0+60x60"), **vllms("0+600x60", 0), **healthy(1), **vllms("0+600x60", 1)}, {
        "20m": [Fires({**SHARED, **WARNING}, "vLLM generates tokens of m, and vllm-vitals has seen no step for 20m 0s" + WHERE_SHARED)],
    }),
    Scenario(AGE, "idle after work: vLLM's rate lasts on for a window",
             {**healthy(age="0.1x9 0+60x60", running="0x60"), **vllms("0+600x9 5400x60")}, {"10m": [], "14m": [], "21m": [], "40m": []}),
    Scenario(AGE, "vLLM's own metrics are not scraped", healthy(age="0+60x60"), {"20m": []}),
    Scenario(DETACHED, "vLLM no longer calls", of_process("vitals_plugin_detached", "0x4 1x60", process="0"), {
        "4m": [],
        "8m": [Fires({**replica(), "process": "0", **WARNING},
                     "vLLM generates tokens and no longer calls vllm-vitals in serving process 0: what is shown stands still" + where())],
    }),
    Scenario(DETACHED, "it does", of_process("vitals_plugin_detached", "0x60", process="0"), {"8m": [], "40m": []}),
    Scenario(MISSING, "one of two pods has no plugin", {**vllms("0+9x60"), **vllms("0+9x60", 1), **ours("0+9x60", 1)}, {
        "10m": [],
        "20m": [Fires({**SHARED, **WARNING}, "vLLM serves m and vllm-vitals shows nothing of it" + WHERE_SHARED)],
    }),
    Scenario(MISSING, "both have it", {**vllms("0+9x60"), **ours("0+9x60")}, {"20m": []}),
    Scenario(MISSING, "scaled to zero", vllms("0+9x9 stale"), {"9m": [], "30m": []}),
    Scenario(MISSING, "only ours is scraped", ours("0+9x60"), {"20m": []}),
)  # fmt: skip
