"""Kernels of the Triton backend: PTX without a GPU, tilings that change no bit, packed weights."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the Triton backend keeps its memory in PyTorch")
pytest.importorskip("triton", reason="Triton has no package for this platform")

from cortiq.numerics import matmul, quantise  # noqa: E402
from cortiq.numerics.layouts import LAYOUTS, decode  # noqa: E402
from cortiq.numerics.synthetic import synthetic_weight  # noqa: E402
from cortiq_triton import hopper_products, products  # noqa: E402
from cortiq_triton.products import PLAIN, Stack  # noqa: E402
from cortiq_triton.rows import quantise_rows  # noqa: E402
from cortiq_triton.tuning import Tuning, use_tuning  # noqa: E402
from cortiq_triton.weights import first_rows, join, pack  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
ROOT = Path(__file__).parents[2]
CODED = [name for name, layout in LAYOUTS.items() if layout.kind in ("parts", "blocks")]
CODED.remove("IQ1_M")  # has no weights by formula
FEW = [
    Tuning(few=4, rows=1, bn=8, bw=32, bn_blocked=4, bn_e2m1=4, span=32),
    Tuning(few=4, rows=4, bn=64, bw=128, bn_blocked=32, bn_e2m1=64, span=128),
]
MANY = [
    Tuning(few=0, some=0, bm=16, bn_many=32, bk=64, bm_blocks=16, bn_blocks=16, group=1),
    Tuning(few=0, some=0, bm=64, bn_many=16, bk=32, bm_blocks=32, bn_blocks=64, turn=4, group=4),
    Tuning(few=0, bn_some=16),
]


def compiled(*arguments, tool="tools/lint_triton.py"):
    """Run the lint in a process of its own: this one's kernels are interpreted."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, ROOT / tool, *arguments], env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_norms_compile_for_gpus_and_their_ptx_is_clean():
    code, said = compiled(
        "--models", "tiny-llama", "--layouts", "", "--targets", "90", "--only", "norm"
    )
    assert code == 0, said
    assert "sm_90 norm_quantise(" in said and ": clean" in said


@pytest.mark.slow
def test_what_decoding_launches_compiles_for_gpus_and_its_ptx_is_clean():
    code, said = compiled("--models", "tiny-llama", "--layouts", "", "--targets", "90")
    assert code == 0, said
    for name in ("matvec_rows", "matmul_rows", "attend_spans", "norm_quantise", "gate_quantise"):
        assert f"sm_90 {name}(" in said
    assert said.count(": clean") > 25


@pytest.mark.parametrize(
    ("kernel", "layouts", "least"),
    [
        pytest.param("matmul_rows_of", "w8", 8, marks=pytest.mark.slow),
        ("matmul_blocks_of", "Q4_K", 2),
    ],
)
def test_the_smallest_products_for_hopper_compile_and_their_ptx_is_clean(kernel, layouts, least):
    code, said = compiled("--models", "", "--layouts", layouts, "--targets", "90", "--only", kernel)
    assert code == 0, said
    assert said.count(": clean") >= least


def test_hopper_kernels_of_blocks_take_no_weight_of_a_single_piece(monkeypatch):
    monkeypatch.setattr(hopper_products, "available", lambda: True)
    found = []
    for columns in (32, 256, 288, 512):
        weight = synthetic_weight("Q4_0", "weight", 1, (64, columns))
        packed = pack(weight, "weight", "cpu")
        found.append(hopper_products.kernel_for(packed, 256, laid=96) is not None)
    assert found == [False, False, True, True]


def test_hopper_multiplies_codes_of_any_width_to_their_last_column(monkeypatch):
    """Steps are of 128 columns, by pairs; what is no whole pair, or step, is said."""
    said = []
    stand_in = SimpleNamespace(matmul_rows_of_codes=None)
    monkeypatch.setitem(sys.modules, "cortiq_triton.hopper_rows", stand_in)
    monkeypatch.setattr(hopper_products, "available", lambda: True)
    monkeypatch.setattr(hopper_products, "launch", lambda kernel, *_, **how: said.append(how))
    for columns in (64, 256, 1152, 4304, 4400):
        packed = pack(synthetic_weight("w8", "weight", 1, (64, columns)), "weight", "cpu")
        x, faults = quantise_rows(torch.ones(2, columns)), torch.zeros(2, dtype=torch.int32)
        own = hopper_products.kernel_for(packed, 2, laid=96)
        how = Stack(PLAIN, 64)
        own(packed, x, torch.empty(2, 64), faults, how.ending(faults), (64, 64, 1), how.endings)
    assert [how["ODD"] for how in said] == [1, 0, 1, 0, 1]
    assert [how["CUT"] for how in said] == [True, False, False, False, True]


def test_the_lint_sees_what_fusion_does():
    code, said = compiled(
        "--models", "", "--layouts", "Q4_1", "--targets", "80", "--only", "matvec", "--fusion"
    )
    assert code == 1 and "a float operation that ptxas may contract" in said


def product(tuning, weight, x, faults):
    before = use_tuning(tuning)
    try:
        height = weight.height
        return products.product(weight, x, len(faults), faults, Stack(PLAIN, height)).numpy()
    finally:
        use_tuning(before)


