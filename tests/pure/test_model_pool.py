"""Models that are loaded when requests name them: order, limits, turns, failures."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cortiq.errors import DownloadError
from cortiq.serve import model_mover, model_pool, start
from cortiq.serve.errors import ApiError
from cortiq.serve.model_mover import PoolLimits
from cortiq.serve.model_pool import ModelPool
from cortiq.serve.options import ServeOptions

SIZE = 10


class Loader:
    """Makes stand-ins of models; counts those that are open."""

    def __init__(self):
        self.open, self.most, self.log = set(), 0, []
        self.fails: list[BaseException] = []
        self.gate = threading.Event()
        self.gate.set()

    def load(self, name):
        self.gate.wait(10)
        self.log.append(f"+{name}")
        if self.fails:
            raise self.fails.pop(0)
        self.open.add(name)
        self.most = max(self.most, len(self.open))
        worker = SimpleNamespace(start=lambda loop: None, stop=lambda: None)
        model = SimpleNamespace(model_hash=f"hash of {name}")
        return SimpleNamespace(name=name, model=model, worker=worker, as_dict=lambda: {"id": name})

    def close(self, served):
        self.log.append(f"-{served.name}")
        self.open.remove(served.name)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """No tensors to measure, and turns that end soon."""
    monkeypatch.setattr(model_mover, "tag_object", lambda served: {"size": SIZE})
    monkeypatch.setattr(model_mover, "file_bytes", lambda source: SIZE)
    monkeypatch.setattr(model_mover, "LEAST_TURN", 0.02)
    monkeypatch.setattr(model_mover, "CHECK_SECONDS", 0.01)
    monkeypatch.setattr(model_pool, "POLL_SECONDS", 0.001)


def pooled(script, names="abc", may_pull=lambda name: False, **limits):
    """Run a coroutine with a pool; the loader that it used."""
    loader = Loader()

    async def run():
        limited = PoolLimits(**{"loaded": 1, "wait_seconds": 5.0, **limits})
        pool = ModelPool({n: n for n in names}, loader.load, loader.close, limited, may_pull)
        pool.start()
        try:
            await asyncio.wait_for(script(pool, loader), 20)
        finally:
            await asyncio.to_thread(pool.stop)
            pool.close()

    asyncio.run(run())
    assert not loader.open
    return loader


async def use(pool, name, seconds=0.0):
    """Hold a model for a while, as a request does."""
    model = pool.find(name)
    served = await pool.acquire(model)
    assert served.name == name and model.served is served
    await asyncio.sleep(seconds)
    assert model.served is served, "it was taken away from a request"
    pool.release(model)


async def until(holds):
    """Return when something holds; the run's own limit is the only one."""
    while not holds():
        await asyncio.sleep(0.002)


def test_what_was_used_last_stays():
    async def script(pool, loader):
        for name in "abacab":
            await use(pool, name)

    assert pooled(script, loaded=2).log == ["+a", "+b", "-b", "+c", "-c", "+b", "-a", "-b"]


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 3)), max_size=24),
       st.integers(1, 3))  # fmt: skip
def test_every_request_holds_its_model_and_places_are_never_exceeded(requests, places):
    async def script(pool, loader):
        await asyncio.gather(*(use(pool, name, steps / 500) for name, steps in requests))
        assert all(not model.users and not model.waiters for model in pool.values())

    assert pooled(script, "abcd", loaded=places).most <= places


def test_a_model_in_constant_use_gives_its_place_up():
    async def script(pool, loader):
        done = asyncio.Event()

        async def keep_asking():
            while not done.is_set():
                await use(pool, "a", 0.002)

        asking = [asyncio.create_task(keep_asking()) for _ in range(4)]
        await asyncio.sleep(0.01)
        await use(pool, "b")
        done.set()
        await asyncio.gather(*asking)

    assert pooled(script).log[:3] == ["+a", "-a", "+b"]


def test_states_say_what_a_request_waits_for():
    async def script(pool, loader):
        loader.gate.clear()
        first = asyncio.create_task(use(pool, "a"))
        await until(lambda: pool["a"].state == "loading")
        other = asyncio.create_task(use(pool, "b"))
        await until(lambda: pool["b"].state == "waiting")
        assert [pool[n].as_dict()["state"] for n in "abc"] == ["loading", "waiting", "unloaded"]
        assert [pool[n].as_dict()["waiting"] for n in "abc"] == [1, 1, 0]
        loader.gate.set()
        await first
        await other
        assert [pool[n].state for n in "ab"] == ["unloaded", "loaded"]

    pooled(script)


def test_who_waits_too_long_or_as_one_too_many_is_told():
    async def script(pool, loader):
        loader.gate.clear()
        waiting = asyncio.create_task(use(pool, "a"))
        await asyncio.sleep(0)
        with pytest.raises(ApiError) as refused:
            await use(pool, "b")
        assert (refused.value.status, refused.value.code) == (429, "queue_full")
        with pytest.raises(ApiError) as late:
            await waiting
        assert (late.value.status, late.value.code) == (503, "model_waiting")
        loader.gate.set()
        await use(pool, "b")

    pooled(script, waiting=1, wait_seconds=0.1)


