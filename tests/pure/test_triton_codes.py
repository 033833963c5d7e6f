"""Products of many rows with codes: the CUDA source, compiled for the CPU with each thread a
coroutine, has the definition's bits and faults, tile after tile; NVRTC compiles it for Hopper.
"""

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the Triton backend keeps its memory in PyTorch")
pytest.importorskip("triton", reason="Triton has no package for this platform")

from cortiq.numerics import matmul, quantise  # noqa: E402
from cortiq.numerics.contract import snap  # noqa: E402
from cortiq.numerics.layouts import decode  # noqa: E402
from cortiq.numerics.synthetic import synthetic_weight  # noqa: E402
from cortiq_triton import hopper_codes, hopper_products, nvrtc  # noqa: E402
from cortiq_triton.products import PLAIN, Stack, product  # noqa: E402
from cortiq_triton.rows import quantise_rows  # noqa: E402
from cortiq_triton.weights import pack  # noqa: E402
from tests.pure.emulated_cuda import Emulated, built  # noqa: E402

BLOCKS, ENDS = 2, ("BIASED", "RESIDUAL", "PARTED")
ROWS, COLUMNS = 300, 430
"""Three tiles of rows, the last one cut, and four steps, the last one half and padded."""
CASES = {
    "plain": ((), 400),  # three tiles of the weight's rows, the last one cut
    "bias, residual": (("BIASED", "RESIDUAL"), 386),  # one pair in the last tile
    "three matrices": (("BIASED", "PARTED"), 392),  # the second one begins and ends inside of tiles
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("codes")


def emulated(folder, ends):
    constants = {"BAND": 2} | {name: int(name in ends) for name in ENDS}
    (folder / "-".join(ends)).mkdir(exist_ok=True)
    path = built(folder / "-".join(ends), "matmul_codes.cu", "matmul_codes", constants)
    return Emulated(path, BLOCKS, hopper_codes.THREADS, hopper_codes.SHARED)


def place_and_sizes(place, rows, columns, box):
    return (place, rows, columns, box, *[0] * 12)


@pytest.mark.parametrize("case", CASES)
def test_bits_and_faults_are_the_definitions(case, folder, monkeypatch):
    """Two blocks take nine tiles; two rows have a fault in one output each."""
    ends, height = CASES[case]
    kernel = emulated(folder, ends)
    monkeypatch.setattr(hopper_products, "available", lambda: True)
    monkeypatch.setattr(hopper_codes, "function_of", lambda *constants: kernel)
    monkeypatch.setattr(hopper_codes, "tensor_map", place_and_sizes)
    weight, random = (
        synthetic_weight("w8", "weight", 1, (height, COLUMNS)),
        np.random.default_rng(1),
    )
    codes, wrong = decode(weight), [5, ROWS - 1]
    x = random.standard_normal((ROWS, COLUMNS)).astype(np.float32)
    x[7], x[200] = 0, x[200] * np.float32(2.0**-36)  # outputs of nothing, and some too small
    x[wrong] = np.sign(codes.codes[[3, height - 1]]) * np.float32(2.0**49)
    added = random.standard_normal((ROWS + 1, height)).astype(np.float32)
    faults = np.zeros(ROWS, bool)
    expected = matmul.matmul(quantise.quantise_rows(x), codes, faults=faults)
    for name, other in (("BIASED", added[0]), ("RESIDUAL", added[1:])):
        if name in ends:
            expected = snap(expected + other)
    parts = (100, 192, 100) if "PARTED" in ends else ()
    bias, residual = (torch.tensor(part) for part in (added[0], added[1:]))
    how = Stack(
        PLAIN, height, bias=bias if "BIASED" in ends else None, parts=parts,
        residual=residual if "RESIDUAL" in ends else None,
    )  # fmt: skip
    flags = torch.zeros(ROWS, dtype=torch.int32)
    out = product(pack(weight, "weight", "cpu"), quantise_rows(torch.tensor(x)), ROWS, flags, how)
    assert kernel.launches == 1 and np.flatnonzero(faults).tolist() == wrong
    got = out.numpy().reshape(-1)
    for start, part in zip(np.cumsum((0, *parts)), parts or (height,), strict=False):
        there = got[start * ROWS : (start + part) * ROWS].reshape(ROWS, part)
        assert np.array_equal(
            there.view(np.int32), expected[:, start : start + part].view(np.int32)
        )
    assert np.flatnonzero(flags.numpy()).tolist() == wrong


@pytest.mark.parametrize(("height", "first"), [(401, 0), (400, 1)])
def test_outputs_that_lie_in_no_pairs_are_left_to_triton(height, first, monkeypatch):
    """An odd number of them, or scales that begin between two pairs."""
    monkeypatch.setattr(hopper_codes, "function_of", lambda *constants: pytest.fail("it is used"))
    weight = pack(synthetic_weight("w8", "weight", 1, (height + first, 64)), "weight", "cpu")
    part = replace(weight, height=height, codes=weight.codes[first:], scale=weight.scale[first:])
    x = quantise_rows(torch.ones(300, 64))
    out, flags = torch.empty(300, height), torch.zeros(300, dtype=torch.int32)
    last = (height, height, 1)
    how = {"BIASED": False, "RESIDUAL": False, "PARTS": 1}
    assert not hopper_codes.multiply(part, x, out, flags, (out, out), last, how)


def test_nvrtc_compiles_it_for_hopper():
    try:
        nvrtc.library()
    except nvrtc.NotCompiledError as error:
        pytest.skip(str(error))
    options = ["--gpu-architecture=sm_90a", *nvrtc.FLAGS, "-DBAND=8"]
    options += [f"-D{name}=1" for name in ENDS]
    assert nvrtc.compiled("matmul_codes.cu", nvrtc.sources(), options).startswith(b"\x7fELF")


def test_a_kernel_that_cannot_be_had_is_said_and_leaves_products_to_triton(monkeypatch):
    def refuse(*arguments):
        raise nvrtc.NotCompiledError("matmul_codes.cu(1): error: no")

    monkeypatch.setattr(nvrtc, "binary", refuse)
    with pytest.warns(
        RuntimeWarning, match=r"take Triton's kernel: matmul_codes.cu\(1\): error: no"
    ):
        assert hopper_codes.function_of.__wrapped__(("BIASED", 1)) is None
