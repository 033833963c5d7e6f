"""Draft heads: the formula, the rows they keep, and that they change nothing."""

from __future__ import annotations

import dataclasses
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from engines import backends
from heads_float64 import Geometry, Names, module
from rounds import forward, speculated
from test_drafters import COUNT, PROMPT, SAMPLINGS, asking

import cortiq
from cortiq.backend import Argmax, Batch, CompileOptions, Named, Row, Status
from cortiq.bench.head_acceptance import feed_forward, prefix_rates, teacher_forced
from cortiq.engine.drafters.heads import HeadDrafter, final_rows
from cortiq.engine.drafting import Task
from cortiq.engine.policy.streak import Streak
from cortiq.errors import CortiqError, RequestError
from cortiq.ir import primitives_of
from cortiq.models import load_program
from cortiq.models.fixture_heads import MimoHead
from cortiq.models.head_names import synthetic_plan
from cortiq.models.head_tensors import EveryTensorPresent
from cortiq.models.heads import with_heads
from cortiq.models.synthetic import open_synthetic
from cortiq.numerics.layouts import Weight
from cortiq_reference.ideal import dequantise, evaluate

KINDS = [("tiny-llama", "mtp"), ("tiny-llama", "mimo"), ("tiny-lfm2", "mtp:raw"),
         ("tiny-ties", "mtp"), ("tiny-mixtral", "mtp"), ("tiny-mimo", "mimo"),
         ("tiny-mimo", "mimo:post")]  # fmt: skip


@cache
def loaded(name, heads, layout="w16"):
    return load_program(open_synthetic(f"synthetic:{name}?format={layout}"), heads=heads)


@cache
def compiled(name, heads, backend="reference", layout="w16"):
    model = loaded(name, heads, layout)
    known = backends()
    made = known[backend if backend in known else "reference"]()
    options = CompileOptions(threads=1, extra={"poison": True})
    return made.compile(model.program, model.weights, options)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize(("name", "heads"), KINDS)
def test_a_head_changes_nothing_at_any_depth(name, heads, sampling):
    executable, how = compiled(name, heads, "cpu"), asking(SAMPLINGS[sampling])
    prompt = [t % executable.vocabulary for t in PROMPT]
    expected = speculated(executable, prompt, how, HeadDrafter(), lambda i: 0, COUNT)
    assert not expected.drafted
    trace = speculated(executable, prompt, how, HeadDrafter(), lambda i: 1 + i % 5, COUNT)
    assert trace.ids == expected.ids
    assert trace.drafted > COUNT


MTP = Names("mtp.layers.0", "mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.fc",
            "mtp.norm")  # fmt: skip


def mimo_names(k):
    layer = f"model.mtp.layers.{k}"
    parts = (f"{layer}.{part}" for part in ("enorm", "hnorm", "eh_proj", "final_layernorm"))
    return Names(layer, *parts, sinks=True)


