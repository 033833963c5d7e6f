"""Prometheus metrics, served at `/metrics`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from cortiq.engine.engine import Engine
from cortiq.serve.key_limits import tokens_of
from cortiq.serve.offered_model import ModelState, OfferedModel
from cortiq.serve.served_model import ServedModel
from cortiq.serve.worker import Worker

CONTENT_TYPE = CONTENT_TYPE_LATEST
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
OTHER_PATH = "other"
TOKEN_COUNTERS = {
    "prompt_tokens": "Prompt tokens, those found among kept rows included.",
    "cached_tokens": "Prompt tokens whose rows were there already.",
    "new_tokens": "Tokens drawn.",
    "drafted_tokens": "Tokens proposed by drafters.",
    "accepted_tokens": "Proposed tokens that were drawn.",
    "evictions": "Kept prefixes evicted to make room.",
    "preemptions": "Sequences that made room for more urgent ones.",
    "prefix_hits": "Requests of whose prompt some rows were there already.",
}
"""Counters of each model, by the fact of a request that they add up."""
KEY_COUNTERS = {
    "requests": "Requests of each named key.",
    "tokens": "Tokens of prompts and answers of each named key.",
}
GAUGES = {
    "steps_after_cancel": "The most steps of a cancelled request that began after that.",
    "sequences_running": "Sequences running.",
    "sequences_waiting": "Sequences waiting.",
}
"""Gauges of each loaded model."""


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
        self._refused = Counter(
            "cortiq_refused", "Requests refused or failed, by the code of their error.",
            ["error"], registry=self.registry,
        )  # fmt: skip
        self._keys = {
            what: Counter(f"cortiq_key_{what}", text, ["key"], registry=self.registry)
            for what, text in KEY_COUNTERS.items()
        }
        self._tokens = {
            name: Counter(f"cortiq_{name}", text, ["model"], registry=self.registry)
            for name, text in TOKEN_COUNTERS.items()
        }

        self._gauges = {name: self._gauge(name, text, "model") for name, text in GAUGES.items()}

    def _gauge(self, name: str, text: str, label: str) -> Gauge:
        return Gauge(f"cortiq_{name}", text, [label], registry=self.registry)

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
        if "error" in facts:
            self._refused.labels(facts["error"]).inc()
        if "key" in facts:
            self._keys["requests"].labels(facts["key"]).inc()
            self._keys["tokens"].labels(facts["key"]).inc(tokens_of(facts))
        if "first_token_seconds" in facts:
            self._first.labels(model).observe(facts["first_token_seconds"])

    def step(self, model: str, seconds: float) -> None:
        """Record the time of an engine step; called on the engine's thread."""
        self._steps.labels(model).observe(seconds)

    def watch(self, served: ServedModel) -> None:
        """Export a loaded engine's running and waiting sequences, and steps after cancellation."""
        engine, worker, name = served.worker.engine, served.worker, served.name
        self._gauges["steps_after_cancel"].labels(name).set_function(partial(_late, worker))
        for queue in ("running", "waiting"):
            gauge = self._gauges[f"sequences_{queue}"]
            gauge.labels(name).set_function(partial(_count, engine, queue))

    def unwatch(self, name: str) -> None:
        """Drop the gauges of a model that is unloaded."""
        for gauge in self._gauges.values():
            with contextlib.suppress(KeyError):
                gauge.remove(name)

    def watch_pool(self, models: Mapping[str, OfferedModel]) -> None:
        """Export the number of models in each state, and of requests that wait for theirs."""
        states = self._gauge("models", "Models in each state.", "state")
        for state in get_args(ModelState):
            states.labels(state).set_function(partial(_in_state, models, state))
        waiting = Gauge(
            "cortiq_requests_waiting_for_models", "Requests whose model is not loaded yet.",
            registry=self.registry,
        )  # fmt: skip
        waiting.set_function(partial(_waiting, models))

    def text(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return generate_latest(self.registry)


def _late(worker: Worker) -> float:
    return float(worker.late_steps)


def _count(engine: Engine, name: str) -> float:
    return float(len(getattr(engine, name)))


def _in_state(models: Mapping[str, OfferedModel], state: str) -> float:
    return float(sum(model.state == state for model in models.values()))


def _waiting(models: Mapping[str, OfferedModel]) -> float:
    return float(sum(not one.done() for model in models.values() for one in model.waiters))
