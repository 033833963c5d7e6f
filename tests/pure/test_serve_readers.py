"""Reading requests off the event loop: who has gone away is not read for, and depth has an end."""

from __future__ import annotations

import asyncio
import json
import threading
from types import SimpleNamespace

import pytest

from cortiq.errors import FormatError
from cortiq.formats.strict_json import nesting_depth, parse_object
from cortiq.serve.errors import ApiError
from cortiq.serve.http_responses import ClientGone
from cortiq.serve.model_mover import PoolLimits
from cortiq.serve.model_pool import ModelPool
from cortiq.serve.options import ServeOptions
from cortiq.serve.served_model import ServedModel
from cortiq.serve.service import READER_THREADS, Service
from cortiq.tokenizer.tokenizer import byte_tokenizer


class Client:
    """A request whose client goes away when the test wants it."""

    def __init__(self):
        self.left = asyncio.Event()

    async def receive(self):
        await self.left.wait()
        return {"type": "http.disconnect"}


def no_models():
    return ModelPool({}, None, None, PoolLimits(1))


def test_what_vanished_clients_asked_for_is_not_read():
    """Both readers are busy; of those who wait and go away, nobody is read for after it."""
    busy, read = threading.Event(), []

    async def run():
        service = Service(no_models(), ServeOptions(), None)
        held = [
            asyncio.ensure_future(service.read(Client(), busy.wait)) for _ in range(READER_THREADS)
        ]
        gone, there = [Client() for _ in range(20)], Client()
        waiting = [
            asyncio.ensure_future(service.read(client, lambda n=n: read.append(n)))
            for n, client in enumerate([*gone, there])
        ]
        await asyncio.sleep(0)
        for client in gone:
            client.left.set()
        left = await asyncio.gather(*waiting[:-1], return_exceptions=True)
        assert all(isinstance(one, ClientGone) for one in left)
        busy.set()
        await asyncio.gather(*held, waiting[-1])
        service.stop()

    asyncio.run(run())
    assert read == [20]


def test_reading_that_goes_too_deep_is_the_clients_error():
    def deep():
        return json.dumps(nested) if (nested := chain(100_000)) else None

    async def run():
        service = Service(no_models(), ServeOptions(), None)
        try:
            await service.read(Client(), deep)
        finally:
            service.stop()

    with pytest.raises(ApiError, match="nested too deeply") as caught:
        asyncio.run(run())
    assert caught.value.status == 400


def chain(length):
    made = []
    for _ in range(length):
        made = [made]
    return made


def test_levels_are_counted():
    assert [nesting_depth(value) for value in (1, [], [[], 1], {"a": [{}]}, chain(9000))] == [
        0, 1, 2, 3, 9001,
    ]  # fmt: skip
    data = b'{"a": [[[]]], "b": "[[[[[["}'
    assert parse_object(data, "here", 4) == {"a": [[[]]], "b": "[[[[[["}
    with pytest.raises(FormatError, match="more than 3 levels"):
        parse_object(data, "here", 3)


def test_no_token_is_looked_for_in_a_text_that_cannot_fit():
    """A text of as many bytes as the context can hold may fit, one of a byte more cannot."""
    tokenizer = byte_tokenizer(400)
    model = SimpleNamespace(context=10, tokenizer=tokenizer)
    served = ServedModel("m", model, None, None, None, frozenset(), "", None)
    assert tokenizer.longest_token == len("<bos>")
    served.check_size("x" * 50, "prompt")
    with pytest.raises(ApiError, match="10 tokens of at most 5 bytes, and the prompt has 51 bytes"):
        served.check_size("x" * 51, "prompt")
    with pytest.raises(ApiError):
        served.check_size("\ud800" + "é" * 25, "prompt")
