"""Graphs: what the builder and the verifier refuse, decomposition, and the printer's text."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cortiq.errors import GraphError
from cortiq.ir import Builder, KVRows, Type, Value, decompose, primitives_of, verify
from cortiq.ir.layers import (
    LAYERS,
    Attention,
    Embedding,
    GatedMLP,
    LatentAttention,
    Linear,
    Residual,
    RMSNorm,
)
from cortiq.ir.ops import PRIMITIVES, Add, MatMul
from cortiq.ir.printer import print_program
from cortiq.models.fixtures import llama_with_mtp, mimo
from cortiq.numerics import ideal
from cortiq.numerics.layouts import Weight
from cortiq.numerics.rope import RopeTable
from cortiq_reference.ideal import evaluate

ROPE = RopeTable(10000.0, 4)
MIXER = Attention(8, 2, 1, 4, rope=ROPE)
MIXER_WEIGHTS = {"q": "q", "k": "k", "v": "v", "o": "o"}


def start(context=32):
    b = Builder(context=context, facts={"family": "by hand"})
    token, position = b.input("token"), b.input("position")
    x = b.add(Embedding(16, 8), token, name="embed", weights={"table": "table"})
    return b, x, position


def block(b, x, position, name, mixer=MIXER, slot=None, weights=MIXER_WEIGHTS):
    """Norm, attention, residual: named `layers.N`."""
    norm = b.add(RMSNorm(8, 1e-6), x, name=f"{name}.norm", weights={"weight": "norm"})
    slots = {"kv": slot or f"{name}.kv"}
    y = b.add(mixer, norm, position, name=f"{name}.attention", weights=weights, slots=slots)
    return b.add(Residual(), x, y, name=f"{name}.out")


def looped():
    """One block's weights, twice, each time with rows of its own."""
    b, x, position = start()
    for turn in range(2):
        x = block(b, x, position, f"layers.{turn}")
    return b.program(outputs=(x.name,))


def shared_rows():
    """A second layer without keys and values of its own, that reads the first one's."""
    b, x, position = start()
    x = block(b, x, position, "layers.0")
    reader = replace(MIXER, shares_kv=True)
    weights = {"q": "q2", "o": "o2"}
    x = block(b, x, position, "layers.1", reader, "layers.0.kv", weights)
    return b.program(outputs=(x.name,))


LATENT = LatentAttention(
    width=8, heads=3, latent=6, nope_dim=5, rope_dim=4, value_dim=7, eps=1e-6, scale=0.3,
    rope=ROPE, query_latent=4,
)  # fmt: skip


def latent(layer=LATENT):
    b, x, position = start()
    weights = {role: role for role in layer.weight_shapes()}
    b.add(layer, x, position, name="layers.0.attention", weights=weights, slots={"kv": "rows"})
    return b.program(outputs=("layers.0.attention",))


def random_weights(program, seed=0):
    """Float weights of about the size that keeps activations near 1."""
    rng = np.random.default_rng(seed)
    weights = {}
    for name, spec in program.weights.items():
        rows = 1 if len(spec.shape) == 1 else int(np.prod(spec.shape[:-1]))
        values = rng.standard_normal((rows, spec.shape[-1])) / np.sqrt(spec.shape[-1])
        weights[name] = Weight.from_floats(values.astype(np.float32))
    return weights


PROGRAMS = {"looped": looped, "shared": shared_rows, "latent": latent,
            "mimo": lambda: mimo(64), "mtp": lambda: llama_with_mtp(64)}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("layout", ["f32", "w16"])
def test_programs_and_their_decompositions_keep_the_rules(name, layout):
    program = PROGRAMS[name]()
    program = program.with_layouts(dict.fromkeys(program.weights, layout))
    verify(program)
    primitives = primitives_of(program)
    verify(primitives)
    kinds = {type(n.op) for g in primitives.graphs.values() for n in g.nodes}
    assert kinds <= set(PRIMITIVES)
    for graph in program.graphs.values():
        assert set(graph.outputs) <= set(primitives.graphs[graph.name].values)
        assert set(graph.values) <= set(primitives.graphs[graph.name].values)


def test_quantised_rows_appear_only_for_integer_codes():
    program = looped()
    for layout, expected in (("f32", 0), ("w16", 4)):
        graph = primitives_of(program.with_layouts(dict.fromkeys(program.weights, layout))).trunk
        rows = [n for n in graph.nodes if n.op.kind == "Quantise" and ".attention" in n.name]
        # q, k and v are always quantised for attention; the rows that meet matrices only for codes.
        assert len(rows) == 2 * 3 + expected


