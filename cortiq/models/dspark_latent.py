"""Kimi K3's DSpark: a folder with layers of latent attention and gated MLPs."""

from __future__ import annotations

from dataclasses import dataclass

from cortiq.errors import FormatError, UnsupportedError
from cortiq.ir import Builder, Program, Value, ops
from cortiq.ir.heads import DSPARK, REDUCED
from cortiq.ir.layers import GatedMLP, Linear, Residual, RMSNorm
from cortiq.models.config import Keys, config_from_json
from cortiq.models.dspark import (
    MOST_ROWS,
    BlockRows,
    HeadLinear,
    Scoring,
    attended,
    checked_taps,
    context_row,
    turned,
)
from cortiq.models.mla import JOINT, LatentConfig, latent_attention
from cortiq.models.names import Names
from cortiq.models.open_checkpoint import OpenCheckpoint
from cortiq.models.parts import MLP, activation, named
from cortiq.models.registry import location_of
from cortiq.models.rope import rope_table

PREFIX = f"{DSPARK}."
"""What stands before its tensors' names in a program."""
ARCHITECTURES = ("k3_dspark",)


def bare(name: str) -> str:
    """Return the name of a tensor of a layer without the prefix of whole models."""
    return name.removeprefix("model.")


NAMES = Names(
    fused=(JOINT,), forms=(bare,),
    unread=r"(model\.)?embed_tokens\.weight|lm_head\.weight|confidence_head\.proj\.(weight|bias)",
)  # fmt: skip
"""Tensors of its folder: copies of the model's are not read, and its confidence is not, whose
authors have not calibrated it."""
KEYS = Keys(
    harmless=frozenset({
        "_torchspec_version", "confidence_head_with_markov", "enable_confidence_head",
        "pad_token_id",
    }),
    only={"markov_head_type": "vanilla", "mla_use_nope": False, "mla_use_output_gate": False},
)  # fmt: skip
ROWS = 7
"""Rows of a block where the file does not say: what its authors serve it with."""


@dataclass(frozen=True, kw_only=True)
class Config(LatentConfig):
    """Fields of a drafter's config.json.

    Attributes
    ----------
    target_layer_ids : the trunk's layers whose outputs are tapped, `num_target_layers` of them.
    target_hidden_size, target_num_hidden_layers : the trunk's width and layers.
    """

    rms_norm_eps: float = 1e-5
    target_layer_ids: tuple[int, ...]
    mask_token_id: int
    markov_rank: int
    block_size: int = ROWS
    num_target_layers: int | None = None
    target_hidden_size: int | None = None
    target_num_hidden_layers: int | None = None
    draft_vocab_size: int | None = None


def read_drafter(side: OpenCheckpoint, program: Program) -> Config:
    """Read a drafter's configuration and check that it fits a trunk.

    Raises
    ------
    FormatError : it was made for another model, or says nothing of taps and mask.
    UnsupportedError : it is a drafter of another kind.
    """
    where, facts = location_of(side), program.facts
    if side.architecture not in ARCHITECTURES:
        what = f"a DSpark drafter of the model_type {side.architecture!r}"
        hint = f"a folder of one has {ARCHITECTURES[0]!r}; DeepSeek V4's is in the model's folder"
        raise UnsupportedError(what, where=where, hint=hint)
    config = config_from_json(Config, KEYS, side.config, where=where)
    taps = checked_taps(config.target_layer_ids, program, "target_layer_ids", where)
    pairs = {
        "hidden_size": (config.hidden_size, facts["width"]),
        "vocab_size": (config.vocab_size, facts["vocab_size"]),
        "target_hidden_size": (config.target_hidden_size, facts["width"]),
        "target_num_hidden_layers": (config.target_num_hidden_layers, facts["layers"]),
        "draft_vocab_size": (config.draft_vocab_size, facts["vocab_size"]),
    }
    for key, (mine, other) in pairs.items():
        if mine not in (None, other):
            what = f"is a drafter of another model: its {key} is {mine}, the model's {other}"
            hint = "draft with it for the model that it was made for"
            raise FormatError(what, where=where, hint=hint)
    if config.num_target_layers not in (None, len(taps)):
        what = f"num_target_layers is {config.num_target_layers}, target_layer_ids has {len(taps)}"
        raise FormatError(what, where=where)
    if config.block_size > MOST_ROWS:
        raise UnsupportedError(f"blocks of {config.block_size} rows", where=where,
                               hint=f"block_size is {MOST_ROWS} at most")  # fmt: skip
    if not 0 <= config.mask_token_id < config.vocab_size:
        hint = f"mask_token_id is one of the {config.vocab_size} ids"
        raise FormatError(f"its mask token is {config.mask_token_id}", where=where, hint=hint)
    if config.q_lora_rank is None or config.attention_bias:
        what = f"q_lora_rank = {config.q_lora_rank}, attention_bias = {config.attention_bias}"
        raise UnsupportedError(what, where=where)
    return config


