"""Pages that take turns: never more than was promised, and never one that others read."""

from __future__ import annotations

import random

import numpy as np
import pytest

from cortiq.backend.pages import PageGroup, PageMemory, PagePool, PageTable

BYTES, MOST, REACH = 10, 4, 30


class Arrays(PageMemory):
    """Pages are arrays of the host."""

    def allocate(self, group):
        return np.zeros(BYTES, np.uint8)

    def free(self, group, data):
        data[:] = 255

    def copy(self, group, source, target):
        target[:] = source

    def spoil(self, group, data):
        data[:] = 254


class Counting(PagePool):
    """Pages whose rows are the number that their sequence gave them."""

    def __init__(self):
        super().__init__(Arrays())
        self.closed = False

    def new(self, group, source=None):
        assert not self.closed, "a page that was not promised"
        return super().new(group, source)


class Walk:
    """Tables that provide, take turns, are shared and dropped, beside what each page must hold."""

    def __init__(self, seed):
        self.chance, self.pages = random.Random(seed), Counting()
        self.tables, self.held, self.reach, self.marks = [self._new()], [{}], [0], 0

    def _new(self):
        return PageTable(self.pages, PageGroup(0, "trunk", MOST, BYTES))

    def go(self):
        index = self.chance.randrange(len(self.tables))
        kind = self.chance.random()
        if kind < 0.2:
            self.reach[index] = max(self.reach[index], self.chance.randrange(REACH))
            lacking = self.tables[index].lacking(self.reach[index])
            before = self.pages.nbytes
            self.tables[index].provide(self.reach[index])
            assert self.pages.nbytes - before <= lacking
        elif kind < 0.6:
            self._write(index)
        elif kind < 0.75 and len(self.tables) < 6:
            self._share(index)
        elif kind < 0.85:
            self._restore(index, self.chance.randrange(len(self.tables)))
        elif len(self.tables) > 1:
            self.tables[index].clear()
            for known in (self.tables, self.held, self.reach):
                del known[index]
        for table, held in zip(self.tables, self.held, strict=True):
            for number, mark in held.items():
                if number >= table.first:
                    assert table.pages[number - table.first].data[0] == mark

    def _write(self, index):
        """The next page of a sequence is written, once what is shared of it is copied."""
        table, held = self.tables[index], self.held[index]
        number = max(held, default=table.first - 1) + 1
        if number >= self.reach[index]:
            return
        self.pages.closed = True
        table.turn(number + 1)
        self.pages.closed = False
        assert len(table.pages) <= MOST and table.pages[number - table.first].users == 1
        self.marks = self.marks % 250 + 1
        table.pages[number - table.first].data[:] = held[number] = self.marks

    def _share(self, index):
        """A fork takes what is there; the first then has what it was promised, whoever reads."""
        table, held = self.tables[index], self.held[index]
        stop = max(held, default=-1) + 1
        lacking, before = table.lacking(self.reach[index], table.used(stop)), self.pages.nbytes
        run = table.share(stop)
        table.provide(self.reach[index])
        assert self.pages.nbytes - before <= lacking
        other = self._new()
        after, before = other.lacking_after(run, stop), self.pages.nbytes
        other.become(run)
        self.pages.decref(run[1])
        other.provide(stop)
        assert self.pages.nbytes - before <= after
        self.tables.append(other), self.held.append(dict(held)), self.reach.append(stop)

    def _restore(self, index, source):
        """A sequence becomes what one is, and keeps the room it had."""
        table, held = self.tables[index], dict(self.held[source])
        stop = max(held, default=-1) + 1
        run = self.tables[source].share(stop)
        self.tables[source].provide(self.reach[source])
        self.reach[index] = max(self.reach[index], stop)
        lacking, before = table.lacking_after(run, self.reach[index]), self.pages.nbytes
        table.become(run)
        table.provide(self.reach[index])
        assert self.pages.nbytes - before <= lacking
        self.pages.decref(run[1])
        self.held[index] = held


@pytest.mark.parametrize("seed", range(40))
def test_pages_take_turns(seed):
    walk = Walk(seed)
    for _ in range(150):
        walk.go()
    for table in walk.tables:
        table.clear()
    assert (walk.pages.count, walk.pages.nbytes) == (0, 0)


def test_a_sequence_alone_takes_its_limit_and_no_more():
    pages = Counting()
    table = PageTable(pages, PageGroup(0, "trunk", MOST, BYTES))
    assert [table.lacking(n) for n in (0, 2, MOST, REACH)] == [0, 20, 40, 40]
    table.provide(REACH)
    for number in range(REACH):
        table.turn(number + 1)
    assert (pages.nbytes, table.first, table.end) == (MOST * BYTES, REACH - MOST, REACH)
    table.become((0, []))
    assert table.lacking(2) == 0
    table.provide(2)
    assert pages.nbytes == 2 * BYTES