def test_a_row_that_meets_several_matrices_is_quantised_once():
    program = shared_rows()
    graph = primitives_of(program.with_layouts(dict.fromkeys(program.weights, "w16"))).trunk
    assert len({n.inputs for n in graph.nodes if n.op.kind == "Quantise"}) == len(
        [n for n in graph.nodes if n.op.kind == "Quantise"]
    )


def test_only_layers_decompose():
    program = looped()
    graph = program.trunk
    assert {type(n.op) for n in graph.nodes} <= {*LAYERS, *PRIMITIVES}
    norm = next(n for n in graph.nodes if n.op.kind == "RMSNorm")
    with pytest.raises(GraphError, match="RMSNorm is a primitive"):
        decompose(norm, graph, {})
    attention = next(n for n in graph.nodes if n.op.kind == "Attention")
    nodes = decompose(attention, graph, dict.fromkeys(program.weights, "w16"))
    assert nodes[-1].outputs == attention.outputs


def edited(program, node_name, **changes):
    """The program with fields of one node replaced."""
    trunk = program.trunk
    nodes = tuple(replace(n, **changes) if n.name == node_name else n for n in trunk.nodes)
    return with_trunk(program, nodes=nodes)


def with_trunk(program, **changes):
    return replace(program, graphs={"trunk": replace(program.trunk, **changes)})


def without(program, name):
    return {k: v for k, v in program.weights.items() if k != name}


def two_writers():
    program = looped()
    return edited(program, "layers.1.attention", slots={"kv": "layers.0.kv"})


def two_graphs_write():
    program = looped()
    other = replace(program.trunk, name="other")
    return replace(program, graphs={"trunk": program.trunk, "other": other})


def float_row_on_codes():
    b, x, _ = start()
    b.add(MatMul(8, 4), x, name="y", weights={"weight": "w"})
    program = b.program(outputs=("y",))
    return program.with_layouts({"table": "w8", "w": "w8"})


BROKEN = {
    "reads 'layers.9.out', which no earlier node computes": lambda: edited(
        looped(), "layers.1.norm", inputs=("layers.9.out",)
    ),
    "reads 'layers.1.out', which no earlier node computes": lambda: edited(
        looped(), "layers.0.norm", inputs=("layers.1.out",)
    ),
    "computes 'embed' a second time": lambda: edited(looped(), "layers.0.norm", outputs=("embed",)),
    "output 'nowhere' is never computed": lambda: with_trunk(looped(), outputs=("nowhere",)),
    "an input or output has no type": lambda: with_trunk(
        looped(), values={k: v for k, v in looped().trunk.values.items() if k != "embed"}
    ),
    "the declared outputs differ from those of RMSNorm": lambda: with_trunk(
        looped(), values=looped().trunk.values | {"layers.0.norm": Type((9,))}
    ),
    r"RMSNorm takes f32\[..., 9\], got f32\[8\]": lambda: edited(
        looped(), "layers.0.norm", op=RMSNorm(9, 1e-6)
    ),
    "has no weight in the role 'weight'": lambda: replace(
        looped(), weights=without(looped(), "norm")
    ),
    r"weight 'q' is \(8, 8\), needs \(4, 8\)": lambda: edited(
        looped(), "layers.0.attention", weights=MIXER_WEIGHTS | {"k": "q"}
    ),
    r"slot 'layers.0.kv' is KVRows\(heads=3": lambda: replace(
        looped(), slots=looped().slots | {"layers.0.kv": KVRows(3, 4, 4)}
    ),
    "slot None is None, needs KVRows": lambda: edited(looped(), "layers.0.attention", slots={}),
    "writes slot 'layers.0.kv', which 'layers.0.attention' already wrote": two_writers,
    "writes slot 'layers.0.kv', which another graph writes too": two_graphs_write,
    "reads slot 'layers.0.kv', which no earlier node writes": lambda: edited(
        shared_rows(), "layers.0.attention", slots={"kv": "elsewhere"}
    ),
    "a f32 row meets a weight of layout 'w8'": float_row_on_codes,
}
"""What the verifier says, and a program that makes it say so."""


@pytest.mark.parametrize("message", BROKEN)
def test_every_rule_bites(message):
    with pytest.raises(GraphError, match=message):
        verify(BROKEN[message]())


