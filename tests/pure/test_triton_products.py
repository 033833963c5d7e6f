"""Products on Triton: rows grouped by expert, codes packed to their bits, operands laid out."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the Triton backend keeps its memory in PyTorch")
pytest.importorskip("triton", reason="Triton has no package for this platform")

from cortiq.numerics import matmul, quantise  # noqa: E402
from cortiq.numerics.layouts import LAYOUTS, decode  # noqa: E402
from cortiq.numerics.synthetic import synthetic_weight  # noqa: E402
from cortiq_triton import hopper_products, operands, packing, products, tuning  # noqa: E402
from cortiq_triton.products import EXPERTS, Stack  # noqa: E402
from cortiq_triton.rows import quantise_rows  # noqa: E402
from cortiq_triton.weights import pack  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
F32 = np.float32
BLOCKS = (
    "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL", "MXFP4", "w8b256", "Q2_K", "Q3_K", "Q4_K",
    "Q5_K", "Q6_K", "IQ4_XS", "IQ3_XXS", "IQ2_XS", "TQ2_0", "i4b32m", "i8b32m",
)  # fmt: skip


def rows_of(count, columns, seed=1):
    """Rows as floats; one of the largest integers, one of zeros."""
    x = np.random.default_rng(seed).standard_normal((count, columns)).astype(F32)
    x[0], x[1] = np.sign(x[0]) * F32(1.98), 0
    return x


def defined(weight, x):
    return matmul.matmul(quantise.quantise_rows(x), decode(weight))


def same(a, b):
    return (a.view(np.uint32) == b.view(np.uint32)).all()


@pytest.mark.parametrize("layout", ["w8", "w16", "Q4_1", "Q4_K"])
@pytest.mark.parametrize("shared", [True, False])
def test_rows_grouped_by_expert_are_each_experts_products(layout, shared, monkeypatch):
    experts, height, columns, rows, chosen = 4, 16, 512, 70, 2
    monkeypatch.setattr(tuning, "_tuning", [tuning.Tuning(bm=16, bm_blocks=16, bn_blocks=16)])
    weight = synthetic_weight(layout, "weight", 1, (experts * height, columns))
    index = np.array([[0, 3] if row % 7 else [1, 3] for row in range(rows)], np.int32)  # none has 2
    x = rows_of(rows if shared else rows * chosen, columns)
    how = Stack(
        EXPERTS, height, per=chosen if shared else 1, group=chosen, index=torch.tensor(index)
    )
    faults = torch.zeros(rows, dtype=torch.int32)
    packed, q = pack(weight, "weight", "cpu"), quantise_rows(torch.tensor(x))
    got = products.product(packed, q, rows * chosen, faults, how).numpy()
    groups = next(iter(how.groups.values()))
    assert len(groups.tiles) > 8 and (groups.tiles[:, 0] == 3).sum() == 5  # 70 rows by 16
    assert sorted(groups.order.tolist()) == list(range(rows * chosen))
    every = defined(weight, x).reshape(len(x), experts, height)
    source = np.arange(rows * chosen) // (chosen if shared else 1)
    assert same(got, every[source, index.reshape(-1)])
    assert not faults.any()


def test_a_fault_of_a_grouped_row_is_that_rows():
    weight = synthetic_weight("w8", "weight", 1, (64, 256))
    weight.parts["scale"][:] = 2.0**48
    x = np.full((40, 256), 2.0**-39, F32)
    x[17] = 2.0**20
    index = torch.tensor([[row % 4] for row in range(40)], dtype=torch.int32)
    faults = torch.zeros(40, dtype=torch.int32)
    how = Stack(EXPERTS, 16, index=index)
    products.product(
        pack(weight, "weight", "cpu"), quantise_rows(torch.tensor(x)), 40, faults, how
    )  # fmt: skip
    assert how.groups and np.flatnonzero(faults.numpy()).tolist() == [17]


@pytest.mark.parametrize("bits", [1, 2])
def test_bits_above_a_nibble_lie_where_they_are_said_to(bits):
    codes = np.random.default_rng(bits).integers(0, 16 << bits, (3, 96)).astype(np.uint8)
    words = packing.bits_above(codes, bits).view("<u4").reshape(3, 3, bits)
    nibbles = packing.nibbles_of(codes).view(np.uint8).reshape(3, 3, 16)
    for column in range(96):
        unit, half, i, c = column // 32, column // 16 % 2, column % 16 // 4, column % 4
        if bits == 1:
            above = words[:, unit, 0] >> np.uint32(8 * c + 4 * half + i) & 1
        else:
            above = words[:, unit, half] >> np.uint32(8 * c + 2 * i) & 3
        nibble = nibbles[:, unit, column % 16] >> np.uint8(4 * half) & 15
        assert (codes[:, column] == nibble | above << 4).all()


@pytest.mark.parametrize("layout", BLOCKS)
def test_rows_of_the_largest_integers_leave_no_sum_of_few_rows(layout):
    columns = 512 if LAYOUTS[layout].block == 256 else 544
    weight = synthetic_weight(layout, "weight", 1, (24, columns))
    if layout.endswith("_K"):
        raw = weight.parts["raw"].reshape(24, 2, -1)
        start = {"Q6_K": (192, 208), "Q3_K": (96, 108), "Q2_K": (0, 16)}.get(layout, (4, 16))
        raw[:12, :, slice(*start)] = 0x7F if layout == "Q6_K" else 0xFF
    x = np.full((2, columns), 1.98, F32)
    x[1] = -x[1]
    packed, faults = pack(weight, "weight", "cpu"), torch.zeros(2, dtype=torch.int32)
    q = quantise_rows(torch.tensor(x))
    got = products.product(packed, q, 2, faults, Stack(products.PLAIN, 24)).numpy()
    assert same(got, defined(weight, x)) and not faults.any()


def laid_codes(codes, runs, planes):
    parts = codes.numpy().reshape(-1, runs, planes, 8, 128, 32).astype(np.int64)
    whole = parts[:, :, 0] * 256 + parts[:, :, 1] if planes == 2 else parts[:, :, 0]
    return whole.transpose(0, 3, 1, 2, 4).reshape(-1, runs * 8, 32)


def laid_rows(rows, runs):
    parts = rows.numpy().reshape(-1, runs, 8, 2, 64, 32).astype(np.int64)
    whole = parts[:, :, :, 0] * 256 + parts[:, :, :, 1]
    return whole.transpose(0, 3, 1, 2, 4).reshape(-1, runs * 8, 32)


def by_rows(words):
    """[rows, runs·n] of words [tiles, runs, n, rows of a tile]."""
    return np.ascontiguousarray(words.transpose(0, 3, 1, 2)).reshape(
        words.shape[0] * words.shape[3], -1
    )


def offset_sums(facts, sums, words):
    """J [rows, N, runs] from words of offsets and of sums."""
    tiles, runs = facts.shape[:2]
    offsets = np.ascontiguousarray(facts[:, :, 2 : 2 + words]).view(np.int8)
    offsets = offsets.reshape(tiles, runs, words, 128, 4).transpose(0, 3, 1, 2, 4)
    three = np.ascontiguousarray(sums[:, :, : 3 * words]).reshape(-1, runs, words, 3, 64)
    pairs = np.ascontiguousarray(three[:, :, :, :2]).view(np.int16)
    pairs = pairs.reshape(*three.shape[:3], 2, 64, 2).transpose(0, 4, 1, 2, 3, 5)
    low = np.ascontiguousarray(three[:, :, :, 2]).view(np.int8)
    low = low.reshape(*three.shape[:3], 64, 4).transpose(0, 3, 1, 2, 4)
    total = pairs.reshape(-1, runs, words * 4).astype(np.int64) * 256
    total += low.reshape(-1, runs, words * 4)
    return np.einsum("nrs,mrs->mnr", offsets.reshape(-1, runs, words * 4).astype(np.int64), total)


def multiplied(packed, x, first, count):
    """The contract's product of what `operands` lays out, in NumPy."""
    codes, facts = operands.lay_weight_rows(packed, first, count)
    rows, sums = operands.lay_quantised(packed, x)
    runs, blocks = -(-packed.padded // 256), 256 // packed.block
    c, q = laid_codes(codes, runs, packed.folded), laid_rows(rows, runs)
    integers = np.einsum("nbk,mbk->mnb", c, q).reshape(len(q), len(c), runs * blocks, -1).sum(-1)
    facts = facts.numpy().reshape(-1, runs, operands.facts_of(packed), 128)
    terms = integers.astype(F32) * by_rows(facts[:, :, :blocks]).view(F32)
    if packed.minimum is not None:
        sums = sums.numpy().reshape(-1, runs, operands.sums_of(packed), 64)
        if packed.offsets is None:
            total = by_rows(sums).view(F32)[:, None]
        else:
            total = offset_sums(facts, sums, operands.words_of(packed)).astype(F32)
        terms = terms + total * by_rows(facts[:, :, blocks : 2 * blocks]).view(F32)
    y = np.zeros(terms.shape[:2], F32)
    for start in range(0, terms.shape[2], 8):
        run = np.zeros_like(y)
        for block in range(start, min(start + 8, terms.shape[2])):
            run = run + terms[:, :, block]
        y = y + run
    e = x.e.numpy().astype(F32)
    return y[: len(e), :count] * np.exp2(e)[:, None]


@pytest.mark.parametrize("layout", BLOCKS)
def test_operands_laid_out_for_tensor_cores_hold_the_product(layout):
    columns = 2304 if LAYOUTS[layout].block == 256 else 608  # over eight blocks; no whole run
    weight = synthetic_weight(layout, "weight", 1, (136, columns))
    packed, x = pack(weight, "weight", "cpu"), rows_of(67, columns)
    q = quantise_rows(torch.tensor(x))
    got = [multiplied(packed, q, first, count) for first, count in ((0, 128), (128, 8))]
    assert same(np.concatenate(got, axis=1), defined(weight, x))


@pytest.mark.parametrize(("layout", "lets"), [("w8", True), ("w16", False), ("Q4_0", False)])
def test_only_hoppers_products_of_many_rows_let_the_next_launch_start(layout, lets, monkeypatch):
    """What runs beside one reads its row at once, which the few-row kernels do not allow."""
    packed = pack(synthetic_weight(layout, "weight", 1, (128, 512)), "weight", "cpu")
    few = tuning.Tuning(few=8)
    monkeypatch.setattr(tuning, "_tuning", [few])
    assert not products.lets_next(packed, 64)  # this is no Hopper
    monkeypatch.setattr(hopper_products, "available", lambda: True)
    assert [products.lets_next(packed, rows) for rows in (8, 9, 64)] == [False, lets, lets]
