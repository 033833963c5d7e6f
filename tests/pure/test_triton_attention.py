"""Attention of the Triton backend, however its tiles are spread, against its definition."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the Triton backend keeps its memory in PyTorch")
pytest.importorskip("triton", reason="Triton has no package for this platform")

from cortiq.backend.walk import Segment  # noqa: E402
from cortiq.ir import ops  # noqa: E402
from cortiq.numerics import attention, quantise  # noqa: E402
from cortiq_triton import attend  # noqa: E402
from cortiq_triton.attend import SpanTuning, StreamTuning  # noqa: E402
from cortiq_triton.call import Counters  # noqa: E402
from cortiq_triton.rows import quantise_rows  # noqa: E402
from cortiq_triton.rowset import RowSet  # noqa: E402

HEADS, GROUPS, WIDTH, CONTEXT, SCALE = 4, 2, 32, 1210, 0.2
PAGES = -(-CONTEXT // 64)
SPREADS = [SpanTuning(999, 1), SpanTuning(16, 1), SpanTuning(2, 1), SpanTuning(999, 16)]
"""A tile, four and a run a program, all tiles in one if they are a run."""


def pages_of(keys, values):
    """Pages as kernels keep them: planes of keys, transposed ones of values, exponents."""
    parts = []
    for page in range(PAGES):
        at = slice(page * 64, (page + 1) * 64)
        k, v = keys.q[at].transpose(1, 0, 2), values.q[at].transpose(1, 2, 0)
        planes = [plane for q in (k, v) for plane in ((q + 128) >> 8, q - (((q + 128) >> 8) << 8))]
        exponents = [keys.e[at].T, values.e[at].T]
        parts.append(np.concatenate([part.reshape(-1) for part in (*planes, *exponents)]))
    return torch.from_numpy(np.stack(parts).astype(np.int8))


def case(window, rows):
    """A call for the last rows of a sequence, and what they must give."""
    rng = np.random.default_rng(3)
    sizes = rng.choice([0.1, 1.0, 40.0], (2, PAGES * 64, GROUPS, 1))  # exponents that differ
    k, v = (rng.standard_normal((2, PAGES * 64, GROUPS, WIDTH)) * sizes).astype(np.float32)
    keys, values = quantise.quantise_rows(k), quantise.quantise_rows(v)
    q = rng.standard_normal((rows, HEADS, WIDTH)).astype(np.float32)
    positions = np.arange(CONTEXT - rows, CONTEXT)
    defined = attention.attend(
        quantise.quantise_rows(q), keys, values, positions, SCALE, window=window
    )
    pages = pages_of(keys, values)
    table = pages.data_ptr() + pages.shape[1] * torch.arange(PAGES)
    there, zeros = torch.tensor(positions, dtype=torch.int32), torch.zeros(rows, dtype=torch.int32)
    segment = Segment(SimpleNamespace(pages=pages), 0, rows, range(CONTEXT - rows, CONTEXT))
    some = (there, zeros, table, PAGES, table, zeros, zeros + rows, CONTEXT - 1)
    call = SimpleNamespace(
        rows=RowSet("cpu", [segment], *some), weights={}, faults=zeros.clone(),
        shared=SimpleNamespace(counters=Counters("cpu")), slot=lambda role: (None, 0),
        table=lambda role: table,
    )  # fmt: skip
    op = ops.Attend(HEADS, GROUPS, WIDTH, WIDTH, SCALE, window=window or None)
    return lambda: (*attend.attended(call, op, quantise_rows(torch.tensor(q)), there, None),
                    call), defined  # fmt: skip


@pytest.mark.parametrize("window", [0, 300])
def test_no_spreading_of_tiles_changes_a_bit(window, monkeypatch):
    run, defined = case(window, 2)
    for spread in SPREADS:
        monkeypatch.setattr(attend, "SPANS", spread)
        out, largest, call = run()
        assert (out.numpy().view(np.uint32) == defined.view(np.uint32)).all(), spread
        assert (largest.numpy() == np.abs(defined).max(axis=2).view(np.int32)).all()
        assert not call.faults.any() and not call.shared.counters.of(1).any()


@pytest.mark.parametrize("window", [0, 300])
def test_no_size_of_a_stream_changes_a_bit(window, monkeypatch):
    run, defined = case(window, 18)
    for stream in (StreamTuning(), StreamTuning(queries=16, stages=3)):
        monkeypatch.setattr(attend, "NARROW", stream)
        out, largest, _ = run()
        assert (out.numpy().view(np.uint32) == defined.view(np.uint32)).all(), stream
        assert (largest.numpy() == np.abs(defined).max(axis=2).view(np.int32)).all()
