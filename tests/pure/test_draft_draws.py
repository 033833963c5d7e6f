"""Drafts are drawn where the head's logits are, with the numbers that the target will draw with."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from engines import backends
from rounds import forward

from cortiq.backend import Argmax, Batch, CompileOptions, Draw, Named, Row, Status
from cortiq.engine.drafters.blocks import BlockDrafter
from cortiq.engine.drafters.heads import HeadDrafter
from cortiq.engine.drafting import Task
from cortiq.models import load_program
from cortiq.models.synthetic import open_synthetic
from cortiq.numerics import sampling
from cortiq.numerics.masks import mask_of
from cortiq.numerics.sampling import Sampling

LOGITS = Named("logits")
IDS = [(11 * i + 5) % 40 for i in range(14)]
PLAIN = Sampling(temperature=0.9, top_p=0.95, seed=11)
WANTS = {
    "greedy": lambda text, vocabulary: Argmax(),
    "sampled": lambda text, vocabulary: Draw(PLAIN, 2),
    "penalised": lambda text, vocabulary: Draw(Sampling(0.8, repetition_penalty=1.4, seed=3)),
    "biased": lambda text, vocabulary: Draw(Sampling(logit_bias={60: 3.0, 2: -1.0}, seed=5)),
    "masked": lambda text, vocabulary: Draw(
        PLAIN, mask=mask_of(range(len(text) % 3, vocabulary, 3), vocabulary)
    ),
}


@cache
def compiled(name, heads, backend, short=0):
    model = load_program(open_synthetic(f"synthetic:{name}"), heads=heads, draft_vocabulary=short)
    options = CompileOptions(threads=1)
    known = backends()
    made = known[backend if backend in known else "reference"]()
    return made.compile(model.program, model.weights, options)


class Watched:
    """An executable whose rows that draw bring their logits too."""

    def __init__(self, executable):
        self.executable, self.program = executable, executable.program
        self.seen, self.brought = [], []

    def __getattr__(self, name):
        return getattr(self.executable, name)

    def forward(self, batch):
        rows = [
            Row(r.state, r.position, r.token, (*r.wants, LOGITS) if draws(r) else r.wants, r.inputs)
            for r in batch.rows
        ]
        ticket = self.executable.forward(Batch(rows, batch.entry))
        pairs = zip(rows, ticket.result().rows, strict=True)
        self.seen += [(draws(row), brought[LOGITS]) for row, brought in pairs if draws(row)]
        return ticket


def draws(row):
    return next((w for w in row.wants if isinstance(w, Argmax | Draw)), None)


def drafted(executable, drafter, want_at, count):
    """The drafts after IDS, and what each was drawn from."""
    watched, state = Watched(executable), executable.open(60)
    forward(executable, state, 0, IDS[:-1], [None] * (len(IDS) - 1))
    task = Task(tuple(IDS), 60, want_at, watched, lambda: state)
    drafts = drafter.open(task).propose(IDS, count).ids
    state.release()
    return drafts, watched.seen[-len(drafts) :]


KINDS = [("tiny-llama", "mtp", 0, 4), ("tiny-llama", "mtp", 48, 4), ("tiny-mimo", "mimo", 0, 3),
         ("tiny-llama", "dflash", 0, 3)]  # fmt: skip


@pytest.mark.parametrize("backend", backends())
@pytest.mark.parametrize("how", WANTS)
@pytest.mark.parametrize(("name", "heads", "short", "count"), KINDS)
def test_a_draft_is_what_the_target_would_draw_of_its_logits(
    name, heads, short, count, how, backend
):
    executable = compiled(name, heads, backend, short)
    vocabulary = executable.program.trunk.values["logits"].shape[0]
    drafter = BlockDrafter() if heads == "dflash" else HeadDrafter()
    drafts, seen = drafted(executable, drafter, lambda t: WANTS[how](t, vocabulary), count)
    apart = heads == "dflash" and how in ("penalised", "masked")
    assert len(drafts) == count and len(seen) == (0 if apart else count)
    for i, (want, logits) in enumerate(seen):
        text = [*IDS, *drafts[:i]]
        wanted = WANTS[how](text, vocabulary)
        shortened = short and how in ("greedy", "sampled")
        x = logits[:short] if shortened else logits
        assert want.name == ("shortlist" if shortened else "logits")
        if isinstance(wanted, Argmax):
            assert drafts[i] == x.argmax()
        else:
            choice, mask = wanted.choice, wanted.mask
            assert drafts[i] == sampling.draw(
                x, wanted.sampling, text, len(text), choice, mask=mask
            )


@pytest.mark.parametrize("backend", backends())
@pytest.mark.parametrize(
    ("want", "reason"),
    [
        (Draw(PLAIN, ahead=-1), "a token -1 positions ahead"),
        (Draw(PLAIN, ahead=1.0), "a token 1.0 positions ahead"),
        (Draw(PLAIN, history=(4, 320)), "history names token 320 of 320"),
        (Draw(PLAIN, name="nothing"), "the graph has no value 'nothing'"),
        (Argmax("nothing"), "the graph has no value 'nothing'"),
        (Argmax("token"), "tokens are drawn from a row of f32 logits"),
    ],
)
def test_a_draw_that_cannot_be_is_declined(want, reason, backend):
    executable = compiled("tiny-llama", "mtp", backend)
    state = executable.open(9)
    outcome = executable.forward(Batch([Row(state, 0, 3, (want,))])).result().outcomes[state]
    assert outcome.status is Status.DECLINED and reason in outcome.reason
    assert state.length() == 0
    state.release()


def test_history_is_looked_at_only_where_it_counts():
    """A draw is the same with and without a history that repeats the sequence's own ids."""
    executable, how = compiled("tiny-llama", "mtp", "cpu"), Sampling(frequency_penalty=2.0, seed=4)
    own, given, other = Draw(how), Draw(how, history=tuple(IDS)), Draw(how, history=(1,) * 99)
    state = executable.open(20)
    forward(executable, state, 0, IDS[:-1], [None] * (len(IDS) - 1))
    rows = [Row(state, len(IDS) - 1, IDS[-1], (own, given, other, LOGITS))]
    (brought,) = executable.forward(Batch(rows)).result().rows
    expected = sampling.draw(brought[LOGITS], how, [1] * 99, len(IDS))
    assert brought[own] == brought[given] and brought[other] == expected
    assert np.isfinite(brought[LOGITS]).all()
    state.release()


@pytest.mark.parametrize("count", [48, 50])
def test_a_shortlist_of_whole_panels_is_no_second_copy(count):
    pytest.importorskip("cortiq_cpu")
    from concurrent.futures import ThreadPoolExecutor

    from cortiq.ir import primitives_of
    from cortiq_cpu.weights import PackedWeights

    model = load_program(
        open_synthetic("synthetic:tiny-llama"), heads="mtp", draft_vocabulary=count
    )
    name = next(name for name in model.weights if name.endswith(f"#{count}"))
    whole = name.removesuffix(f"#{count}")
    with ThreadPoolExecutor(1) as pool:
        packed = PackedWeights(model.weights, pool)
        for graph in primitives_of(model.program).graphs.values():
            for node in graph.nodes:
                packed.prepare(node)
    shared = packed._matrices[name].data is packed._matrices[whole].data
    assert shared == (count == 48) and model.weights[name].whole is model.weights[whole]
