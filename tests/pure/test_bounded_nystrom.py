"""`NystromAttend` of plugins/cortiq-bounded: its matrix form, its seal, its bits everywhere."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from bounded import MODEL, attention, computed, loaded_plugins, one_layer, rewritten_model, stepped

import cortiq
from cortiq.backend import CompileOptions, Kernel, StepKernel
from cortiq.errors import RequestError
from cortiq.ir.op import violations_of
from cortiq.numerics.contract import F32
from cortiq.placement.place import place
from cortiq.plugins import loading
from cortiq_bounded import nystrom
from cortiq_bounded.ideal import FORMULAS
from cortiq_bounded.landmarks import exp64, ridge_inverse, segment_means
from cortiq_bounded.layers import NystromAttention
from cortiq_bounded.nystrom import parts
from cortiq_bounded.ops import NystromAttend
from cortiq_conformance.runner import run
from cortiq_cpu.backend import CpuBackend
from cortiq_reference.ideal import evaluate

OP = NystromAttend(4, 2, 8, 4, 8**-0.5, seal=48, landmarks=4, window=16, sinks=4)


def rows_of(op, count, seed=0, size=0.5):
    """Normal q, k and v, and positions."""
    random = np.random.default_rng(seed)
    q, k, v = (
        (random.standard_normal((count, heads, dim)) * s).astype(F32)
        for heads, dim, s in ((op.heads, op.dim, size), (op.kv_heads, op.dim, size),
                              (op.kv_heads, op.value_dim, 1))
    )  # fmt: skip
    return q, k, v, np.arange(count, dtype=np.int32)


def outputs(op, rows):
    return stepped(nystrom.step, op, op.slot_kinds()["state"].shape, rows)


def matrix_form(op, rows):
    node = type("Node", (), {"op": op})
    return FORMULAS[NystromAttend](node, *(np.asarray(x, np.float64) for x in rows))


@pytest.mark.parametrize(
    "op",
    [
        OP,
        replace(OP, sinks=0, rectifier="fm"),
        replace(OP, seal=80, landmarks=8, window=32, stride=3),
        replace(OP, window=1, sinks=0),
        replace(OP, heads=2, kv_heads=1, seal=29, landmarks=32),
    ],
)
def test_row_after_row_it_is_its_matrix_form(op):
    rows = rows_of(op, op.seal + 40)
    out, _ = outputs(op, rows)
    error = np.abs(out - matrix_form(op, rows))
    largest = np.abs(out).max()
    assert error[: op.seal].max() < 1e-6 * largest
    assert error.max() < 1e-4 * largest and error.mean() < 2e-6 * largest


def test_far_rows_do_count():
    rows = rows_of(OP, OP.seal + 30)
    other = (*rows[:2], rows[2].copy(), rows[3])
    other[2][10] += 5  # long behind the window of the last row, and no sink
    assert (outputs(OP, rows)[0][-1] != outputs(OP, other)[0][-1]).any()


def test_values_stay_between_their_bounds_with_fm_only():
    op = NystromAttend(1, 1, 16, 4, 0.25, seal=256, landmarks=32, window=16, sinks=4)
    random = np.random.default_rng(777)
    q, k = (3 * random.uniform(-1, 1, (320, 1, 16)).astype(F32) for _ in "qk")
    v, at, found = random.uniform(0, 2, (320, 1, 4)).astype(F32), np.arange(320), {}
    for rectifier in ("fm", "aggregate"):
        out, _ = outputs(replace(op, rectifier=rectifier), (q, k, v, at))
        found[rectifier] = max((v.min(axis=0) - out).max(), (out - v.max(axis=0)).max())
    assert found["fm"] < 1e-3 < 1e-2 < found["aggregate"]


def test_heads_of_a_group_have_the_bits_of_heads_alone():
    op = replace(OP, heads=3, kv_heads=1, reseal=6, exact=2)
    q, k, v, at = rows_of(op, op.seal + 20)
    together, _ = outputs(replace(op, exact=0), (q, k, v, at))
    for head in range(3):
        alone, _ = outputs(replace(op, heads=1, exact=0), (q[:, head : head + 1], k, v, at))
        assert (alone[:, 0] == together[:, head]).all()


@pytest.mark.parametrize(("m", "window", "sinks"), [(8, 32, 0), (16, 64, 4), (32, 128, 16)])
@pytest.mark.parametrize("rectifier", ["aggregate", "fm"])
def test_equal_keys_give_the_mean_of_the_values(m, window, sinks, rectifier):
    op = NystromAttend(
        1, 1, 32, 24, 32**-0.5, 8 * m + window, m, window, sinks, rectifier=rectifier
    )
    q, k, v, at = rows_of(op, op.seal + 12)
    out, _ = outputs(op, (q, np.repeat(k[:1], len(k), 0), v, at))
    mean = v[:, 0].astype(np.float64).mean(axis=0)
    assert np.abs(out[-1, 0] - mean).max() < 1e-3 * np.abs(v).max()


@pytest.mark.parametrize("size", [4.0, 9.0, 30.0])
def test_large_scores_leave_no_value_outside_the_domain(size):
    rows = rows_of(OP, OP.seal + 20, size=size)
    out, state = outputs(OP, rows)  # a fault would raise
    bound = np.abs(rows[2]).max() * 1e3
    assert np.isfinite(out).all() and np.abs(out).max() < bound and np.isfinite(state).all()


def test_rows_that_queries_look_at_stay_exact():
    op = replace(OP, exact=3)
    q, k, v, at = rows_of(op, op.seal)
    k[20] = 4 * q[:, :2].mean(axis=(0, 1)) / np.abs(q.mean(axis=(0, 1))).max()
    _, state = outputs(op, (q, k, v, at))
    held = parts(state, op.sealed_shapes())
    kept = [int(np.flatnonzero((k == row).all(axis=(1, 2)))[0]) for row in held["kept_keys"]]
    assert kept[: op.sinks] == list(range(op.sinks)) and 20 in kept[op.sinks :]
    assert kept == sorted(set(kept)) and len(kept) == op.sinks + op.exact
    assert max(kept) < op.seal - op.window


def test_of_rows_alike_the_first_stay():
    op = replace(OP, exact=3)
    q, k, v, at = rows_of(op, op.seal)
    _, state = outputs(op, (q, np.repeat(k[:1], len(k), 0), v, at))
    held = parts(state, op.sealed_shapes())
    assert (held["kept_values"] == v[[0, 1, 2, 3, 4, 5, 6]]).all()


def test_landmarks_made_anew_are_of_the_rows_that_left():
    op = replace(OP, reseal=8)
    q, k, v, at = rows_of(op, op.seal + 9)
    _, state = outputs(op, (q[:-1], k[:-1], v[:-1], at[:-1]))
    held = parts(state, op.sealed_shapes())
    first = op.seal - op.window
    assert (held["landmark_keys"] == segment_means(k[first : first + 8], op.used)).all()
    assert (held["landmark_queries"] == segment_means(q[op.seal : op.seal + 8], op.used)).all()
    forgotten = k.copy()
    forgotten[10] += 1  # in the far field, not among the archived rows
    _, other = outputs(op, (q[:-1], forgotten[:-1], v[:-1], at[:-1]))
    there = parts(other, op.sealed_shapes())
    assert all((held[name] == there[name]).all() for name in ("sums", "masses", "peaks"))


@pytest.mark.parametrize(
    "change",
    [{"seal": 28}, {"stride": 16}, {"reseal": 3}, {"landmarks": 3}, {"kv_heads": 3}, {"exact": 20}],
)
def test_what_cannot_be_is_refused(change):
    assert violations_of(replace(OP, **change)) and not violations_of(OP)


def test_the_inverse_is_that_of_the_ridge():
    random = np.random.default_rng(3)
    a = np.exp(random.standard_normal((12, 12)))
    b = a.T @ a
    expected = np.linalg.solve(b + 1e-6 * np.trace(b) / 12 * np.eye(12), a.T)
    assert np.abs(ridge_inverse(a) - expected).max() < 1e-9 * np.abs(expected).max()
    assert (ridge_inverse(np.zeros((4, 4))) == 0).all()
    x = np.linspace(-700, 1, 1000)
    assert np.abs(exp64(x) / np.exp(x) - 1).max() < 1e-15 and exp64(np.array([-701.0])) == 0


@pytest.fixture(scope="module")
def plugins():
    found = loaded_plugins(CpuBackend())
    assert not found.problems
    return found


def test_a_layer_is_its_matrix_form(plugins):
    layer = NystromAttention(attention(4, 2), 40, 4, 8, 2)
    program, weights, x = one_layer(layer, 60)
    reference = plugins.backends["reference"]
    found = computed(reference, program, weights, x, plugins=reference)
    ideal = evaluate(
        program, weights, np.zeros(60, int), ["y"], inputs={"x": x}, formulas=FORMULAS
    )["y"]
    assert np.abs(found - ideal).max() < 1e-4 * np.abs(ideal).max()


def test_the_kit_compares_it_with_its_definition(plugins, monkeypatch):
    monkeypatch.setattr("cortiq_conformance.oracle.default_plugins", lambda: plugins)
    cases, reference = "level0/NystromAttend[", plugins.backends["reference"]
    report = run(reference, levels=(0,), only=cases)
    assert report.passed and len(report.results) == 3
    given = reference.given[NystromAttend]

    def late(op, state, q, k, v, position, faults=None):
        """A row whose own key joins the window behind it."""
        after, _ = nystrom.step(op, state, q, k, v, position, faults)
        return after, nystrom.step(op, state, q, 0 * k, v, position, faults)[1]

    wrong = Kernel("reference", NystromAttend, StepKernel(lambda op: partial(late, op)), "late")
    monkeypatch.setattr(reference, "given", {**reference.given, NystromAttend: wrong})
    definition = {NystromAttend: given}
    monkeypatch.setattr("cortiq_conformance.oracle.defined_by_packages", lambda: definition)
    monkeypatch.setattr(
        "cortiq_conformance.level0.packages.defined_by_packages", lambda: definition
    )
    found = run(reference, levels=(0,), only=cases)
    assert not found.passed and found.blamed() == {"NystromAttend"}


ASKED = "nystrom:seal=30,window=8,sinks=2,landmarks=4,reseal=16,exact=2"


def test_any_batches_and_any_backend_give_one_result(plugins):
    model, reference = rewritten_model(ASKED), plugins.backends["reference"]
    tokens = np.arange(70) * 7 % 50
    whole = computed(reference, *model, tokens, size=70, plugins=reference)
    for backend, size in ((reference, 9), (plugins.backends["cpu"], 25)):
        assert (computed(backend, *model, tokens, size=size, plugins=reference) == whole).all()


def test_a_sealed_sequence_goes_back_forks_and_moves(plugins):
    from cortiq.backend import Batch, Digest, Row

    (program, weights), reference = rewritten_model(ASKED), plugins.backends["reference"]
    one = place(reference, program, weights, CompileOptions())
    two = place(plugins.backends["cpu"], program, weights, CompileOptions(), fallback=reference)
    wants = (Digest("logits"),)

    def fed(executable, state, tokens):
        start = state.length()
        rows = [Row(state, start + i, int(t), wants) for i, t in enumerate(tokens)]
        return [row[wants[0]] for row in executable.forward(Batch(rows)).result().rows]

    tokens, state = np.arange(64) * 3 % 50, one.open(100)
    expected = fed(one, state, tokens)
    for length in (50, 30, 29):  # sealed, just sealed, not yet
        state.rewind(length)
        assert state.length() == length
        fed(one, state, tokens[::-1][:8])  # and something else before it goes back again
        state.rewind(length)
        branch, exported = state.fork(), state.export()
        assert fed(one, branch, tokens[length:]) == expected[length:]
        moved = two.import_(exported, 100)
        assert fed(two, moved, tokens[length:]) == expected[length:]


def test_memory_does_not_grow(plugins):
    program, weights = rewritten_model(ASKED)
    executable = place(plugins.backends["reference"], program, weights, CompileOptions())
    assert len({executable.state_bytes(rows) for rows in (10, 10_000, 1_000_000)}) == 1


@pytest.mark.parametrize(
    ("argument", "sentence"),
    [
        ("seal=100", "9 rows are far at the seal"),
        ("rectifier=none", "rectifier is 'none'"),
        ("landmarks=2", "landmarks is '2'"),
        ("file=x", "'file=x' is no option of nystrom"),
    ],
)
def test_a_wrong_argument_is_named(argument, sentence):
    with pytest.raises(RequestError, match=sentence):
        rewritten_model(f"nystrom:{argument}")


@pytest.mark.parametrize("options", [{"draft": "lookup", "draft_depth": 4}, {"chunk_rows": 5}])
def test_the_engine_gives_one_text_however_it_computes_it(plugins, monkeypatch, options):
    monkeypatch.setattr(loading, "_default", plugins)
    with cortiq.load(MODEL, backend="reference", rewrite=[ASKED]) as opened:
        prompt = [n * 7 % 50 for n in range(20)] * 2
        made = [opened.generate(prompt, max_tokens=24, **how) for how in ({}, options, {})]
    assert len({one.digest for one in made}) == 1  # the last one goes on from a kept prefix
    assert made[0].token_ids == made[1].token_ids == made[2].token_ids


def test_before_the_seal_it_says_what_full_attention_says(plugins, monkeypatch):
    monkeypatch.setattr(loading, "_default", plugins)
    found = []
    for asked in ([], ["nystrom"]):
        with cortiq.load(MODEL, backend="reference", rewrite=asked) as opened:
            found.append(opened.generate([3, 1, 4, 1, 5], max_tokens=12))
    assert found[0].token_ids == found[1].token_ids and found[0].digest != found[1].digest