def test_a_failure_is_for_those_who_waited_and_the_next_request_tries_again():
    async def script(pool, loader):
        loader.fails.append(DownloadError("no network"))
        failed = await asyncio.gather(use(pool, "a"), use(pool, "a"), return_exceptions=True)
        assert [(one.status, one.code) for one in failed] == [(500, "load_failed")] * 2
        assert pool["a"].state == "failed" and "no network" in pool["a"].as_dict()["error"]
        await use(pool, "a")
        assert "error" not in pool["a"].as_dict()

    assert pooled(script).log == ["+a", "+a", "-a"]


def test_short_memory_unloads_what_is_idle_and_tries_again():
    async def script(pool, loader):
        await use(pool, "a")
        loader.fails.append(MemoryError())
        await use(pool, "b")
        loader.fails += [MemoryError(), MemoryError()]
        with pytest.raises(ApiError) as short:
            await use(pool, "c")
        assert (short.value.status, short.value.code) == (503, "out_of_memory")

    assert pooled(script, loaded=3).log[:4] == ["+a", "+b", "-a", "+b"]


def test_bytes_of_weights_are_a_limit_too():
    async def script(pool, loader):
        for name in "abcabc":
            await use(pool, name)

    assert pooled(script, loaded=3, size=SIZE * 5 // 2).most == 2
    assert pooled(script, loaded=3, size=SIZE // 2).most == 1  # each is too large, and alone


def test_idle_models_go_and_held_ones_stay():
    async def script(pool, loader):
        await pool.acquire(pool["a"])
        await use(pool, "b")
        await until(lambda: pool["b"].served is None)
        assert pool["a"].served is not None
        pool.keep(pool["a"], None)
        pool.release(pool["a"])
        await asyncio.sleep(0.1)
        assert pool["a"].served is not None
        pool.keep(pool["a"], 0.0)
        await until(lambda: pool["a"].state == "unloaded")

    pooled(script, loaded=2, keep_seconds=0.03)


def test_nothing_is_loaded_for_clients_that_left():
    async def script(pool, loader):
        gone = asyncio.create_task(use(pool, "b"))
        staying = asyncio.create_task(use(pool, "a", 0.05))
        await asyncio.sleep(0)
        gone.cancel()
        await staying
        await use(pool, "a")
        assert pool["b"].state == "unloaded" and pool["b"].served is None

    assert "+b" not in pooled(script).log


def test_loading_and_unloading_by_hand_wait_for_running_requests():
    async def script(pool, loader):
        await pool.load(pool["a"])
        await pool.acquire(pool["a"])
        leaving = asyncio.create_task(pool.unload(pool["a"]))
        await until(lambda: pool["a"].state == "draining")
        late = asyncio.create_task(use(pool, "a"))
        await asyncio.sleep(0.05)
        assert not leaving.done() and not late.done()
        pool.release(pool["a"])
        await leaving
        await late
        await pool.unload(pool["a"])
        assert pool["a"].state == "unloaded"
        await pool.unload(pool["a"])

    assert pooled(script).log == ["+a", "-a", "+a", "-a"]


def test_a_name_that_a_request_brings_stays_only_if_it_could_be_loaded():
    async def script(pool, loader):
        for name in ("c", "/etc/passwd"):
            with pytest.raises(ApiError) as unknown:
                pool.find(name)
            assert unknown.value.code == "model_not_found"
        loader.fails.append(DownloadError("no such model"))
        with pytest.raises(ApiError) as failed:
            await use(pool, "hf:a/b")
        assert failed.value.status == 404 and list(pool) == ["a"]
        await use(pool, "hf:a/b")
        assert list(pool) == ["a", "hf:a/b"]

    pooled(script, "a", may_pull=lambda name: name.startswith("hf:"))


def test_a_model_that_cannot_be_closed_holds_nobody_up():
    async def script(pool, loader):
        await use(pool, "a")
        close = loader.close
        failing = [RuntimeError("a lost device")]

        def fail_once(served):
            close(served)
            if failing:
                raise failing.pop()

        pool._mover._close = fail_once
        await use(pool, "b")
        await use(pool, "a")

    assert pooled(script).log[:4] == ["+a", "-a", "+b", "-b"]


@pytest.mark.parametrize(
    ("options", "loaded"),
    [
        ({}, "abc"),
        ({"max_loaded": 2}, "ab"),
        ({"model_bytes": 25}, "ab"),
        ({"model_bytes": 5}, "a"),
    ],
)
def test_at_the_start_there_are_as_many_models_as_have_room(monkeypatch, options, loaded):
    monkeypatch.setattr(start, "file_bytes", lambda source: SIZE)
    assert start.first_models("abc", ServeOptions(**options)) == list(loaded)
