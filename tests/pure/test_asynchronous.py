"""Many at once: awaited calls take turns, batches change no bit, and a cancelled task stops."""

from __future__ import annotations

import asyncio
import threading

import pytest

import cortiq
from cortiq.errors import RequestError

PROMPTS = ("One", "Two, and more of it", "Three")
SEEDED = {"max_tokens": 12, "temperature": 1.1, "seed": 4}


@pytest.fixture
def model():
    with cortiq.load("synthetic:tiny-llama?seed=2") as made:
        yield made


def facts(made):
    return made.token_ids, made.digest, made.text, made.finish_reason, made.fingerprint


@pytest.mark.parametrize("more", [{}, {"draft": "lookup"}])
def test_many_are_each_one_alone(model, more):
    together = model.generate_many(PROMPTS, **SEEDED, **more)
    alone = [model.generate(p, **SEEDED) for p in PROMPTS]
    assert [facts(made) for made in together] == [facts(made) for made in alone]
    assert all(model.verify(made.receipt()) for made in together)


def test_one_bad_prompt_of_many_is_refused_before_anything_is_computed(model):
    with pytest.raises(RequestError, match="empty"):
        model.generate_many(["fine", ""], max_tokens=2)
    assert model.generate_many([], max_tokens=2) == []
    assert model.generate("fine", max_tokens=2).text is not None


def test_awaited_calls_take_turns_and_give_what_they_give_alone(model):
    alone = [facts(model.generate(p, **SEEDED)) for p in PROMPTS]

    async def together():
        asynchronous = cortiq.AsyncModel(model)
        return await asyncio.gather(
            *(asynchronous.generate(p, **SEEDED) for p in PROMPTS),
            asynchronous.generate_many(PROMPTS, **SEEDED),
            asynchronous.embed(list(PROMPTS)),
            asynchronous.score("A text of some tokens", window=4),
            asynchronous.likelihoods([1, 2], [[3]]),
        )

    one, two, three, many, embedded, score, likelihoods = asyncio.run(together())
    assert [facts(m) for m in (one, two, three)] == [facts(m) for m in many] == alone
    assert embedded.tobytes() == model.embed(list(PROMPTS)).tobytes()
    assert score == model.score("A text of some tokens", window=4)
    assert likelihoods == model.likelihoods([1, 2], [[3]])


def test_streams_beside_each_other_and_the_event_loop_goes_on(model):
    async def two():
        asynchronous, ticks = cortiq.AsyncModel(model), 0

        async def tick():
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        ticking = asyncio.create_task(tick())

        async def read(prompt):
            async with asynchronous.stream(prompt, **SEEDED) as stream:
                text = "".join([piece async for piece in stream])
            assert text == stream.generation.text
            return facts(stream.generation)

        made = await asyncio.gather(*map(read, PROMPTS))
        ticking.cancel()
        return made, ticks

    made, ticks = asyncio.run(two())
    assert made == [facts(model.generate(p, **SEEDED)) for p in PROMPTS]
    assert ticks > 100


class Steps:
    """Counts steps of an executable, and says when there were a few."""

    def __init__(self, model):
        self.count, self.some = 0, threading.Event()
        self.forward = model.executable.forward
        model.executable.forward = self

    def __call__(self, batch):
        self.count += 1
        if self.count == 5:
            self.some.set()
        return self.forward(batch)


@pytest.mark.parametrize("kind", ["generate", "generate_many", "stream"])
def test_a_cancelled_task_ends_its_work_and_the_next_has_its_turn(kind, monkeypatch):
    with cortiq.load("synthetic:tiny-llama?seed=2", backend="reference") as model:
        steps = Steps(model)
        long = {"max_tokens": 2000, "ignore_eos": True}

        async def cancelled():
            asynchronous = cortiq.AsyncModel(model)

            async def work():
                if kind == "generate":
                    await asynchronous.generate("x", **long)
                elif kind == "generate_many":
                    await asynchronous.generate_many(["x", "y"], **long)
                else:
                    async for _ in asynchronous.stream("x", **long):
                        pass

            task = asyncio.create_task(work())
            await asyncio.to_thread(steps.some.wait, 30)
            task.cancel()
            seen = steps.count
            with pytest.raises(asyncio.CancelledError):
                await task
            assert steps.count <= seen + 2
            return await asynchronous.generate("One", **SEEDED)

        made = asyncio.run(cancelled())
        assert facts(made) == facts(model.generate("One", **SEEDED))


def test_a_stream_left_early_gives_its_turn_back(model):
    async def early():
        asynchronous = cortiq.AsyncModel(model)
        stream = asynchronous.stream("x", max_tokens=100, ignore_eos=True)
        await anext(stream)
        with pytest.raises(ValueError, match="not ended"):
            _ = stream.generation
        await stream.aclose()
        stream = asynchronous.stream("x", max_tokens=400, ignore_eos=True)
        await anext(stream)
        stream.cancel()
        async for _ in stream:
            pass
        return stream.generation

    assert asyncio.run(early()).finish_reason == "cancelled"


def test_errors_arrive_where_they_are_awaited(model):
    async def wrong():
        asynchronous = cortiq.AsyncModel(model)
        with pytest.raises(RequestError, match="empty"):
            await asynchronous.generate("")
        with pytest.raises(RequestError, match="max_tokens"):
            async for _ in asynchronous.stream("x", max_tokens=0):
                pass
        with pytest.raises(cortiq.CortiqError, match="no chat template"):
            await asynchronous.chat([{"role": "user", "content": "x"}])
        return await asynchronous.generate("x", max_tokens=1)

    assert len(asyncio.run(wrong()).token_ids) == 1


def test_loaded_and_closed_from_an_event_loop():
    async def whole():
        async with await cortiq.load_async("synthetic:tiny-llama") as asynchronous:
            made = await asynchronous.generate("x", max_tokens=1)
        with pytest.raises(RequestError, match="closed"):
            asynchronous.model.generate("x", max_tokens=1)
        return made

    assert asyncio.run(whole()).finish_reason
    with pytest.raises(cortiq.CortiqError, match="no known model"):
        asyncio.run(cortiq.load_async("no-such-model"))


def test_a_call_from_another_thread_during_a_stream_is_refused_and_harms_nothing(model):
    seen = []

    def other():
        try:
            model.generate("x", max_tokens=1)
        except RequestError as error:
            seen.append(str(error))

    with model.stream("One", **SEEDED) as stream:
        pieces = [next(stream)]
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        pieces += list(stream)
    assert "busy" in seen[0]
    assert facts(stream.generation) == facts(model.generate("One", **SEEDED))