def test_one_graph_under_two_entries_writes_its_slots_twice():
    program = looped()
    twice = replace(program, graphs={"trunk": program.trunk, "other": program.trunk})
    with pytest.raises(GraphError, match=r"other: writes slot .* which another graph writes too"):
        verify(twice)


@pytest.mark.parametrize("name", ["layers.0.attention.q.rope", "layers.0.attention.store"])
def test_a_node_named_as_one_inside_a_layer_is_refused(name):
    inner = {node.name for node in primitives_of(looped()).trunk.nodes}
    assert name in inner
    program = edited(looped(), "layers.1.norm", name=name)
    with pytest.raises(GraphError, match=f"{name}: is named as a part of 'layers.0.attention'"):
        primitives_of(program)
    assert set(inner) == {node.name for node in primitives_of(looped()).trunk.nodes}


def test_a_value_named_as_one_inside_a_layer_is_refused():
    b, x, position = start()
    x = block(b, x, position, "layers.0")
    x = b.add(Add(), x, x, name="layers.0.attention.q")
    with pytest.raises(GraphError, match=r"layers.0.attention.q: is named as a part"):
        primitives_of(b.program(outputs=(x.name,)))


def test_all_findings_are_listed_at_once():
    program = replace(looped(), weights=without(looped(), "norm"))
    program = with_trunk(program, outputs=("nowhere",))
    with pytest.raises(GraphError) as error:
        verify(program)
    assert str(error.value).count("has no weight in the role 'weight'") == 2
    assert "nowhere" in str(error.value)


def test_the_builder_refuses_what_does_not_fit():
    b, x, position = start()
    with pytest.raises(GraphError, match=r"w: Linear takes f32\[..., 9\], got f32\[8\]"):
        b.add(Linear(9, 4), x, name="w", weights={"weight": "w"})
    with pytest.raises(GraphError, match=r"takes the weights \['weight'\], got \[\]"):
        b.add(Linear(8, 4), x, name="w")
    with pytest.raises(GraphError, match=r"takes the slots \['kv'\], got \[\]"):
        b.add(MIXER, x, position, name="a", weights=MIXER_WEIGHTS)
    with pytest.raises(GraphError, match="two values are named 'embed'"):
        b.add(Add(), x, x, name="embed")
    with pytest.raises(GraphError, match=r"table: used with shapes \(16, 8\) and \(4, 8\)"):
        b.add(Linear(8, 4), x, name="head", weights={"weight": "table"})
    with pytest.raises(GraphError, match="output 'logits' is not a value"):
        b.program(outputs=("logits",))


@pytest.mark.parametrize(
    ("layer", "inputs"),
    [
        (Add(), [Type((8,)), Type((4,))]),
        (GatedMLP(8, 4), [Type((9,))]),
        (MIXER, [Type((8,)), Type(())]),
        (Embedding(4, 4), [Type(())]),
        (LATENT, [Type((8,), "i32"), Type((), "i32")]),
    ],
)
def test_operators_refuse_other_types(layer, inputs):
    with pytest.raises(ValueError, match=r"takes|heads"):
        layer.infer(*inputs)


def test_looping_a_block_equals_a_copy_of_its_weights():
    program = looped()
    weights = random_weights(program)
    b, x, position = start()
    x = block(b, x, position, "layers.0")
    names = {role: f"{role}.copy" for role in MIXER_WEIGHTS}
    block(b, x, position, "layers.1", weights=names)
    copied = b.program(outputs=("layers.1.out",))
    more = weights | {f"{role}.copy": weights[role] for role in MIXER_WEIGHTS}
    tokens = [3, 1, 4, 1, 5, 9]
    once = evaluate(program, weights, tokens, ["layers.1.out"])["layers.1.out"]
    assert np.array_equal(once, evaluate(copied, more, tokens, ["layers.1.out"])["layers.1.out"])


def test_a_layer_that_shares_rows_equals_one_that_computes_them_again():
    program = shared_rows()
    weights = random_weights(program)
    tokens = [3, 1, 4, 1, 5, 9]
    values = evaluate(program, weights, tokens, ["layers.0.norm", "layers.1.norm", "layers.1.out"])
    w = {name: weight.parts["raw"].view("<f4").astype(float) for name, weight in weights.items()}
    cos, sin = ideal.rope_table(ROPE, np.arange(6))
    q = ideal.apply_rope((values["layers.1.norm"] @ w["q2"].T).reshape(6, 2, 4), cos, sin)
    k = ideal.apply_rope((values["layers.0.norm"] @ w["k"].T).reshape(6, 1, 4), cos, sin)
    v = values["layers.0.norm"] @ w["v"].T
    scores = np.einsum("qhd,kd->hqk", q, k[:, 0]) / 2
    p = ideal.softmax(scores, np.tril(np.ones((6, 6), bool)))
    out = np.einsum("hqk,kd->qhd", p, v).reshape(6, 8) @ w["o2"].T
    middle = evaluate(program, weights, tokens, ["layers.0.out"])["layers.0.out"]
    assert np.allclose(values["layers.1.out"], middle + out, rtol=0, atol=1e-12)


