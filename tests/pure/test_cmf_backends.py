"""Models of a CMF file have the same bits on every backend, codes of −128 among them."""

from __future__ import annotations

import numpy as np
import pytest
from cmf_files import header_of, tensors_of, values_of
from installed import INTERPRETED, backends

import cortiq
from cortiq.formats.cmf.writer import file_parts

ENCODINGS = ("q8_row", "q8_row", "vbit", "q4tp", "q1", "q2tp", "q4_block", "q1t")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A file of which every third code of q8_row is −128, which no encoder writes."""
    found, rng = [], np.random.default_rng(1)
    for name, dtype, shape, data in tensors_of(values_of(3), ENCODINGS):
        changed = np.frombuffer(data, np.uint8).copy()
        if dtype == "q8_row":
            count = shape[0] * shape[1]
            changed[rng.integers(0, count, count // 3)] = 0x80
        found.append((name, dtype, shape, changed.tobytes()))
    file = tmp_path_factory.mktemp("cmf") / "m.cmf"
    file.write_bytes(b"".join(file_parts(header_of(), found)))
    return file


def digest(path, backend):
    with cortiq.load(str(path), backend=backend) as model:
        return model.generate([5, 9, 200, 17, 33], max_tokens=8, ignore_eos=True).digest


OTHERS = [one for one in backends() if one != "reference"] + sorted(INTERPRETED)
SLOW = ("triton", "wgpu")


@pytest.mark.parametrize(
    "backend",
    [pytest.param(one, marks=[pytest.mark.slow] if one in SLOW else []) for one in OTHERS],
)
def test_bits_are_the_references(backend, path):
    assert digest(path, backend) == digest(path, "reference")