OTHERS = ("w16", "Q3_K", "Q5_0", "Q5_K", "e4m3b32", "nf4b32")


@pytest.mark.parametrize(
    "layout",
    [
        "w8", "Q4_1", "Q4_K", "Q6_K", "e2m1b16",
        *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS),
    ],
)  # fmt: skip
def test_no_tiling_changes_a_bit(layout):
    columns = 2304 if layout.endswith("_K") else 2336
    weight = synthetic_weight(layout, "weight", 1, (16, columns))
    packed, faults = pack(weight, "weight", "cpu"), torch.zeros(3, dtype=torch.int32)
    x = np.random.default_rng(1).standard_normal((3, columns)).astype(np.float32)
    defined = matmul.matmul(quantise.quantise_rows(x), decode(weight))
    rows = quantise_rows(torch.tensor(x))
    for tuning in FEW + MANY:
        got = product(tuning, packed, rows, faults)
        assert (got.view(np.uint32) == defined.view(np.uint32)).all(), tuning
    assert not faults.any()


def test_a_large_tile_flags_the_rows_that_have_a_fault_and_no_others():
    """Products of 64 by 64 outputs are looked at once; the last row's fault is in one output."""
    height, rows, tuning = 70, 66, Tuning(few=0, some=0, bm=64, bn_many=64, bk=64)
    weight = synthetic_weight("w8", "weight", 1, (height, 256))
    packed = pack(weight, "weight", "cpu")
    x = np.random.default_rng(1).standard_normal((rows, 256)).astype(np.float32)
    wrong = [5, 65]
    x[wrong] = np.sign(decode(weight).codes[[3, 69]]) * np.float32(2.0**49)
    expected = np.zeros(rows, bool)
    defined = matmul.matmul(quantise.quantise_rows(x), decode(weight), faults=expected)
    assert np.flatnonzero(expected).tolist() == wrong and (defined[wrong] != 0).mean() > 0.5
    faults = torch.zeros(rows, dtype=torch.int32)
    got = product(tuning, packed, quantise_rows(torch.tensor(x)), faults)
    assert np.flatnonzero(faults.numpy()).tolist() == wrong
    assert (got.view(np.uint32) == defined.view(np.uint32)).all()


@pytest.mark.parametrize("layout", CODED)
def test_a_packed_weight_takes_little_more_than_its_file(layout):
    weight = synthetic_weight(layout, "weight", 1, (8, 4096))
    spare = {"Q2_K": 2.0, "Q3_K": 1.4, "MXFP4": 1.06}
    held = pack(weight, "weight", "cpu").nbytes
    if layout.startswith(("IQ", "TQ", "nf4", "fp4")):  # a byte a code, and scales
        assert held <= 1.26 * 8 * 4096
    else:
        assert held <= spare.get(layout, 1.04) * weight.nbytes


def test_joined_weights_are_one_in_memory():
    parts = [
        pack(synthetic_weight("w16", f"weight{i}", 1, (16, 128)), "weight", "cpu") for i in range(2)
    ]
    alone = [replace(part, codes=part.codes.clone()) for part in parts]
    whole = join(parts)
    x = quantise_rows(torch.randn(1, 128))
    outputs = [product(FEW[0], part, x, torch.zeros(1, dtype=torch.int32)) for part in alone]
    together = product(FEW[0], whole, x, torch.zeros(1, dtype=torch.int32))
    assert (together == np.concatenate(outputs, axis=1)).all()
    again = product(FEW[0], parts[1], x, torch.zeros(1, dtype=torch.int32))
    assert (again == outputs[1]).all()
    storages = {part.codes.untyped_storage().data_ptr() for part in (*parts, whole)}
    assert len(storages) == 1


@pytest.mark.parametrize("layout", ["w16", "w8", "Q4_1", "Q3_K", "Q6_K"])
def test_the_first_rows_are_a_weight_in_the_same_memory(layout):
    """As a draft shortlist's: what lies behind them decides nothing, and is no fault of theirs."""
    weight = synthetic_weight(layout, "weight", 1, (40, 256))
    if "scale" in weight.parts:
        weight.parts["scale"][19:] = 2.0**45
    whole, x = pack(weight, "weight", "cpu"), np.random.default_rng(1).standard_normal((3, 256))
    part, rows = first_rows(whole, 19), quantise_rows(torch.tensor(x.astype(np.float32)))
    quantised = quantise.quantise_rows(x.astype(np.float32))
    defined = matmul.matmul(quantised, decode(weight.rows(0, 19)))
    for tuning in (FEW[0], MANY[0]):
        faults = torch.zeros(3, dtype=torch.int32)
        got = product(tuning, part, rows, faults)
        assert (got.view(np.uint32) == defined.view(np.uint32)).all() and not faults.any()
    assert part.codes.untyped_storage().data_ptr() == whole.codes.untyped_storage().data_ptr()


def test_without_a_gpu_the_benchmark_says_so():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    code, said = compiled(tool="benchmarks/gpu.py")
    assert code == 1 and "no GPU: nothing can be measured here" in said
