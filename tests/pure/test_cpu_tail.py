"""The CPU backend's tail: argmax, top, log-sum-exp, digests and draws, bit for bit."""

from __future__ import annotations

import ctypes
from collections import Counter
from functools import cache

import numpy as np
import pytest
from floats import LIMIT, LOWEST, canonical, next_down, same_bits
from native_ops import PATHS, address, aligned_zeros, args, native, run_ops

from cortiq.numerics import digest, sampling
from cortiq.numerics.contract import F32, OutOfDomainError, snap
from cortiq.numerics.masks import allowed_ids, mask_of
from cortiq.numerics.sampling import Sampling

Kind = args.OpKind
WIDTHS = (1, 7, 255, 1000, 8192, 20001)
pytestmark = pytest.mark.parametrize("path", PATHS)


def logits(rows, width, seed=0, spread=3.0):
    x = np.random.default_rng(seed).standard_normal((rows, width)) * spread
    return snap(np.round(x * 64).astype(F32) / F32(64) if seed % 2 else x.astype(F32))


def tail(path, kind, x, rows=None, **fields):
    width = x.shape[1]
    library = native.library()
    library.cortiq_tail_workspace.restype = ctypes.c_int64
    room = aligned_zeros(library.cortiq_tail_workspace(width, path[1]))
    room[:] = 0xA5
    pointers = {k: address(v) for k, v in fields.items() if isinstance(v, np.ndarray)}
    numbers = {k: v for k, v in fields.items() if not isinstance(v, np.ndarray)}
    struct = args.AnswerArgs(
        x=address(x), workspace=address(room), x_stride=width, width=width, **pointers, **numbers
    )
    return run_ops(path, len(x) if rows is None else rows, (kind, struct))