def synthetic_drafter(program: Program) -> Config:
    """Return a formula drafter as wide as its model: two layers, blocks of five."""
    facts = program.facts
    return Config(
        vocab_size=facts["vocab_size"], hidden_size=facts["width"],
        intermediate_size=2 * facts["width"], num_hidden_layers=2, num_attention_heads=4,
        q_lora_rank=24, kv_lora_rank=16, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=12,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, block_size=5,
        target_layer_ids=tuple(sorted({0, facts["layers"] - 1})), mask_token_id=1, markov_rank=8,
    )  # fmt: skip


class LatentStack:
    """Writes the drafter's layers (`dspark.Backbone`)."""

    window = 0

    def __init__(self, config: Config, context: int) -> None:
        self.config, self.rope = config, rope_table(config, context)
        self.attention = latent_attention(config, self.rope)
        self.taps, self.size = tuple(config.target_layer_ids), config.block_size
        self.mask_token = config.mask_token_id
        before, after = (f"{PREFIX}markov_head.markov_w{n}.weight" for n in (1, 2))
        self.scoring = Scoring(config.markov_rank, before, after)

    def context(self, b: Builder) -> None:
        """Write the context row, and each layer's latent row of it."""
        rows = [Value(name, b.values[name]) for name in (f"layers.{n}.out" for n in self.taps)]
        project, norm = (f"{PREFIX}context_{part}.weight" for part in ("proj", "norm"))
        c = context_row(b, rows, project, norm, self.config.rms_norm_eps)
        position = Value("position", b.values["position"])
        for n in range(self.config.num_hidden_layers):
            self._store(b, c, position, n, f"{DSPARK}.context.{n}", self._context_slot(n))

    def block(self, b: Builder, rows: BlockRows, embedded: Value) -> tuple[Value, Value]:
        """Write the layers: latent attention and a gated MLP, a norm before each."""
        config, h = self.config, embedded
        act = activation(config.hidden_act)
        mlp = GatedMLP(config.hidden_size, config.intermediate_size, act)
        for n in range(config.num_hidden_layers):
            last = n + 1 == config.num_hidden_layers
            here, file = f"{DSPARK}.{n}", f"{PREFIX}model.layers.{n}"
            x = self._norm(b, h, f"{here}.attention_norm", f"{file}.input_layernorm")
            y = self._attention(b, x, rows, n, here)
            h = b.add(Residual(), h, y, name=f"{here}.middle")
            x = self._norm(b, h, f"{here}.mlp_norm", f"{file}.post_attention_layernorm")
            y = b.add(mlp, x, name=f"{here}.mlp", weights=named(mlp, f"{file}.mlp", MLP))
            h = b.add(Residual(), h, y, name=REDUCED if last else f"{here}.out")
        return h, self._norm(b, h, f"{DSPARK}.hidden", f"{PREFIX}final_norm")

    def _norm(self, b: Builder, x: Value, name: str, tensor: str) -> Value:
        norm = RMSNorm(x.type.shape[-1], self.config.rms_norm_eps)
        return b.add(norm, x, name=name, weights={"weight": f"{tensor}.weight"})

    def _context_slot(self, n: int) -> str:
        return f"{DSPARK}.context.{n}.kv"

    def _linear(self, b: Builder, x: Value, width: int, n: int, tensor: str, name: str) -> Value:
        weights = {"weight": f"{self._file(n)}.{tensor}.weight"}
        return b.add(Linear(x.type.shape[-1], width), x, name=name, weights=weights)

    def _file(self, n: int) -> str:
        return f"{PREFIX}model.layers.{n}.self_attn"

    def _store(self, b: Builder, x: Value, place: Value, n: int, name: str, slot: str) -> None:
        """Store [latent | rotated key] of a row, of which the latent is the value too."""
        op = self.attention
        width = op.latent + op.rope_dim
        joint = self._linear(b, x, width, n, "kv_a_proj_with_mqa", f"{name}.kv")
        latent = b.add(ops.Slice(0, op.latent), joint, name=f"{name}.latent")
        latent = self._norm(b, latent, f"{name}.normed", f"{self._file(n)}.kv_a_layernorm")
        value = b.add(ops.Reshape((1, op.latent)), latent, name=f"{name}.value")
        key = b.add(ops.Slice(op.latent, width), joint, name=f"{name}.key")
        key = b.add(ops.Reshape((1, op.rope_dim)), key, name=f"{name}.key.head")
        key = turned(b, key, place, self.rope, f"{name}.key")
        key = b.add(ops.Concat(), value, key, name=f"{name}.row")
        codes = [
            b.add(ops.Quantise(), y, name=f"{name}.{what}.codes")
            for what, y in (("row", key), ("value", value))
        ]
        store = ops.StoreKV(1, width, op.latent)
        b.add_node(store, *codes, name=f"{name}.store", slots={"kv": slot})

    def _attention(self, b: Builder, x: Value, rows: BlockRows, n: int, name: str) -> Value:
        op, file = self.attention, self._file(n)
        self._store(b, x, rows.place, n, name, f"{name}.kv")
        q = self._linear(b, x, op.query_latent, n, "q_a_proj", f"{name}.q_a")
        q = self._norm(b, q, f"{name}.q_a.normed", f"{file}.q_a_layernorm")
        dim = op.nope_dim + op.rope_dim
        q = self._linear(b, q, op.heads * dim, n, "q_b_proj", f"{name}.q")
        q = b.add(ops.Reshape((op.heads, dim)), q, name=f"{name}.q.heads")
        nope = b.add(ops.Slice(0, op.nope_dim), q, name=f"{name}.q.nope")
        absorb = HeadLinear(op.heads, op.nope_dim, op.latent)
        nope = b.add(absorb, nope, name=f"{name}.k_b", weights={"weight": f"{file}.k_b.weight"})
        turn = b.add(ops.Slice(op.nope_dim, dim), q, name=f"{name}.q.part")
        turn = turned(b, turn, rows.place, self.rope, f"{name}.q")
        q = b.add(ops.Concat(), nope, turn, name=f"{name}.q.absorbed")
        q = b.add(ops.Quantise(), q, name=f"{name}.q.codes")
        width = op.latent + op.rope_dim
        near = ops.Attend(op.heads, 1, width, op.latent, op.scale)
        y = attended(b, q, rows, name, self._context_slot(n), near)
        expand = HeadLinear(op.heads, op.latent, op.value_dim)
        y = b.add(expand, y, name=f"{name}.v_b", weights={"weight": f"{file}.v_b.weight"})
        y = b.add(ops.Reshape((op.heads * op.value_dim,)), y, name=f"{name}.merged")
        return self._linear(b, y, op.width, n, "o_proj", f"{name}.o")