FORMULAS = {
    "tiny-llama": ("mtp", "hidden", ["mtp"], [MTP], Geometry(4, 2, 16, 16, 1e4, 16, 1e-6)),
    "tiny-ties": ("mtp:raw", "layers.1.out", ["mtp"], [MTP], Geometry(2, 1, 4, 4, 1e4, 4, 1e-6)),
    "tiny-mimo": (
        "mimo", "layers.3.out", ["mtp.0", "mtp.1", "mtp.2"], [mimo_names(k) for k in range(3)],
        Geometry(4, 2, 8, 4, 1e4, 4, 1e-6, window=3),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMULAS)
def test_a_module_is_the_formula_in_float64(name):
    heads, source, entries, all_names, how = FORMULAS[name]
    model = loaded(name, heads)
    ids = [(11 * i + 5) % 60 for i in range(30)]
    trunk = evaluate(model.program, model.weights, ids[:-3], [source])[source]

    def tensor(tensor_name):
        return dequantise(model.weights[tensor_name])

    table = tensor("model.embed_tokens.weight")
    head = tensor("lm_head.weight") if "lm_head.weight" in model.weights else table
    for k, (entry, names) in enumerate(zip(entries, all_names, strict=True)):
        tokens = np.array(ids[k + 1 : k + 1 + len(trunk)])
        graph = primitives_of(model.program).graphs[entry]
        given = {"recalled": trunk.reshape(-1, *graph.values["recalled"].shape)}
        wants = ["logits", f"{entry}.out"]
        ours = evaluate(model.program, model.weights, tokens, wants, entry, given)
        out, logits = module(tensor, names, how, tokens, trunk, table, head)
        assert np.abs(ours["logits"] - logits).max() < 1e-5 * np.abs(logits).max()
        assert np.abs(ours[f"{entry}.out"] - out).max() < 1e-5 * np.abs(out).max()


def rows_of(executable, state, entry, ids, start, wants=()):
    rows = [Row(state, start + i, t, wants) for i, t in enumerate(ids)]
    result = executable.forward(Batch(rows, entry)).result()
    return result.outcomes[state], result.rows


@pytest.mark.parametrize("name", FORMULAS)
def test_the_contract_is_close_to_float64(name):
    heads, source, entries, _, _ = FORMULAS[name]
    model, executable = loaded(name, heads), compiled(name, heads)
    ids = [(11 * i + 5) % 60 for i in range(30)]
    trunk = evaluate(model.program, model.weights, ids, [source])[source]
    state = executable.open(40)
    rows_of(executable, state, "trunk", ids, 0)
    shape = executable.program.graphs[entries[0]].values["recalled"].shape
    given = {"recalled": trunk.reshape(-1, *shape)}
    ideal = evaluate(model.program, model.weights, ids, ["logits"], entries[0], given)["logits"]
    _, rows = rows_of(executable, state, entries[0], ids, 0, (Named("logits"),))
    ours = np.stack([row[Named("logits")] for row in rows])
    norms = np.linalg.norm(ours - ideal, axis=-1) / np.linalg.norm(ideal, axis=-1)
    assert 0 < norms.max() < 2e-3


def with_final_norm(model):
    """T41's model: the trunk's last norm is 0.5 + 0.1·i."""
    norm = Weight.from_floats((0.5 + 0.1 * np.arange(16, dtype=np.float32))[None])
    return {**model.weights, "model.norm.weight": norm}


@pytest.mark.parametrize("backend", backends())
@pytest.mark.parametrize("heads", ["mimo", "mimo:post"])
def test_t41_incremental_rounds_are_the_teacher_forced_table(heads, backend):
    model, ids = loaded("tiny-mimo", heads), [(11 * i + 5) % 64 for i in range(14)]
    executable = backends()[backend]().compile(
        model.program, with_final_norm(model), CompileOptions(threads=1)
    )
    table = teacher_forced(executable, ids, 3)
    assert len({draft for row in table for draft in row}) > 3
    state = executable.open(20)
    rows_of(executable, state, "trunk", ids, 0)
    for layer, entry in enumerate(executable.program.facts["draft_head"].entries):
        tokens = ids[layer + 1 :]
        _, rows = rows_of(executable, state, entry, tokens, 0, (Argmax(),))
        whole = [row[Argmax()] for row in rows]
        count = min(len(table), len(whole))
        assert [row[layer] for row in table[:count]] == whole[:count]
    assert len(prefix_rates(table, ids)) == 3


@pytest.mark.parametrize("heads", ["mimo", "mimo:post"])
def test_t41_the_table_is_that_of_the_formula_in_float64(heads):
    """Rows of either reading, with a last norm that is not 1: what wins clearly is drafted."""
    model, ids = loaded("tiny-mimo", heads, "f32"), [(11 * i + 5) % 64 for i in range(30)]
    weights = with_final_norm(model)
    executable = backends()["reference"]().compile(
        model.program, weights, CompileOptions(threads=1)
    )
    table = teacher_forced(executable, ids, 3)
    source = "hidden" if heads.endswith("post") else "layers.3.out"
    trunk = evaluate(model.program, weights, ids, [source])[source]
    how, compared = FORMULAS["tiny-mimo"][4], 0
    embed, head = (dequantise(weights[f"{n}.weight"]) for n in ("model.embed_tokens", "lm_head"))
    for k in range(3):
        tokens = np.array(ids[k + 1 :])
        names = mimo_names(k)
        logits = module(lambda n: dequantise(weights[n]), names, how, tokens, trunk[: len(tokens)],
                        embed, head)[1]  # fmt: skip
        for t, row in enumerate(logits[: len(table)]):
            second, first = np.sort(row)[-2:]
            if first - second > 1e-3 * np.abs(row).max():
                assert table[t][k] == row.argmax(), (k, t)
                compared += 1
    assert compared > 70


def test_rows_over_drafts_are_forgotten_and_the_others_kept():
    executable = compiled("tiny-mimo", "mimo", "cpu")
    ids, state = [(5 * i + 1) % 64 for i in range(12)], executable.open(30)
    task = Task(tuple(ids), 30, lambda text: Argmax(), executable, lambda: state)
    drafting = HeadDrafter().open(task)
    forward(executable, state, 0, ids[:-1], [None] * 11)
    first = drafting.propose(ids, 3)
    assert [state.length(f"mtp.{k}") for k in range(3)] == [11, 10, 9]
    assert drafting.propose(ids, 3) == first
    # A sequence cut elsewhere: rows that follow from ids it no longer has go too.
    other = state.fork(6)
    moved = HeadDrafter().open(Task((), 30, lambda text: Argmax(), executable, lambda: other))
    text = [*ids[:6], 60]
    assert moved.propose(text, 3) == alone(executable, text, 3)


def alone(executable, ids, count):
    state = executable.open(120)
    task = Task(tuple(ids), 120, lambda text: Argmax(), executable, lambda: state)
    forward(executable, state, 0, ids[:-1], [None] * (len(ids) - 1))
    return HeadDrafter().open(task).propose(ids, count)


def test_chunks_of_priming_change_no_draft(monkeypatch):
    from cortiq.engine.drafters import heads

    executable = compiled("tiny-llama", "mtp", "cpu")
    ids = [(7 * i + 3) % 300 for i in range(70)]
    expected = alone(executable, ids, 5)
    for size in (1, 7, 64):
        monkeypatch.setattr(heads, "CHUNK_ROWS", size)
        assert alone(executable, ids, 5) == expected


@pytest.mark.parametrize("backend", backends())
def test_a_row_that_the_trunk_has_not_computed_is_declined(backend):
    executable = compiled("tiny-llama", "mtp", backend)
    state = executable.open(20)
    rows_of(executable, state, "trunk", [1, 2, 3], 0)
    outcome, _ = rows_of(executable, state, "mtp", [2, 3, 4, 5], 0)
    assert outcome.status is Status.DECLINED
    assert "row 3 of 'recalled' is not there: the entry 'trunk' has seen 3 rows" in outcome.reason
    assert (state.length(), state.length("mtp")) == (3, 0)
    outcome, _ = rows_of(executable, state, "mtp", [2, 3, 4], 0)
    assert outcome.status is Status.COMPLETED


def test_without_a_head_nothing_is_there():
    bare, headed = loaded("tiny-llama", "off").program, loaded("tiny-llama", "mtp").program
    assert set(bare.graphs) == {"trunk"} and "draft_head" not in bare.facts
    assert bare.weights.keys() < headed.weights.keys() and bare.slots.keys() < headed.slots.keys()


@cache
def with_widths(widths):
    model = loaded("tiny-mimo", "off", "f32")
    program = with_heads(model.program, synthetic_plan("mimo", 4), MimoHead(widths))
    from cortiq.models.fixtures import mimo_weight

    weights = {n: mimo_weight(n, s.shape, "f32") for n, s in program.weights.items()}
    program = program.with_layouts(dict.fromkeys(weights, "f32"))
    return backends()["cpu"]().compile(program, weights, CompileOptions(threads=1))


def test_t39_every_draft_layer_has_a_width_of_its_own():
    found = feed_forward(with_widths((7, 13, 29)), [(9 * i + 5) % 64 for i in range(11)])
    assert [(len(f.mass), f.rows) for f in found] == [(7, 10), (13, 9), (29, 8)]
    assert all(np.isfinite(f.mass).all() and f.mass.min() >= 0 and f.mass.max() > 0 for f in found)


def test_t40_chunks_change_no_statistic():
    executable, ids = with_widths((7, 13, 29)), [(17 * i + 5) % 64 for i in range(263)]
    expected = feed_forward(executable, ids, 1000)
    for size in (1, 7, 128):
        for ours, theirs in zip(feed_forward(executable, ids, size), expected, strict=True):
            assert ours.rows == theirs.rows
            assert (ours.mass == theirs.mass).all() and (ours.squared == theirs.squared).all()


def test_t14_a_prompt_s_last_row_has_no_pair_yet():
    primed = [final_rows(256, fed, 0) for fed in (0, 128, 256)]
    assert [stop - start for start, stop in pairwise(primed)] == [128, 127]
    assert final_rows(256, 300, 0) == 255 and final_rows(1, 1, 0) == final_rows(2, 2, 2) == 0


def test_t22_the_probe_sees_the_module_s_own_width():
    model, ids = with_module_of_width(11), [3, 9, 4, 12, 7, 2]
    executable = backends()["reference"]().compile(
        model.program, model.weights, CompileOptions(threads=1)
    )
    (found,) = feed_forward(executable, ids)
    assert (len(found.mass), found.rows) == (11, 5)
    # The sums of what the float64 graph says of the module's rows, and of no others.
    trunk = evaluate(model.program, model.weights, ids, ["hidden"])["hidden"][:-1]
    shape = primitives_of(model.program).graphs["mtp"].values["recalled"].shape
    given, want = {"recalled": trunk.reshape(-1, *shape)}, "mtp.mlp.product"
    exact = evaluate(model.program, model.weights, ids[1:], [want], "mtp", given)[want]
    np.testing.assert_allclose(found.mass, np.abs(exact).sum(axis=0), rtol=1e-3, atol=1e-7)
    np.testing.assert_allclose(found.squared, (exact**2).sum(axis=0), rtol=1e-3, atol=1e-9)
    assert found.mass.min() > 0
    assert executable.states == []
    with pytest.raises(CortiqError, match="out of range"):
        feed_forward(executable, [3, 9, 100_000])
    assert executable.states == []
    with pytest.raises(RequestError, match="without a draft head"):
        feed_forward(compiled("tiny-ties", "off"), [3, 9])


@cache
def with_module_of_width(width):
    """`tiny-ties` with a module whose MLP is narrower than the trunk's, which has 16 neurons."""
    from cortiq.models.fixtures import ties_weight

    class Narrow(EveryTensorPresent):
        def rows(self, name):
            return width if name.endswith("gate_proj.weight") else None

    model = loaded("tiny-ties", "off", "f32")
    program = with_heads(model.program, synthetic_plan("mtp", 2), Narrow())
    weights = {n: ties_weight(n, s.shape, "f32") for n, s in program.weights.items()}
    program = program.with_layouts(dict.fromkeys(weights, "f32"))
    return dataclasses.replace(model, program=program, weights=weights)


def test_t23_t25_a_head_through_exact_ties_and_only_where_it_is_asked_for():
    with cortiq.load("synthetic:tiny-ties", backend="cpu", threads=1, heads="mtp") as model:
        plain = model.generate("abcdef", max_tokens=12)
        drafted = model.generate("abcdef", max_tokens=12, draft="mtp", draft_depth=2)
        assert drafted.token_ids == plain.token_ids
        assert plain.stats.drafts.drafted == 0 < drafted.stats.drafts.drafted


def test_t06_rows_outside_the_shortlist_are_never_drafted_and_change_nothing():
    names = {"heads": "mtp", "backend": "cpu", "threads": 1}
    with (
        cortiq.load("synthetic:tiny-llama", draft_vocabulary=40, **names) as short,
        cortiq.load("synthetic:tiny-llama", draft_vocabulary=320, **names) as whole,
    ):
        weights = short.program.weights
        assert weights["model.embed_tokens.weight#40"].shape == (40, 64)
        assert not any("#" in name for name in whole.program.weights)
        ids, plain = [5, 9, 11, 80, 7], whole.generate([5, 9, 11, 80, 7], max_tokens=20)
        drafts = alone(short.executable, ids, 6)
        assert max(drafts.ids) < 40
        made = short.generate(ids, max_tokens=20, draft="mtp", draft_depth=3)
        assert (made.token_ids, made.fingerprint) == (plain.token_ids, plain.fingerprint)


def test_t06_the_shortlist_s_scores_are_the_head_s_own():
    executable = compiled_short()
    ids, state = [(11 * i + 5) % 60 for i in range(12)], executable.open(20)
    rows_of(executable, state, "trunk", ids, 0)
    wants = (Named("logits"), Named("shortlist"))
    _, rows = rows_of(executable, state, "mtp", ids[1:], 0, wants)
    for row in rows:
        assert (row[wants[0]][:50] == row[wants[1]]).all()


@cache
def compiled_short():
    model = load_program(open_synthetic("synthetic:tiny-llama"), heads="mtp", draft_vocabulary=50)
    return backends()["reference"]().compile(
        model.program, model.weights, CompileOptions(threads=1)
    )


def test_t08_a_far_id_brings_the_whole_vocabulary_back_for_a_while():
    fresh = Streak(65536)
    assert not fresh.full and not fresh.after(range(100)).full
    far = fresh.after([200000])
    assert far.full and far.after([1] * 15).full and not far.after([1] * 16).full
    assert not fresh.after([100000]).full and Streak(150000).after([140000]).left == 0
