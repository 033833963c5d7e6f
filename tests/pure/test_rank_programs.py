"""Programs of ranks, run by threads that exchange in memory: every family, the bits of one."""

from __future__ import annotations

import numpy as np
import pytest
from rank_threads import by_ranks, streams

from cortiq.backend import CompileOptions
from cortiq.ir import KVRows, expand
from cortiq.ir.layers import Linear
from cortiq.model.source import open_source
from cortiq.models.column_orders import with_orders
from cortiq.models.synthetic import FIXTURES
from cortiq.models.synthetic_configs import CONFIGS
from cortiq.numerics.column_order import ColumnOrder
from cortiq.options import LoadOptions
from cortiq.placement.place import place
from cortiq.plugins.selection import find_backend
from cortiq.ranks.local_program import local_program

SMALL = [name for name in (*CONFIGS, *FIXTURES) if name.startswith(("tiny", "mini"))]


def assert_same(name: str, ranks: int, backend_name: str = "cpu", by_expert: bool = False) -> None:
    """Check that so many ranks compute a model's bits."""
    backend, source = find_backend(backend_name)[0], open_source(f"synthetic:{name}", LoadOptions())
    options = CompileOptions(threads=1)
    expected = streams(place(backend, source.program, source.weights, options), source.program)
    for found in by_ranks(backend, source.program, source.weights, ranks, by_expert):
        assert found == expected


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_heads_columns_and_vocabulary(ranks: int) -> None:
    """Four query heads of two key heads: shares that are even, uneven, and of one key head."""
    assert_same("tiny-llama", ranks)


@pytest.mark.parametrize(
    "name",
    ["tiny-gemma3", "mini-qwen3_moe", "mini-gpt_oss", "mini-deepseek_v3", "mini-qwen3_next",
     "mini-gemma4_text", "mini-olmo2", "tiny-mtp", "mini-mamba", "mini-mamba2", "mini-kimi_linear",
     "mini-falcon_h1", "tiny-lfm2", "mini-glm5_next_text"],
)  # fmt: skip
def test_three_ranks(name: str) -> None:
    """Windows, experts, sinks, latent attention, recurrences, shared keys, norms over all heads."""
    assert_same(name, 3)


@pytest.mark.parametrize("name", ["tiny-mixtral", "mini-gpt_oss", "mini-gemma4_text"])
def test_whole_experts(name: str) -> None:
    """Experts divided among three ranks; biases, gains and shared experts too."""
    assert_same(name, 3, by_expert=True)


@pytest.mark.parametrize("backend", ["reference", "torch"])
def test_other_backends_take_the_same_exchange(backend: str) -> None:
    """Kernels of NumPy's arrays, and of PyTorch's tensors, which stay on their device."""
    assert_same("tiny-llama", 2, backend)
    assert_same("tiny-mixtral", 2, backend, by_expert=True)


def test_rows_that_are_permuted_are_whole() -> None:
    """Products whose matrices have their columns in other orders; the reference's bits, too."""
    source, options = open_source("synthetic:tiny-llama", LoadOptions()), CompileOptions(threads=1)
    flat = expand(source.program.trunk, {}, lambda node: isinstance(node.op, Linear))
    matrices = [n.weights["weight"] for n in flat.nodes if isinstance(n.op, Linear)]
    rng = np.random.default_rng(3)
    widths = {name: source.program.weights[name].shape[1] for name in matrices}
    orders = {name: ColumnOrder.of(rng.permutation(width)) for name, width in widths.items()}
    program, plain = with_orders(source.program, orders), source.program
    cpu, reference = (find_backend(name)[0] for name in ("cpu", "reference"))
    expected = streams(place(cpu, program, source.weights, options), program)
    assert expected == streams(place(reference, program, source.weights, options), program)
    assert expected != streams(place(cpu, plain, source.weights, options), plain)
    for found in by_ranks(cpu, program, source.weights, 3):
        assert found == expected


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("name", SMALL)
def test_every_family(name: str, ranks: int) -> None:
    """Every model by formula."""
    assert_same(name, ranks)
    assert_same(name, ranks, by_expert=True)


def test_what_is_divided() -> None:
    """Every matrix of a dense model the table of tokens too, and every slot."""
    program = open_source("synthetic:tiny-llama", LoadOptions()).program
    shares = [local_program(program, rank, 3) for rank in range(3)]
    matrices = {name for name, spec in program.weights.items() if len(spec.shape) == 2}
    cut = {one.name for one in shares[0].cuts.values()}
    assert matrices == cut
    for name in program.slots:
        kinds = [share.program.slots[name] for share in shares]
        assert all(isinstance(kind, KVRows) for kind in kinds)
        assert [kind.heads for kind in kinds if isinstance(kind, KVRows)] == [1, 1, 1]