def expanded_latent_attention(layer, w, x):
    """DeepSeek-V2, section 2.1, with keys and values of every head written out."""
    n = len(x)
    cos, sin = ideal.rope_table(layer.rope, np.arange(n))
    joint = x @ w["kv_a"].T
    c = ideal.rms_norm(joint[:, : layer.latent], w["kv_a_norm"][0], layer.eps)
    k_rope = joint[:, None, layer.latent :]
    k_rope = ideal.apply_rope(k_rope, cos, sin, "interleaved")
    q = ideal.rms_norm(x @ w["q_a"].T, w["q_a_norm"][0], layer.eps) @ w["q"].T
    q = q.reshape(n, layer.heads, -1)
    q_nope, q_rope = q[..., : layer.nope_dim], q[..., layer.nope_dim :]
    q_rope = ideal.apply_rope(q_rope, cos, sin, "interleaved")
    k_b = w["k_b"].reshape(layer.heads, layer.latent, layer.nope_dim)
    v_b = w["v_b"].reshape(layer.heads, layer.value_dim, layer.latent)
    keys = np.einsum("nl,hld->nhd", c, k_b)
    values = np.einsum("nl,hvl->nhv", c, v_b)
    scores = np.einsum("qhd,khd->hqk", q_nope, keys)
    scores = (scores + np.einsum("qhd,kd->hqk", q_rope, k_rope[:, 0])) * layer.scale
    p = ideal.softmax(scores, np.tril(np.ones((n, n), bool)))
    return np.einsum("hqk,khv->qhv", p, values).reshape(n, -1) @ w["o"].T


def test_absorbed_latent_attention_equals_the_expanded_form():
    program = latent()
    weights = random_weights(program)
    w = {name: weight.parts["raw"].view("<f4").astype(float) for name, weight in weights.items()}
    tokens = [3, 1, 4, 1, 5, 9, 2, 6]
    values = evaluate(program, weights, tokens, ["embed", "layers.0.attention"])
    expanded = expanded_latent_attention(LATENT, w, values["embed"])
    assert np.allclose(values["layers.0.attention"], expanded, rtol=0, atol=1e-12)


def test_latent_attention_without_query_compression_verifies():
    verify(latent(replace(LATENT, query_latent=0)))


LOOPED_TEXT = """\
family: by hand
context: 32

graph trunk(token i32[], position i32[]) -> layers.1.out
  embed f32[8] = Embedding(vocab=16, width=8)(token)
  layers.0 … layers.1: 2 equal blocks
    layers.0.norm f32[8] = RMSNorm(width=8, eps=1e-06)(embed)
    layers.0.attention f32[8] = Attention(width=8, heads=2, kv_heads=1, head_dim=4, \
rope=RopeTable(base=10000.0, dim=4, scaling=Default()))\
(layers.0.norm, position) @ layers.0.kv
    layers.0.out f32[8] = Residual()(embed, layers.0.attention)"""


def test_the_printer_folds_equal_blocks():
    assert print_program(looped()) == LOOPED_TEXT


def test_the_printer_shows_everything_when_asked():
    text = print_program(looped(), full=True)
    assert text.count("Attention(") == 2
    assert "equal blocks" not in text


def test_the_printer_names_a_shared_slot_and_latent_rows():
    text = print_program(shared_rows())
    assert text.count("@ layers.0.kv") == 2
    assert "shares_kv=True" in text
    assert "LatentAttention(width=8, heads=3, latent=6" in print_program(latent())


def test_the_printer_shows_every_entry_graph():
    text = print_program(llama_with_mtp(64))
    assert "graph trunk(token i32[], position i32[]) -> hidden, logits" in text
    assert "graph mtp(token i32[], position i32[], hidden f32[64]) -> mtp.hidden, logits" in text


def test_a_value_is_its_name_and_type():
    assert str(Value("x", Type((2, 3))).type) == "f32[2, 3]"
