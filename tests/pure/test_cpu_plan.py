"""From graphs to the steps of the CPU backend: what is computed where, joined, in which memory."""

from __future__ import annotations

from itertools import pairwise

import pytest

from cortiq.backend.fuse import FusedAttention, FusedElementwise, NormChain, QKVPrologue
from cortiq.backend.lower import Gather, joined_products, lower
from cortiq.errors import BackendError
from cortiq.ir import ops, primitives_of
from cortiq.models import load_program
from cortiq.models.synthetic import open_synthetic

pytest.importorskip("cortiq_cpu")
from cortiq_cpu import native
from cortiq_cpu.arena import REPLACING, assign
from cortiq_cpu.fuse import fuser

try:
    native.library()
except BackendError as error:
    pytest.skip(str(error), allow_module_level=True)

MODELS = ("tiny-llama", "tiny-lfm2", "tiny-mixtral", "tiny-gemma3")
REQUESTS = (
    frozenset(),
    frozenset({"logits"}),
    frozenset({"logits", "layers.0.out", "hidden", "embed"}),
)


@pytest.fixture(scope="module", params=MODELS)
def graph(request):
    return primitives_of(load_program(open_synthetic(f"synthetic:{request.param}")).program).trunk


@pytest.mark.parametrize("wanted", REQUESTS, ids=len)
def test_every_value_is_computed_before_it_is_read(graph, wanted):
    lowered = joined_products(lower(graph, wanted))
    joins = fuser(lowered, wanted, frozenset())
    for steps in (
        (lowered.trunk, lowered.tail),
        (joins.fuse(lowered.trunk), joins.fuse(lowered.tail)),
    ):
        known = set(graph.inputs)
        for step in (*steps[0], *steps[1]):
            assert {lowered.root(name) for name in step.inputs} <= known, step
            known |= set(step.outputs)
        assert {lowered.root(name) for name in wanted} <= known


@pytest.mark.parametrize("wanted", REQUESTS, ids=len)
def test_living_values_never_share_memory(graph, wanted):
    """A step that may takes the place of an input it reads last, whole; nothing else overlaps."""
    lowered = joined_products(lower(graph, wanted))
    joins = fuser(lowered, wanted, frozenset())
    trunk, tail = joins.fuse(lowered.trunk), joins.fuse(lowered.tail)
    steps = [*trunk, *tail]
    names = {lowered.root(n) for s in steps for n in (*s.inputs, *s.outputs)} - {
        "token",
        "position",
    }
    sizes = {name: 64 * (1 + len(name) % 3) for name in names}
    kept = {*wanted, *(n for s in tail if isinstance(s.op, Gather) for n in s.inputs)}
    places = assign(lowered, steps, sizes, kept, [])
    living: dict[str, int] = {}
    for index, step in enumerate(steps):
        read = {lowered.root(n) for n in step.inputs}
        later = {lowered.root(n) for s in steps[index + 1 :] for n in s.inputs}
        later |= {lowered.root(name) for name in kept}
        outs = {(places.offsets[n], sizes[n]) for n in step.outputs}
        replaced = {n for n in read - later if (living.get(n), sizes.get(n)) in outs}
        assert not replaced or isinstance(step.op, REPLACING)
        later |= read - replaced
        living = {n: at for n, at in living.items() if n in later}
        living |= {n: places.offsets[n] for n in step.outputs}
        spans = sorted((at, at + sizes[n]) for n, at in living.items())
        assert all(a[1] <= b[0] for a, b in pairwise(spans)), step
        assert not spans or spans[-1][1] <= places.size


def test_a_prompt_without_wants_computes_no_tail(graph):
    lowered = joined_products(lower(graph, frozenset()))
    assert not lowered.tail
    assert "logits" not in {name for step in lowered.trunk for name in step.outputs}


def test_a_llama_block_is_seven_ops():
    program = primitives_of(load_program(open_synthetic("synthetic:tiny-llama")).program)
    lowered = joined_products(lower(program.trunk, frozenset({"logits"})))
    joins = fuser(lowered, frozenset({"logits"}), frozenset())
    steps = joins.fuse(lowered.trunk)
    (first,) = [i for i, s in enumerate(steps) if isinstance(s.op, FusedAttention)][:1]
    block = [type(step.op) for step in steps[first - 2 : first + 6]]
    chain = [ops.MatMul, NormChain, ops.MatMul, FusedElementwise, ops.MatMul]
    assert block == [ops.MatMul, QKVPrologue, FusedAttention, *chain]


def test_what_is_asked_for_by_name_is_not_swallowed():
    program = primitives_of(load_program(open_synthetic("synthetic:tiny-llama")).program)
    computed = {name for node in program.trunk.nodes for name in node.outputs}
    inside = {name for name in computed if name.startswith("layers.0.")}
    assert len(inside) > 15
    for name in sorted(inside):
        wanted = frozenset({name})
        lowered = joined_products(lower(program.trunk, wanted))
        joins = fuser(lowered, wanted, frozenset())
        steps = (*joins.fuse(lowered.trunk), *joins.fuse(lowered.tail))
        assert lowered.root(name) in {n for s in steps for n in s.outputs}, name
