"""EAGLE-3: a draft head of one layer that reads three of the trunk's layers.

    c = W·[rows of the tapped layers]               written by the trunk, once for each position
    x = [norm(embed(token)) ; norm(c)]
    h = c + o·attend(q·x, keys, values of x)        c after its norm with `norm_before_residual`
    y = h + mlp(norm(h))                            stands in for c where drafts follow drafts
    scores = head·norm(y)                           of a part of the vocabulary, then placed in it

Row j takes the token at position j + 1 and the rows of position j, as every chain (`ir.heads`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from cortiq.errors import UnsupportedError
from cortiq.ir import Builder, Graph, Program, Value, ops
from cortiq.ir.heads import CHAIN, EAGLE3, KEPT_ROWS, DraftHead
from cortiq.ir.layers import Embedding, GatedMLP, Linear, Residual, RMSNorm
from cortiq.models.eagle3_files import PREFIX, Config, EagleHead
from cortiq.models.heads import keep, recall, resume, trunk_logits
from cortiq.models.parts import MLP, activation, named
from cortiq.models.rope import rope_table

FUSED, INDEX = f"{PREFIX}fused", f"{PREFIX}index"
"""The trunk's value that the head takes; the weight that places its scores."""


def synthetic_head(program: Program) -> EagleHead:
    """Return a formula head as wide as its model, which scores all tokens."""
    facts = program.facts
    config = Config(
        vocab_size=facts["vocab_size"], hidden_size=facts["width"],
        intermediate_size=2 * facts["width"], num_hidden_layers=1,
        num_attention_heads=facts["heads"], num_key_value_heads=facts["kv_heads"],
        head_dim=facts["width"] // facts["heads"],
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )  # fmt: skip
    last = facts["layers"] - 1
    taps = tuple(f"layers.{n}.out" for n in (0, last // 2, last))
    return EagleHead(config, taps, own_table=False)


def with_head(program: Program, head: EagleHead) -> Program:
    """Return the program with the head's entry, and a trunk that keeps what it takes.

    Raises
    ------
    UnsupportedError : the program has other entries.
    """
    if len(program.graphs) > 1:
        what = f"an EAGLE-3 head in addition to {sorted(set(program.graphs) - {'trunk'})[0]}"
        raise UnsupportedError(what, where="heads")
    fact = DraftHead(CHAIN, (EAGLE3,), FUSED)
    b = Builder(context=program.context, facts={**program.facts, "draft_head": fact})
    b.weights.update(program.weights)
    b.slots.update(program.slots)
    resume(b, program.trunk)
    rows = [Value(name, b.values[name]) for name in head.taps]
    joined = b.add(ops.Concat(), *rows, name=f"{PREFIX}taps") if len(rows) > 1 else rows[0]
    project = {"weight": f"{PREFIX}fc.weight"}
    op = Linear(joined.type.shape[0], head.config.hidden_size)
    keep(b, b.add(op, joined, name=FUSED, weights=project), KEPT_ROWS)
    b.graph("trunk", program.trunk.outputs)
    _Entry(b, head, rope_table(head.config, b.context)).write(program.trunk)
    b.graph(EAGLE3, (f"{EAGLE3}.out", f"{EAGLE3}.hidden", "logits"))
    return b.program()


@dataclass
class _Entry:
    """Writes the head's entry graph."""

    b: Builder
    head: EagleHead
    rope: Any

    def write(self, trunk: Graph) -> None:
        """Write the layer, from the token and what the trunk kept up to logits."""
        b, config = self.b, self.head.config
        token, position = b.input("token"), b.input("position")
        given = recall(b, position, config.hidden_size, KEPT_ROWS, EAGLE3)
        embedded = self._norm(self._embedded(token, trunk), "layers.0.input_layernorm")
        normed = self._norm(given, "layers.0.hidden_norm")
        x = b.add(ops.Concat(), embedded, normed, name=f"{EAGLE3}.joined")
        before = normed if config.norm_before_residual else given
        y = self._attention(x, position)
        h = b.add(Residual(), before, y, name=f"{EAGLE3}.middle")
        inner, act = config.intermediate_size, activation(config.hidden_act)
        mlp = GatedMLP(config.hidden_size, inner, act, config.mlp_bias)
        x = self._norm(h, "layers.0.post_attention_layernorm")
        weights = named(mlp, f"{PREFIX}layers.0.mlp", MLP)
        y = b.add(mlp, x, name=f"{EAGLE3}.mlp", weights=weights)
        h = b.add(Residual(), h, y, name=f"{EAGLE3}.out")
        self._scores(self._norm(h, "norm", "hidden"), trunk)

    def _norm(self, x: Value, tensor: str, name: str = "") -> Value:
        op = RMSNorm(x.type.shape[-1], self.head.config.rms_norm_eps)
        name = name or tensor.rpartition(".")[2]
        weights = {"weight": f"{PREFIX}{tensor}.weight"}
        return self.b.add(op, x, name=f"{EAGLE3}.{name}", weights=weights)

    def _embedded(self, token: Value, trunk: Graph) -> Value:
        """Write the token's row of the head's own table, or of the trunk's, which is not scaled."""
        table = next(node for node in trunk.nodes if "embed" in node.outputs)
        op, weights = table.op, {"table": f"{PREFIX}embed_tokens.weight"}
        if self.head.own_table:
            op = Embedding(self.head.config.vocab_size, self.head.config.hidden_size)
        elif isinstance(op, Embedding):
            op, weights = replace(op, multiplier=1.0), dict(table.weights)
        else:
            raise UnsupportedError("a head without a table, of a model whose is no plain one")
        return self.b.add(op, token, name=f"{EAGLE3}.embed", weights=weights)

    def _attention(self, x: Value, position: Value) -> Value:
        b, config = self.b, self.head.config
        heads, groups, dim = config.num_attention_heads, config.kv_heads, config.head_width
        q, k, v = (self._heads(x, role, position) for role in "qkv")
        slot = {"kv": f"{EAGLE3}.kv"}
        b.add_node(ops.StoreKV(groups, dim, dim), k, v, name=f"{EAGLE3}.store", slots=slot)
        attend = ops.Attend(heads, groups, dim, dim, dim**-0.5)
        y = b.add(attend, q, position, name=f"{EAGLE3}.attend", slots=slot)
        y = b.add(ops.Reshape((heads * dim,)), y, name=f"{EAGLE3}.merged")
        return self._linear(y, "o", config.hidden_size)

    def _linear(self, x: Value, role: str, width: int) -> Value:
        op = Linear(x.type.shape[-1], width, self.head.config.attention_bias)
        tensor = f"{PREFIX}layers.0.self_attn.{role}_proj"
        weights = {part: f"{tensor}.{part}" for part in op.weight_shapes()}
        return self.b.add(op, x, name=f"{EAGLE3}.{role}", weights=weights)

    def _heads(self, x: Value, role: str, position: Value) -> Value:
        """Return the quantised heads of a projection; queries and keys rotated."""
        b, config, name = self.b, self.head.config, f"{EAGLE3}.{role}"
        heads = config.num_attention_heads if role == "q" else config.kv_heads
        y = self._linear(x, role, heads * config.head_width)
        y = b.add(ops.Reshape((heads, config.head_width)), y, name=f"{name}.heads")
        if role != "v":  # GGUF files hold rows of queries and keys pair by pair
            pairing = "interleaved" if config.source == "gguf" else "half"
            y = b.add(ops.Rope(self.rope, pairing), y, position, name=f"{name}.rope")
        return b.add(ops.Quantise(), y, name=f"{name}.codes")

    def _scores(self, x: Value, trunk: Graph) -> None:
        """Write the logits of the whole vocabulary; tokens that are not scored come last."""
        head, config = self.head, self.head.config
        if not head.own_scores:
            trunk_logits(self.b, trunk, EAGLE3, x)
            return
        scored = config.draft_vocab_size or config.vocab_size
        name = "logits" if head.places is None else f"{EAGLE3}.scores"
        weights = {"weight": f"{PREFIX}lm_head.weight"}
        y = self.b.add(Linear(config.hidden_size, scored), x, name=name, weights=weights)
        if head.places is not None:
            op = ops.IndexSelect(scored, config.vocab_size)
            self.b.add(op, y, name="logits", weights={"index": INDEX})
