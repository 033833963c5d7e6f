"""How ranks exchange: what `CORTIQ_EXCHANGE` asks for, and why memory is not shared."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest

from cortiq.errors import BackendError
from cortiq.ranks import connections, group
from cortiq.ranks import shared_rows as shared_rows_module
from cortiq.ranks.group import World
from cortiq.ranks.process_groups import place_on_host
from cortiq.ranks.shared_rows import EXCHANGE_VARIABLE, asked_exchange, no_rows, shared_rows


class Rows:
    """Stands for memory that peers write to; its peers refuse to open it if `refused`."""

    handle = b"mine"

    def __init__(self, refused: str = "") -> None:
        self.refused, self.connected, self.closed = refused, False, False
        self.expected = [b"mine", b"other"]

    def connect(self, handles: list[bytes]) -> None:
        """Take the handles, or refuse them."""
        if self.refused:
            raise BackendError(self.refused)
        assert handles == self.expected
        self.connected = True

    def close(self) -> None:
        """Note it."""
        self.closed = True


def told(host: str, why: str = "", refused: str = "") -> Any:
    """Return what asks rank 0, and a second rank that says these."""

    def ask(said: Any) -> list[Any]:
        return [said, (why, host, b"other") if isinstance(said, tuple) else refused]

    return ask


@pytest.mark.parametrize("way", ["", "memory", "nccl", "host"])
def test_ways_that_there_are(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(EXCHANGE_VARIABLE, way)
    assert asked_exchange() == way


@pytest.mark.parametrize("way", ["Memory", "gloo", " host", "memory,host"])
def test_no_such_way(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has the variable, what it is, and what there is."""
    monkeypatch.setenv(EXCHANGE_VARIABLE, way)
    with pytest.raises(BackendError) as caught:
        asked_exchange()
    assert (caught.value.what, caught.value.where) == (f"{way!r} is no exchange", EXCHANGE_VARIABLE)
    assert caught.value.hint == "There are memory, nccl and host."


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_memory_is_not_replaced_by_another_way(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backend without memory for peers ends the load, with the variable and the reason."""
    monkeypatch.setattr(group, "make_group", lambda *given: None)
    monkeypatch.setattr(group, "told", lambda connected, said: [said] * 2)
    monkeypatch.setenv(EXCHANGE_VARIABLE, "memory")
    with pytest.raises(BackendError, match="no memory for peers") as caught:
        World(0, 2, 1.0).make_group(0, (0, 1), device, no_rows)
    assert caught.value.where == EXCHANGE_VARIABLE
    monkeypatch.setenv(EXCHANGE_VARIABLE, "host")
    assert World(0, 2, 1.0).make_group(0, (0, 1), device, no_rows) == ""


@pytest.mark.parametrize(
    ("other", "own_refusal", "why"),
    [
        ({"host": "elsewhere"}, "", "ranks are on several hosts"),
        ({"why": "no room"}, "", "no room"),
        ({"refused": "no access to the GPU"}, "", "no access to the GPU"),
        ({}, "refused here", "refused here"),
        ({}, "", ""),
    ],
)
def test_memory_is_shared_by_all_or_closed(
    other: dict[str, str], own_refusal: str, why: str
) -> None:
    """Whatever a member lacks is said, and none keeps memory that is not used."""
    rows: Any = Rows(own_refusal)
    asks = told(**({"host": connections.this_host()} | other))
    assert shared_rows(lambda: rows, asks) == (None if why else rows, why)
    assert rows.closed == bool(why)
    assert rows.connected or why


def test_processes_of_a_host_name_it_alike() -> None:
    """`uuid.getnode` is drawn anew by each process where no hardware address is found."""
    code = "import uuid; uuid.getnode = lambda: 7\n"
    code += "from cortiq.ranks.connections import this_host; print(this_host())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == connections.this_host()


def test_places_are_counted_on_the_own_host() -> None:
    """By the names that all ranks say."""
    import torch.distributed

    store = torch.distributed.HashStore()
    for other in (1, 3):
        store.set(f"host of {other}", "elsewhere")
    assert [place_on_host(store, rank) for rank in (0, 2, 4)] == [0, 1, 2]


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(
    ("lacks", "why"),
    [
        ("nothing", ""),
        ("memory", "the backend has no memory for peers"),
        ("room", "no room here"),
        ("access", "a GPU has no access to another's memory"),
        ("host", "ranks are on several hosts"),
    ],
)
def test_all_ranks_come_to_one_end(
    size: int, lacks: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each asks the others as often, hears the same reason, and keeps nothing that is not used."""
    barrier, said = threading.Barrier(size, timeout=20), [Any] * size
    made: list[Any] = [Rows(), *(Rows() for _ in range(size - 1))]
    found: list[Any] = [None] * size
    here = threading.local()
    monkeypatch.setattr(shared_rows_module, "this_host", lambda: here.host)

    def work(rank: int) -> None:
        last = rank == size - 1
        here.host = "elsewhere" if last and lacks == "host" else "here"
        rows = made[rank]
        rows.handle = b"%d" % rank
        rows.expected = [b"%d" % other for other in range(size)]
        rows.refused = why if last and lacks == "access" else ""

        def make() -> Any:
            if last and lacks == "room":
                raise BackendError(why)
            return None if last and lacks == "memory" else rows

        def told(what: Any) -> list[Any]:
            said[rank] = what
            barrier.wait()
            every = list(said)
            barrier.wait()
            return every

        found[rank] = shared_rows(make, told)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found == [(None if why else rows, why) for rows in made]
    used = made[: size - 1] if lacks in ("memory", "room") else made
    assert [rows.closed for rows in used] == [bool(why)] * len(used)
    assert all(rows.connected for rows in made) or why
