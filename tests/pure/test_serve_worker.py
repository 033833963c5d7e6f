"""The thread that owns an engine: what fails in it, what is cancelled, what is asked beside it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from serving import TINY

import cortiq
from cortiq.engine.request import make_request
from cortiq.engine.scheduler import EngineOptions
from cortiq.errors import BackendError, ExecutableLostError
from cortiq.options import GenerateOptions
from cortiq.serve.errors import ApiError
from cortiq.serve.generation_job import GenerationJob
from cortiq.serve.worker import Worker

LONG = "a prompt that is worth a copy of its rows"


@pytest.fixture(scope="module")
def model():
    with cortiq.load(TINY, context=512, threads=1) as loaded:
        yield loaded


def job(model, tokens=6, choices=1, prompt="hello"):
    options = GenerateOptions(max_tokens=tokens, temperature=0, ignore_eos=True)
    first = make_request(model.ids(prompt), options, model.program, model.eos_ids)
    return GenerationJob([replace(first, choice=choice) for choice in range(choices)])


def working(model, script, waiting=4, **options):
    """Run a coroutine with a worker."""

    async def run():
        worker = Worker(model, EngineOptions(**options), waiting)
        worker.start(asyncio.get_running_loop())
        try:
            return await asyncio.wait_for(script(worker), 60)
        finally:
            await asyncio.to_thread(worker.stop)

    return asyncio.run(run())


async def ended(made):
    """The last update of a job of one choice, and all its text."""
    text = ""
    while True:
        update = await made.updates.get()
        text += update.text
        if update.last:
            return update, text


def test_a_step_that_fails_ends_its_sequences_and_nothing_else(model):
    async def script(worker):
        step, failed = worker.engine._submit, []

        def fail_once(before):
            if not failed:
                failed.append(True)
                raise BackendError("a hiccup")
            return step(before)

        worker.engine._submit = fail_once
        first, second = job(model), job(model)
        worker.submit(first)
        update, _ = await ended(first)
        worker.submit(second)
        return update, await ended(second), worker.failed

    update, (_, text), failed = working(model, script)
    assert isinstance(update.error, BackendError) and failed is None
    assert text == model.generate("hello", max_tokens=6, ignore_eos=True).text


def test_an_executable_that_is_lost_is_told_by_the_worker(model):
    """What `GET /health` reports: the thread goes on, and nothing can be computed."""

    async def script(worker):
        def lost(before):
            raise ExecutableLostError("a rank is gone")

        worker.engine._submit = lost
        made = job(model)
        worker.submit(made)
        return (await ended(made))[0].error, worker.failed

    error, failed = working(model, script)
    assert isinstance(error, ExecutableLostError) and failed is error


def test_a_thread_that_ends_tells_everybody_then_and_later(model):
    def die():
        raise SystemExit("gone")

    async def script(worker):
        worker.engine.step = die
        before, after = job(model), job(model)
        worker.submit(before)
        first, _ = await ended(before)
        worker.submit(after)
        second, _ = await ended(after)
        return first.error, second.error, worker.failed

    *errors, failed = working(model, script)
    assert isinstance(failed, SystemExit)
    assert all("has ended" in str(error) for error in errors)


def test_a_job_that_is_cancelled_takes_no_step_more(model):
    async def script(worker):
        made = job(model, tokens=400, choices=3)
        worker.submit(made)
        while (await made.updates.get()).text == "":
            pass
        worker.cancel(made)
        while not made.done:
            await asyncio.sleep(0.01)
        return made.late_steps, len(made.sequences[0].output.token_ids)

    late, tokens = working(model, script)
    assert late <= 1 and tokens < 400


def test_other_choices_of_a_prompt_go_on_from_its_rows(model):
    model.keep_prefixes(4)

    async def script(worker):
        made = job(model, choices=3, prompt=LONG)
        worker.submit(made)
        while not made.done:
            await asyncio.sleep(0.01)
        return [made.sequences[choice].stats.reused_tokens for choice in range(3)]

    try:
        assert working(model, script) == [0, len(LONG) - 1, len(LONG) - 1]
    finally:
        model.drop_prefixes()


def test_work_beside_the_engine_goes_step_by_step_and_can_be_cancelled(model):
    closed = []

    def steps(count):
        try:
            for _ in range(count):
                yield None
            yield "done"
        finally:
            closed.append(count)

    async def script(worker):
        made = job(model, tokens=20)
        worker.submit(made)
        short, long = worker.compute(steps(5)), worker.compute(steps(10**9))
        assert await short == "done"
        long.cancel()
        await ended(made)
        while 10**9 not in closed:
            await asyncio.sleep(0.01)

        def broken():
            raise ApiError(400, "no")
            yield

        with pytest.raises(ApiError, match="no"):
            await worker.compute(broken())

    working(model, script)


def test_more_than_may_wait_are_refused_and_a_free_place_is_no_waiting(model):
    async def script(worker):
        jobs = [job(model, tokens=300) for _ in range(4)]
        for made in jobs:
            worker.submit(made)
        kinds = [(await made.updates.get()).error for made in jobs]
        for made in jobs:
            worker.cancel(made)
        return [getattr(error, "code", None) for error in kinds]

    assert working(model, script, waiting=1, sequences=2) == [None, None, None, "queue_full"]


def test_of_those_that_wait_the_most_urgent_comes_first(model):
    """One place, and requests that are all there before the first step.

    The order is that of the worker's deliveries: a task that waits for an update may wake late.
    """
    order = []

    class Updates(asyncio.Queue):
        def __init__(self, name):
            super().__init__()
            self.name = name

        def put_nowait(self, update):
            if update.last:
                order.append(self.name)
            super().put_nowait(update)

    async def run():
        worker = Worker(model, EngineOptions(sequences=1), 4)
        jobs = {name: job(model, tokens=2) for name in (-50, 0, 50)}
        for priority, made in jobs.items():
            made.priority, made.updates = priority, Updates(priority)
            worker.submit(made)
        worker.start(asyncio.get_running_loop())
        await asyncio.wait_for(asyncio.gather(*map(ended, jobs.values())), 60)
        await asyncio.to_thread(worker.stop)

    asyncio.run(run())
    assert order == [50, 0, -50]
