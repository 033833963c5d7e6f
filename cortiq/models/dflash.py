"""DFlash: a drafter that fills a whole block at once, from rows tapped from the trunk's layers.

    c = norm(W·[tapped rows])                       a context row, once for each position
    h = embed(token)                                the block: the last token, then mask tokens
    h += o·attend(q(norm(h)), keys, values)         of context rows, then of the block's
    h += mlp(norm(h));   logits = the trunk's head of norm(h)

Keys and values are projections of c for context rows and of norm(h) for the block's, whose rows all
see one another. Both are rows of one entry: `context` is 1 or 0, and selects by products with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cortiq.errors import FormatError, shown
from cortiq.ir import Builder, Graph, Program, Value, ops
from cortiq.ir.heads import BLOCK, KEPT_ROWS, RECALLED, DraftHead
from cortiq.ir.layers import Embedding, GatedMLP, Linear, Residual, RMSNorm
from cortiq.models.config import BaseConfig, Keys, config_from_json
from cortiq.models.heads import keep, part_shape, resume, trunk_logits
from cortiq.models.open_checkpoint import OpenCheckpoint
from cortiq.models.parts import activation
from cortiq.models.registry import location_of
from cortiq.models.rope import rope_table

ENTRY, PREFIX = "dflash", "dflash."
"""Its entry graph, and what stands before its tensors' names in a program."""
SMALLEST = 2
"""Rows of a block at least."""
KEYS = Keys(harmless=frozenset({"num_target_layers", "max_window_layers", "use_sliding_window"}))


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of a drafter's config.json; `dflash_config` has `mask_token_id` and
    `target_layer_ids`, the trunk's layers whose outputs are tapped.
    """

    rms_norm_eps: float = 1e-6
    hidden_act: str = "silu"
    attention_bias: bool = False
    layer_types: tuple[str, ...] | None = None
    block_size: int = 16
    dflash_config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def taps(self) -> tuple[int, ...]:
        """Layers of the trunk whose outputs the drafter reads."""
        named = self.dflash_config.get("target_layer_ids", ())
        return tuple(named) if isinstance(named, (list, tuple)) else ()

    @property
    def mask_token(self) -> int:
        """The token that stands for tokens to be drafted."""
        return self.dflash_config.get("mask_token_id", -1)


def read_drafter(side: OpenCheckpoint, program: Program) -> Config:
    """Read a drafter's configuration and check that it fits a trunk.

    Raises
    ------
    FormatError : it was made for another model, or says nothing of taps and mask.
    """
    where = location_of(side)
    config = config_from_json(Config, KEYS, side.config, where=where)
    layers = program.facts["layers"]
    sound = all(type(n) is int and 0 <= n < layers for n in config.taps) and config.taps
    if not sound:
        named = config.dflash_config.get("target_layer_ids")
        hint = f"dflash_config.target_layer_ids lists layers of the model, from 0 to {layers - 1}"
        raise FormatError(f"taps the layers {shown(named)} of {layers}", where=where, hint=hint)
    facts = {"hidden_size": "width", "vocab_size": "vocab_size"}
    for key, fact in facts.items():
        if getattr(config, key) != program.facts[fact]:
            raise FormatError(
                f"is a drafter of another model: its {key} is {getattr(config, key)}, "
                f"the model's {program.facts[fact]}",
                where=where,
                hint="draft with it for the model that it was made for",
            )
    if config.block_size < SMALLEST:
        what = f"block_size is {config.block_size}: a block holds the last token and what it drafts"
        raise FormatError(what, where=where, hint=f"{SMALLEST} is the least")
    if not (type(config.mask_token) is int and 0 <= config.mask_token < config.vocab_size):
        hint = f"dflash_config.mask_token_id is one of the {config.vocab_size} ids"
        raise FormatError(f"its mask token is {shown(config.mask_token)}", where=where, hint=hint)
    return config


def synthetic_drafter(program: Program) -> Config:
    """Return a formula drafter as wide as its model: two layers, blocks of eight."""
    facts = program.facts
    dim = facts["width"] // facts["heads"]
    return Config(
        vocab_size=facts["vocab_size"], hidden_size=facts["width"],
        intermediate_size=2 * facts["width"], num_hidden_layers=2,
        num_attention_heads=facts["heads"], num_key_value_heads=facts["kv_heads"], head_dim=dim,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, block_size=8,
        dflash_config={"mask_token_id": 0, "target_layer_ids": [0, facts["layers"] - 1]},
    )  # fmt: skip


def with_drafter(program: Program, config: Config) -> Program:
    """Return the program with the drafter's entry and a trunk that stores the tapped rows."""
    sources = tuple(f"layers.{n}.out" for n in config.taps)
    head = DraftHead(BLOCK, (ENTRY,), ",".join(sources), config.block_size, config.mask_token)
    b = Builder(context=program.context, facts={**program.facts, "block_drafter": head})
    b.weights.update(program.weights)
    b.slots.update(program.slots)
    b.graphs.update(program.graphs)
    resume(b, program.trunk)
    for n, source in enumerate(sources):
        keep(b, Value(source, b.values[source]), f"{KEPT_ROWS}.{n}")
    b.graph("trunk", program.trunk.outputs)
    _entry(b, program.trunk, config)
    b.graph(ENTRY, (f"{ENTRY}.hidden", "logits"))
    return b.program()


