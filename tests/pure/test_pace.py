"""How many rows a batch has: the device's, the options', and prompts beside what decodes."""

from __future__ import annotations

import pytest
from engines import TOKENIZER, Deferred, alone, executable, facts, prompt, request

from cortiq.backend import BATCH_ROWS
from cortiq.backend.seam import CheckedExecutable
from cortiq.engine.engine import Engine
from cortiq.engine.pace import LEAST_ROWS, STEP, Pace
from cortiq.engine.row_budget import RowDemand, divide_rows
from cortiq.engine.scheduler import EngineOptions


def demand(rows, decodes, urgency=0):
    return RowDemand(rows, rows, decodes, 0, (urgency, urgency))


class Wide:
    """An executable on a device that many rows suit; counts the rows of every batch."""

    def __init__(self, inner, rows):
        self.inner, self.batch_rows, self.rows = inner, rows, []

    def forward(self, batch):
        self.rows.append(len(batch.rows))
        return self.inner.forward(batch)

    def __getattr__(self, name):
        return getattr(self.inner, name)


def test_prompts_have_all_rows_alone_and_their_limit_beside_what_decodes():
    long = [demand(3000, False, 1), demand(3000, False, 2)]
    assert [g.rows for g in divide_rows(long, 2048, 300)] == [2048, 0]
    beside = [*long, *(demand(1, True, 9) for _ in range(3))]
    assert [g.rows for g in divide_rows(beside, 2048, 300)] == [297, 0, 1, 1, 1]  # 300 in all
    assert [g.rows for g in divide_rows(beside, 2048)] == [2045, 0, 1, 1, 1]
    assert [g.rows for g in divide_rows(beside, 4, 0)] == [1, 0, 1, 1, 1]


def test_the_pace_is_what_the_device_reaches_and_never_less_than_it_is_worth():
    pace = Pace(0.05, 2048)
    assert pace.prompt_rows == LEAST_ROWS
    for _ in range(20):
        pace.record(512, 512 / 24000)
    assert pace.prompt_rows == 24000 * 0.05 // STEP * STEP
    pace.record(LEAST_ROWS - 1, 1e-9)
    pace.record(4096, 0.0)
    assert pace.prompt_rows == 24000 * 0.05 // STEP * STEP
    for _ in range(40):
        pace.record(2048, 100.0)
    assert pace.prompt_rows == LEAST_ROWS
    for _ in range(40):
        pace.record(2048, 1e-3)
    assert pace.prompt_rows == 2048


@pytest.mark.parametrize(("asked", "used"), [(None, 300), (7, 7)])
def test_a_batch_has_the_rows_that_suit_the_device_unless_somebody_says_otherwise(asked, used):
    on = Wide(executable(), 300)
    wanted = request(prompt(1, 310), 2)
    with Engine(on, TOKENIZER, options=EngineOptions(batch_rows=asked)) as engine:
        made = engine.submit(wanted)
        engine.run()
    assert max(on.rows) == used and sum(on.rows) == 311
    assert facts(made) == alone(executable(), wanted)


def test_who_does_not_say_gets_the_usual_rows_and_as_many_sequences_as_suit_them():
    assert CheckedExecutable("acme", object()).batch_rows == BATCH_ROWS == executable().batch_rows
    assert EngineOptions().limits(256).sequences == 64
    assert EngineOptions().limits(2048).sequences == 256
    assert EngineOptions(sequences=3).limits(2048).sequences == 3


def test_a_preemption_does_not_stop_what_runs_ahead():
    """Memory for two: the urgent one takes the place of one, whose rows were under way."""
    on = executable("cpu", "tiny-llama", memory_limit=2 * executable().state_bytes(64))
    device = Deferred(on)
    wanted = [request(prompt(i, 20), 40) for i in range(3)]
    expected = [alone(executable(), one) for one in wanted]
    with Engine(device, TOKENIZER) as engine:
        made = [engine.submit(one) for one in wanted[:2]]
        for _ in range(4):
            engine.step()
        made.append(engine.submit(wanted[2], priority=2))
        ahead = []
        while engine.step():
            ahead.append(len(device.pending))
    assert [facts(one) for one in made] == expected
    assert sum(one.stats.preempted for one in made) >= 1
    assert 0 not in ahead[:-1]
