"""Prometheus metrics, served at `/metrics`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from cortiq.engine.engine import Engine
from cortiq.serve.served_model import ServedModel
from cortiq.serve.worker import Worker

CONTENT_TYPE = CONTENT_TYPE_LATEST
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
OTHER_PATH = "other"
TOKEN_COUNTERS = {
    "prompt_tokens": "Prompt tokens, those found among kept rows included.",
    "cached_tokens": "Prompt tokens whose rows were there already.",
    "new_tokens": "Tokens drawn.",
}


class Metrics:
    """Metrics of one server, in their own registry.

    Parameters
    ----------
    paths : paths that are counted by name; all others count as one.
    """

    def __init__(self, paths: Iterable[str]) -> None:
        self.registry = CollectorRegistry()
        self._paths = frozenset(paths)
        ProcessCollector(registry=self.registry)
        self._requests = Counter(
            "cortiq_requests", "Requests.", ["path", "status"], registry=self.registry
        )
        self._seconds = self._histogram("cortiq_request_seconds", "Whole requests.", "path")
        self._first = self._histogram(
            "cortiq_first_token_seconds", "From submission to the first token.", "model"
        )
        self._steps = self._histogram("cortiq_step_seconds", "Steps of the engine.", "model")
        self._tokens = {
            name: Counter(f"cortiq_{name}", text, ["model"], registry=self.registry)
            for name, text in TOKEN_COUNTERS.items()
        }

    def _histogram(self, name: str, text: str, label: str) -> Histogram:
        return Histogram(name, text, [label], buckets=BUCKETS, registry=self.registry)

    def request(self, path: str, status: int, seconds: float, facts: Mapping[str, Any]) -> None:
        """Count a request; see `middleware.Observe`."""
        known = path.removeprefix("/v1")
        label = known if known in self._paths else OTHER_PATH
        self._requests.labels(label, str(status)).inc()
        self._seconds.labels(label).observe(seconds)
        model = facts.get("model", "")
        for name, counter in self._tokens.items():
            if name in facts:
                counter.labels(model).inc(facts[name])
        if "first_token_seconds" in facts:
            self._first.labels(model).observe(facts["first_token_seconds"])

    def step(self, model: str, seconds: float) -> None:
        """Record the time of an engine step; called on the engine's thread."""
        self._steps.labels(model).observe(seconds)

    def watch(self, models: Iterable[ServedModel]) -> None:
        """Export each engine's running and waiting sequences, and steps after cancellation."""
        late = Gauge(
            "cortiq_steps_after_cancel",
            "The most steps of a cancelled request that began after it was cancelled.",
            ["model"],
            registry=self.registry,
        )
        running, waiting = (
            Gauge(
                f"cortiq_sequences_{name}", f"Sequences {name}.", ["model"], registry=self.registry
            )
            for name in ("running", "waiting")
        )
        for served in models:
            engine, worker = served.worker.engine, served.worker
            late.labels(served.name).set_function(partial(_late, worker))
            running.labels(served.name).set_function(partial(_count, engine, "running"))
            waiting.labels(served.name).set_function(partial(_count, engine, "waiting"))

    def text(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return generate_latest(self.registry)


def _late(worker: Worker) -> float:
    return float(worker.late_steps)


def _count(engine: Engine, name: str) -> float:
    return float(len(getattr(engine, name)))
