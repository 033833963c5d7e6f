"""A stream reports that its engine failed midway."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import pytest

from cortiq.errors import BackendError
from cortiq.serve.completion_writer import text_writer
from cortiq.serve.errors import ApiError
from cortiq.serve.generation_job import ChoiceUpdate, GenerationJob
from cortiq.serve.http_responses import AnswerStream, job_updates


def job(*given, choices=1):
    made = GenerationJob([SimpleNamespace(prompt=(1, 2), masks=None)] * choices)
    for update in given:
        made.updates.put_nowait(update)
    return made


def events(made, include_usage=False):
    params = SimpleNamespace(n=1, top_logprobs=None, include_usage=include_usage, token_ids=False)
    served = SimpleNamespace(name="m", fingerprint="c1-x")
    asked = SimpleNamespace(
        served=served,
        model_name="m",
        params=params,
        requests=made.requests,
        echo=(),
        prompt_tokens=2,
        tokenizer=None,
    )
    stream = AnswerStream(made, text_writer(asked, made), 1, print)

    async def collect():
        return "".join([text async for text in stream.pieces()]).split("\n\n")[:-1]

    return asyncio.run(collect())


def test_an_error_in_the_middle_is_an_event_and_nothing_says_done():
    error = BackendError("the device is gone")
    said, failed = events(job(ChoiceUpdate(0, "so far"), ChoiceUpdate(0, error=error)))
    assert json.loads(said[6:])["choices"][0]["text"] == "so far"
    assert json.loads(failed[6:])["error"]["code"] == "engine_error"


def test_a_loop_is_said_beside_the_finish_reason_that_clients_know():
    looped, stopped = (
        json.loads(events(job(ChoiceUpdate(0, "a a a", finish=reason)))[-2][6:])["choices"][0]
        for reason in ("loop", "stop")
    )
    assert looped["finish_reason"] == stopped["finish_reason"] == "stop"
    assert looped["stop_reason"] == "loop" and "stop_reason" not in stopped


def test_the_log_has_the_error_of_a_stream():
    params = SimpleNamespace(n=1, top_logprobs=None, include_usage=False, token_ids=False)
    made = job(ChoiceUpdate(0, error=BackendError("the device is gone")))
    served = SimpleNamespace(name="m", fingerprint="c1-x")
    asked = SimpleNamespace(
        served=served, model_name="m", params=params, requests=made.requests, echo=()
    )
    stream = AnswerStream(made, text_writer(asked, made), 1, print)
    scope = {"state": {"facts": {}}}

    async def receive():
        await asyncio.sleep(60)

    async def send(message):
        pass

    asyncio.run(stream(scope, receive, send))
    assert scope["state"]["facts"] == {"error": "engine_error"}


def test_the_end_is_said_once_and_usage_before_it():
    made = events(job(ChoiceUpdate(0, "all"), ChoiceUpdate(0, finish="length")), include_usage=True)
    assert made[-1] == "data: [DONE]" and made.count("data: [DONE]") == 1
    objects = [json.loads(event[6:]) for event in made[:-1]]
    assert [one["usage"] is None for one in objects] == [True, False]
    assert objects[-1]["choices"] == [] and objects[0]["choices"][0]["finish_reason"] == "length"
    assert objects[0]["choices"][0]["text"] == "all"


def test_updates_that_wait_are_one_piece_and_never_across_choices_or_an_end():
    made = job(
        ChoiceUpdate(0, "a", (1,)), ChoiceUpdate(0, "b", (2,)),
        ChoiceUpdate(0, "c", (3,), finish="stop"),
        ChoiceUpdate(1, progress=(2, 4)), ChoiceUpdate(1, "x", (7,)), ChoiceUpdate(1, "y", (8,)),
        ChoiceUpdate(1, finish="length"), choices=2,
    )  # fmt: skip

    async def run():
        return [update async for update in job_updates(made)]

    assert asyncio.run(run()) == [
        ChoiceUpdate(0, "abc", (1, 2, 3), (), "stop"),
        ChoiceUpdate(1, progress=(2, 4)),
        ChoiceUpdate(1, "xy", (7, 8), (), "length"),
    ]


def test_somebody_is_there_while_nothing_comes(monkeypatch):
    monkeypatch.setattr("cortiq.serve.http_responses.KEEP_ALIVE_SECONDS", 0.01)

    async def wait():
        return await anext(job_updates(job()))

    assert asyncio.run(wait()) is None


def test_a_form_that_could_not_be_followed_is_an_error():
    made = job(ChoiceUpdate(0, "{", finish="stop"))
    made.requests[0].masks = SimpleNamespace(fault="too complex")

    async def run():
        return [update async for update in job_updates(made)]

    with pytest.raises(ApiError, match="too complex") as caught:
        asyncio.run(run())
    assert (caught.value.status, caught.value.code) == (400, "invalid_schema")
