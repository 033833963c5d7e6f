"""What a stream says when its engine fails in the middle of it."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import pytest

from cortiq.errors import BackendError
from cortiq.serve.answers import EventStream, updates
from cortiq.serve.errors import ApiError
from cortiq.serve.job import Job, Update
from cortiq.serve.replies import Head, TextChoice


def job(*given):
    made = Job([SimpleNamespace(prompt=(1, 2), masks=None)])
    for update in given:
        made.updates.put_nowait(update)
    return made


def events(made, include_usage=False):
    wanted = SimpleNamespace(n=1, top_logprobs=None, include_usage=include_usage)
    served = SimpleNamespace(name="m", fingerprint="c1-x")
    asked = SimpleNamespace(
        served=served,
        wanted=wanted,
        requests=made.requests,
        echo=(),
        prompt_tokens=2,
        tokenizer=None,
    )
    stream = EventStream(asked, made, Head("text_completion", "cmpl", asked), TextChoice, 1, print)

    async def collect():
        return "".join([text async for text in stream.events()]).split("\n\n")[:-1]

    return asyncio.run(collect())


def test_an_error_in_the_middle_is_an_event_and_nothing_says_done():
    error = BackendError("the device is gone")
    said, failed = events(job(Update(0, "so far"), Update(0, error=error)))
    assert json.loads(said[6:])["choices"][0]["text"] == "so far"
    assert json.loads(failed[6:])["error"]["code"] == "engine_error"


def test_the_log_has_the_error_of_a_stream():
    wanted = SimpleNamespace(n=1, top_logprobs=None, include_usage=False)
    made = job(Update(0, error=BackendError("the device is gone")))
    served = SimpleNamespace(name="m", fingerprint="c1-x")
    asked = SimpleNamespace(served=served, wanted=wanted, requests=made.requests, echo=())
    stream = EventStream(asked, made, Head("text_completion", "cmpl", asked), TextChoice, 1, print)
    scope = {"state": {"facts": {}}}

    async def receive():
        await asyncio.sleep(60)

    async def send(message):
        pass

    asyncio.run(stream(scope, receive, send))
    assert scope["state"]["facts"] == {"error": "engine_error"}


def test_the_end_is_said_once_and_usage_before_it():
    made = events(job(Update(0, "all"), Update(0, finish="length")), include_usage=True)
    assert made[-1] == "data: [DONE]" and made.count("data: [DONE]") == 1
    objects = [json.loads(event[6:]) for event in made[:-1]]
    assert [one["usage"] is None for one in objects] == [True, True, False]
    assert objects[-1]["choices"] == [] and objects[1]["choices"][0]["finish_reason"] == "length"


def test_somebody_is_there_while_nothing_comes(monkeypatch):
    monkeypatch.setattr("cortiq.serve.answers.ALIVE_SECONDS", 0.01)

    async def wait():
        return await anext(updates(job()))

    assert asyncio.run(wait()) is None


def test_a_form_that_could_not_be_followed_is_an_error():
    made = job(Update(0, "{", finish="stop"))
    made.requests[0].masks = SimpleNamespace(fault="too complex")

    async def run():
        return [update async for update in updates(made)]

    with pytest.raises(ApiError, match="too complex") as caught:
        asyncio.run(run())
    assert (caught.value.status, caught.value.code) == (400, "invalid_schema")
