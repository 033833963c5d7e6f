"""Traces of requests for OpenTelemetry, where its API is installed.

Spans go to the provider of the process: `opentelemetry-instrument cortiq serve …` sets one up from
the usual variables of the environment. Without one nothing is recorded.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

from cortiq.serve.generation_job import GenerationJob

ATTRIBUTES = {
    "model": "gen_ai.request.model",
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "new_tokens": "gen_ai.usage.output_tokens",
    "cached_tokens": "cortiq.cached_tokens",
    "accepted_tokens": "cortiq.accepted_tokens",
    "key": "cortiq.key",
    "error": "error.type",
}
"""Names of a request's facts as attributes of its span."""
SERVER_ERROR = 500


class Phase(NamedTuple):
    """A part of a request, in seconds of `time.perf_counter`."""

    name: str
    started: float
    ended: float


def job_phases(job: GenerationJob) -> list[Phase]:
    """Return the phases of a job: until each choice's first token, and from there to its last."""
    found = []
    for sequence in job.sequences.values():
        stats = sequence.stats
        if stats.first is not None and stats.last is not None:
            found.append(Phase("prompt", stats.started, stats.first))
            found.append(Phase("answer", stats.first, stats.last))
    return found


class RequestTraces:
    """Records a span for each request, and one for each of its phases."""

    def __init__(self) -> None:
        self._tracer: Any = None
        if find_spec("opentelemetry") is not None and find_spec("opentelemetry.trace") is not None:
            from opentelemetry import trace

            self._tracer = trace.get_tracer("cortiq")

    def record(
        self,
        line: Mapping[str, Any],
        headers: Mapping[str, str],
        phases: Sequence[Phase],
    ) -> None:
        """Record a request that has just ended.

        Parameters
        ----------
        line : facts of its log line. headers : of the request; `traceparent` continues a trace.
        """
        if self._tracer is None:
            return
        from opentelemetry import propagate, trace

        now, clock = time.time_ns(), time.perf_counter_ns()
        span = self._tracer.start_span(
            f"{line['method']} {line['path']}",
            context=propagate.extract(headers),
            kind=trace.SpanKind.SERVER,
            start_time=now - int(line["seconds"] * 1e9),
            attributes={
                "http.request.method": line["method"],
                "url.path": line["path"],
                "http.response.status_code": line["status"],
                "cortiq.request": line["request"],
                **{ours: line[fact] for fact, ours in ATTRIBUTES.items() if fact in line},
            },
        )
        if line["status"] >= SERVER_ERROR:
            span.set_status(trace.StatusCode.ERROR)
        inside = trace.set_span_in_context(span)
        for phase in phases:
            started, ended = (now - clock + int(s * 1e9) for s in (phase.started, phase.ended))
            child = self._tracer.start_span(phase.name, context=inside, start_time=started)
            child.end(ended)
        span.end(now)