@pytest.mark.parametrize("width", WIDTHS)
def test_argmax(path, width):
    x = logits(5, width, 1)
    x[1] = -7
    x[2, width // 2 :] = x[2].max() + 1
    index = np.full(5, -1, np.int32)
    tail(path, Kind.ARGMAX, x, index=index)
    assert np.array_equal(index, sampling.argmax(x))
    chosen = np.array([4, 2], np.int32)
    tail(path, Kind.ARGMAX, x, rows=2, index=index, from_rows=chosen)
    assert np.array_equal(index[:2], sampling.argmax(x[chosen]))


@pytest.mark.parametrize("width", WIDTHS)
def test_top(path, width):
    x = np.concatenate(
        [logits(2, width, 1), logits(1, width), canonical(np.random.default_rng(3), (1, width))]
    )
    for count in {1, min(5, width), width}:
        ids, values = np.full((4, count), -1, np.int32), np.zeros((4, count), F32)
        tail(path, Kind.TOP, x, index=ids, values=values, count=count)
        exact = sampling.top(x, count)
        assert np.array_equal(ids, exact[0])
        assert same_bits(values, exact[1])


@pytest.mark.parametrize("width", WIDTHS)
def test_log_sum_exp(path, width):
    x = np.concatenate([logits(2, width), logits(1, width, 1, 40.0), np.zeros((1, width), F32)])
    values = np.full(4, 7, F32)
    faults = tail(path, Kind.LOG_SUM_EXP, x, values=values)
    assert same_bits(values, sampling.log_sum_exp(x))
    assert not faults.any()


@pytest.mark.parametrize("width", WIDTHS)
def test_digest(path, width):
    x = canonical(np.random.default_rng(0), (3, width))
    words = np.full((3, 4), 7, np.uint32)
    tail(path, Kind.DIGEST, x, words=words)
    assert [tuple(row) for row in words.tolist()] == [digest.digest(row) for row in x]


def draw_struct(sampling_, history, position, choice, keep, mask=None):
    """`Draw` of the contract's options; arrays it points to are added to `keep`."""
    seen = Counter(history)
    arrays = [
        np.array(list(values), dtype)
        for values, dtype in (
            (sampling_.logit_bias.values(), F32), (sampling_.logit_bias, np.int32),
            (seen, np.int32), (seen.values(), np.int32),
        )
    ]  # fmt: skip
    arrays.append(np.zeros(0, np.uint8) if mask is None else np.frombuffer(mask, np.uint8))
    keep.extend(arrays)
    places = [address(array) for array in arrays]
    if mask is None:
        places[4] = None
    penalty, unit = F32(sampling_.repetition_penalty), 1 << 24
    hot = sampling_.temperature
    return args.DrawArgs(
        *places, len(arrays[0]), len(arrays[2]),
        F32(1) / F32(hot) if hot else 0, penalty, F32(1) / penalty, sampling_.presence_penalty,
        sampling_.frequency_penalty, sampling_.top_k, round(sampling_.top_p * unit),
        round(sampling_.min_p * unit), sampling_.top_p < 1, sampling_.seed & 0xFFFFFFFF,
        sampling_.seed >> 32, choice, position,
    )  # fmt: skip


def drawn(path, x, options, histories, positions, choice=0, mask=None):
    keep = []
    structs = (args.DrawArgs * len(x))(
        *(draw_struct(options, h, p, choice, keep, mask)
          for h, p in zip(histories, positions, strict=True))
    )  # fmt: skip
    index = np.full(len(x), -1, np.int32)
    table = np.frombuffer(structs, np.uint8)
    faults = tail(path, Kind.DRAW, x, index=index, draws=table)
    return index.tolist(), faults.tolist()


OPTIONS = {
    "greedy": Sampling(temperature=0),
    "greedy with bias": Sampling(temperature=0, logit_bias={3: 9.0, 0: -2.5}),
    "plain": Sampling(seed=2**63 + 17),
    "cold": Sampling(temperature=0.05, seed=3),
    "hot": Sampling(temperature=50.0, seed=4),
    "top_k": Sampling(top_k=5, seed=5),
    "top_k 1": Sampling(top_k=1, seed=5),
    "top_k of all": Sampling(top_k=10**6, seed=5),
    "top_p": Sampling(top_p=0.9, seed=6),
    "top_p tiny": Sampling(top_p=1e-9, seed=6),
    "top_p of nearly all": Sampling(top_p=1 - 2.0**-24, seed=6),
    "min_p": Sampling(min_p=0.05, seed=7),
    "min_p of 1": Sampling(min_p=1.0, seed=7),
    "min_p tiny": Sampling(min_p=1e-12, seed=7),
    "all filters": Sampling(temperature=0.8, top_k=40, top_p=0.95, min_p=0.02, seed=8),
    "hot with all filters": Sampling(temperature=9.0, top_k=3000, top_p=0.8, min_p=1e-4, seed=9),
    "penalties": Sampling(
        repetition_penalty=1.3, presence_penalty=0.25, frequency_penalty=-0.125,
        logit_bias={2: 2.5, 1: -1.0}, top_p=0.99, seed=10,
    ),
}  # fmt: skip


POSITIONS = [0, 1, 77, 2**32 - 1, 4096, 5]


@cache
def exact_draws(name, width):
    """Logits, histories, and what the contract draws: the same for every path."""
    x = np.concatenate([logits(3, width), logits(3, width, 1)])
    x[5] = 0.5
    histories = [[], [1, 1, 2], [width - 1] * 9, [0], list(range(8)), [5, 5, 5, 1]]
    rows = enumerate(zip(x, histories, POSITIONS, strict=True))
    draws = [sampling.draw(r, OPTIONS[name], h, p, choice=i == 3) for i, (r, h, p) in rows]
    return x, histories, draws


@pytest.mark.parametrize("width", (8, 500, 8192, 20001))
@pytest.mark.parametrize("name", OPTIONS)
def test_draws(path, name, width):
    options, positions = OPTIONS[name], POSITIONS
    x, histories, exact = exact_draws(name, width)
    ours, faults = drawn(path, x, options, histories, positions)
    assert not any(faults)
    other, _ = drawn(path, x[3:4], options, histories[3:4], positions[3:4], choice=1)
    assert ours[:3] + other + ours[4:] == exact


MASKS = {
    "most": lambda width: [i for i in range(width) if i % 7 != 3],
    "few": lambda width: [1, width // 3, width // 2, width - 1],
    "one piece only": lambda width: range(width - 5, width),
    "one": lambda width: [width - 2],
}


@cache
def exact_masked_draws(name, kind, width):
    """Mask, logits, histories, and what the contract draws."""
    options, mask = OPTIONS[name], mask_of(MASKS[kind](width), width)
    x = np.concatenate([logits(3, width), logits(2, width, 1)])
    banned = np.setdiff1d(np.arange(width), allowed_ids(mask, width))
    x[1, banned] = next_down(LIMIT)  # scaled, biased or measured it would be a fault
    x[4] = -0.5
    histories = [[], [*banned[:1].tolist(), 1, 2], [width - 1] * 9, [0], list(range(8))]
    draws = [sampling.draw(x[i], options, histories[i], 40 + i, mask=mask) for i in range(len(x))]
    return mask, x, histories, draws


@pytest.mark.parametrize("width", (8, 20001))
@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize(
    "name", ["greedy with bias", "plain", "top_k", "top_p", "min_p", "all filters", "penalties"]
)
def test_masked_draws(path, name, kind, width):
    mask, x, histories, exact = exact_masked_draws(name, kind, width)
    options = OPTIONS[name]
    ours, faults = drawn(path, x, options, histories, range(40, 45), mask=mask)
    assert ours == exact and not any(faults)


def test_many_draws_of_few_tokens(path):
    """Every draw of 300 positions, ties among the kept tokens included."""
    options = Sampling(top_k=5, top_p=0.9, seed=11)
    x = np.repeat(np.array([[1, 0.5, 2, -1, 0.5, -3, 2, 0.5]], F32), 300, axis=0)
    exact = [sampling.draw(x[0], options, position=p) for p in range(300)]
    assert drawn(path, x, options, [[]] * 300, range(300))[0] == exact
    assert len(set(exact)) == 4


def test_a_share_is_rounded_up(path):
    """A share between two integers: rounded down, it would leave only the first token.

    The second weighs 2¹⁶ + 1, and at this position its noise makes it the one that is drawn.
    """
    x, options = np.array([[0, -16.635504]], F32), Sampling(top_p=1 - 2.0**-24)
    assert sampling.integer_weights(x[0]).tolist() == [1 << 40, (1 << 16) + 1]
    assert sampling.draw(x[0], options, position=2362519) == 1
    assert drawn(path, x, options, [[]], [2362519])[0] == [1]


def test_faults_of_a_draw(path):
    x = np.zeros((3, 300), F32)
    x[1, 5], x[2, 7] = next_down(LIMIT), -next_down(LIMIT)
    x[2, 9] = next_down(LIMIT)
    x[0, 3] = LOWEST
    options = Sampling(temperature=0.5)
    faults = drawn(path, x, options, [[]] * 3, [0, 0, 0])[1]

    def fails(row):
        try:
            sampling.draw(row, options)
        except OutOfDomainError:
            return True
        return False

    assert faults == [fails(row) for row in x]
    assert faults == [False, True, True]