def _entry(b: Builder, trunk: Graph, config: Config) -> None:
    width, eps = config.hidden_size, config.rms_norm_eps
    token, position, last = b.input("token"), b.input("position"), b.input("last")
    context = b.input("context", (1,), "f32")
    block = b.add(ops.Shift(1.0), _scaled(b, context), name=f"{ENTRY}.block")
    table = next(node for node in trunk.nodes if "embed" in node.outputs)
    embedding = table.op
    assert isinstance(embedding, Embedding)
    h = b.add(embedding, token, name=f"{ENTRY}.embed", weights=table.weights)
    c = _norm(b, _tapped(b, position, config), "context_norm", "hidden_norm", eps)
    write = _Layers(b, config, rope_table(config, b.context), (position, last, context, block), c)
    for n in range(config.num_hidden_layers):
        h = write.layer(h, n)
    trunk_logits(b, trunk, ENTRY, _norm(b, h, "hidden", "norm", eps))
    assert width == h.type.shape[0]


def _scaled(b: Builder, context: Value) -> Value:
    return b.add(ops.Scale(-1.0), context, name=f"{ENTRY}.minus")


def _norm(b: Builder, x: Value, name: str, tensor: str, eps: float) -> Value:
    weights = {"weight": f"{PREFIX}{tensor}.weight"}
    return b.add(RMSNorm(x.type.shape[-1], eps), x, name=f"{ENTRY}.{name}", weights=weights)


def _tapped(b: Builder, position: Value, config: Config) -> Value:
    """Return W·[tapped rows of the position]."""
    width, rows = config.hidden_size, []
    for n in range(len(config.taps)):
        slot, shape = f"{KEPT_ROWS}.{n}", part_shape(width)
        parts = b.add(ops.Recall(*shape), position, name=f"{RECALLED}.{n}", slots={"kv": slot})
        rows.append(b.add(ops.Reshape((width,)), parts, name=f"{ENTRY}.tap.{n}"))
    joined = b.add(ops.Concat(), *rows, name=f"{ENTRY}.taps") if len(rows) > 1 else rows[0]
    op = Linear(width * len(rows), width)
    weights = {"weight": f"{PREFIX}fc.weight"}
    return b.add(op, joined, name=f"{ENTRY}.context", weights=weights)


@dataclass
class _Layers:
    """Writes the drafter's layers."""

    b: Builder
    config: Config
    rope: Any
    rows: tuple[Value, Value, Value, Value]
    context: Value

    def layer(self, h: Value, n: int) -> Value:
        """Write a layer: attention and MLP."""
        here, file, eps = f"layers.{n}", f"{PREFIX}layers.{n}", self.config.rms_norm_eps
        x = _norm(self.b, h, f"{here}.attention_norm", f"layers.{n}.input_layernorm", eps)
        y = self._attention(x, here, file)
        h = self.b.add(Residual(), h, y, name=f"{ENTRY}.{here}.middle")
        x = _norm(self.b, h, f"{here}.mlp_norm", f"layers.{n}.post_attention_layernorm", eps)
        act = activation(self.config.hidden_act)
        mlp = GatedMLP(self.config.hidden_size, self.config.intermediate_size, act)
        weights = {role: f"{file}.mlp.{role}_proj.weight" for role in mlp.weight_shapes()}
        y = self.b.add(mlp, x, name=f"{ENTRY}.{here}.mlp", weights=weights)
        return self.b.add(Residual(), h, y, name=f"{ENTRY}.{here}.out")

    def _attention(self, x: Value, here: str, file: str) -> Value:
        config, b, (_, last, context, block) = self.config, self.b, self.rows
        heads, groups, dim = config.num_attention_heads, config.kv_heads, config.head_width
        name = f"{ENTRY}.{here}"
        given = [
            b.add(ops.ScaleRows(), value, factor, name=f"{name}.{what}")
            for what, value, factor in (("of_context", self.context, context),
                                        ("of_block", x, block))
        ]  # fmt: skip
        source = b.add(ops.Add(), *given, name=f"{name}.source")
        q = self._heads(x, "q", heads, name, file)
        k = self._heads(source, "k", groups, name, file)
        v = self._heads(source, "v", groups, name, file)
        slot = {"kv": f"{name}.kv"}
        b.add_node(ops.StoreKV(groups, dim, dim), k, v, name=f"{name}.store", slots=slot)
        op = ops.Attend(heads, groups, dim, dim, dim**-0.5, until=True)
        y = b.add(op, q, last, name=f"{name}.attend", slots=slot)
        y = b.add(ops.Reshape((heads * dim,)), y, name=f"{name}.joined")
        return self._linear(y, "o", name, file, config.hidden_size)

    def _linear(self, x: Value, role: str, name: str, file: str, width: int) -> Value:
        biased = self.config.attention_bias
        op = Linear(x.type.shape[-1], width, biased)
        tensor = f"{file}.self_attn.{role}_proj"
        weights = {part: f"{tensor}.{part}" for part in op.weight_shapes()}
        return self.b.add(op, x, name=f"{name}.{role}", weights=weights)

    def _heads(self, x: Value, role: str, heads: int, name: str, file: str) -> Value:
        """Return the quantised heads of a projection; queries and keys normed and rotated."""
        b, config, dim = self.b, self.config, self.config.head_width
        y = self._linear(x, role, name, file, heads * dim)
        y = b.add(ops.Reshape((heads, dim)), y, name=f"{name}.{role}.heads")
        if role != "v":
            tensor = {"weight": f"{file}.self_attn.{role}_norm.weight"}
            norm = RMSNorm(dim, config.rms_norm_eps)
            y = b.add(norm, y, name=f"{name}.{role}.norm", weights=tensor)
            y = b.add(ops.Rope(self.rope), y, self.rows[0], name=f"{name}.{role}.rope")
        return b.add(ops.Quantise(), y, name=f"{name}.{role}.codes")
