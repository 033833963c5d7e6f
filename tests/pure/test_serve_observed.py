"""Metrics and traces: what a scraper and a collector see of requests."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.datastructures import Headers

from cortiq.serve.metrics import Metrics
from cortiq.serve.middleware import RequestMiddleware
from cortiq.serve.options import ServeOptions
from cortiq.serve.traces import Phase, RequestTraces

LINE = {
    "method": "POST", "path": "/v1/completions", "status": 200, "seconds": 2.0,
    "request": "req_1", "model": "m", "prompt_tokens": 7, "new_tokens": 5, "key": "alice",
}  # fmt: skip
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def samples(metrics):
    found = {}
    for family in text_string_to_metric_families(metrics.text().decode()):
        for one in family.samples:
            found[one.name, *one.labels.values()] = one.value
    return found


def test_requests_add_up_in_the_metrics():
    made = Metrics(["/completions"])
    facts = {name: LINE[name] for name in ("model", "prompt_tokens", "new_tokens", "key")}
    rare = {"drafted_tokens": 4, "accepted_tokens": 3, "evictions": 1, "preemptions": 2}
    made.request("/v1/completions", 200, 0.5, {**facts, **rare, "prefix_hits": 1})
    made.request("/v1/completions", 200, 0.5, facts)
    made.request("/v1/completions", 429, 0.1, {"error": "queue_full", "key": "alice"})
    found = samples(made)
    expected = {
        "drafted_tokens": 4, "accepted_tokens": 3, "evictions": 1, "preemptions": 2,
        "prefix_hits": 1, "prompt_tokens": 14, "new_tokens": 10,
    }  # fmt: skip
    assert {name: found[f"cortiq_{name}_total", "m"] for name in expected} == expected
    assert found["cortiq_refused_total", "queue_full"] == 1
    assert found["cortiq_key_requests_total", "alice"] == 3
    assert found["cortiq_key_tokens_total", "alice"] == 24
    assert found["cortiq_requests_total", "/completions", "200"] == 2


@pytest.fixture(scope="module")
def spans():
    """The spans of this process's provider; it has one for good."""
    pytest.importorskip("opentelemetry.sdk", reason="needs the package opentelemetry-sdk")
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter


def test_a_request_is_a_span_of_its_callers_trace(spans):
    spans.clear()
    phases = [Phase("prompt", 1.0, 1.5), Phase("answer", 1.5, 3.0)]
    RequestTraces().record(LINE, Headers({"traceparent": PARENT}), phases)
    prompt, answer, whole = spans.get_finished_spans()
    assert whole.name == "POST /v1/completions" and whole.kind.name == "SERVER"
    assert f"{whole.context.trace_id:032x}" == PARENT[3:35]
    assert f"{whole.parent.span_id:016x}" == PARENT[36:52]
    assert whole.end_time - whole.start_time == 2_000_000_000
    about = dict(whole.attributes)
    assert about["gen_ai.request.model"] == "m" and about["gen_ai.usage.output_tokens"] == 5
    assert [one.parent.span_id for one in (prompt, answer)] == [whole.context.span_id] * 2
    assert answer.end_time - answer.start_time == pytest.approx(1.5e9, rel=1e-6)


def test_a_failed_request_is_a_failed_span_and_tells_no_text(spans):
    spans.clear()

    async def fails(scope, receive, send):
        raise ValueError("what somebody asked")

    async def send(message):
        pass

    gate = RequestMiddleware(fails, ServeOptions(), lambda *facts: None)
    headers = [(b"host", b"localhost"), (b"authorization", b"Bearer secret")]
    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": headers}
    asyncio.run(gate(scope, None, send))
    (span,) = spans.get_finished_spans()
    assert span.status.status_code.name == "ERROR"
    assert span.attributes["http.response.status_code"] == 500
    assert span.attributes["error.type"] == "internal_error"
    assert "asked" not in span.to_json() and "secret" not in span.to_json()
