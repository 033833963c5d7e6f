"""BERT, RoBERTa and XLM-R: encoders with learned positions, a norm after each branch, biases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cortiq.ir import Program, Value
from cortiq.ir.encoders import PLACE, SEGMENT, Encoder
from cortiq.ir.layers import MLP, LayerNorm, Residual
from cortiq.models.config import Amount, Keys
from cortiq.models.encoder import EncoderConfig, EncoderTrunk
from cortiq.models.names import Names
from cortiq.models.parts import activation, attention, named

ARCHITECTURES = ("bert", "roberta", "xlm-roberta")
GGUF: tuple[str, ...] = ()
KEYS = Keys(
    only={"position_embedding_type": "absolute"},
    defaults={name: {"layer_norm_eps": 1e-5} for name in ("roberta", "xlm-roberta")},
    harmless=frozenset({
        "directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers",
        "pooler_size_per_head", "pooler_type", "sentence_transformers",
    }),
)  # fmt: skip
NAMES = Names(unread=r"cls\..*|lm_head\..*|.*position_ids|(\w+\.)?pooler\..*")
QKV: Mapping[str, str] = {"q": "self.query", "k": "self.key", "v": "self.value"}
ATTENTION: Mapping[str, str] = {
    **{role: f"{tensor}.weight" for role, tensor in QKV.items()},
    **{f"{role}_bias": f"{tensor}.bias" for role, tensor in QKV.items()},
    "o": "output.dense.weight", "o_bias": "output.dense.bias",
}  # fmt: skip
FEED_FORWARD: Mapping[str, str] = {
    "up": "intermediate.dense.weight", "up_bias": "intermediate.dense.bias",
    "down": "output.dense.weight", "down_bias": "output.dense.bias",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Config(EncoderConfig):
    """Fields of `BertConfig` and `RobertaConfig`, which counts positions after `pad_token_id`."""

    max_position_embeddings: int = 512
    hidden_act: str = "gelu"
    layer_norm_eps: float = 1e-12
    type_vocab_size: int = 2
    pad_token_id: Amount | None = None
    model_type: str = "bert"

    @property
    def roberta(self) -> bool:
        """Whether this is RoBERTa, with other positions and another classifier."""
        return self.model_type != "bert"

    @property
    def first_position(self) -> int:
        """Number of the first row of a text in the table of positions."""
        pad = 1 if self.pad_token_id is None else self.pad_token_id
        return pad + 1 if self.roberta else 0


def build(config: Config, context: int) -> Program:
    """Build the trunk, and the classifier if the file has one."""
    trunk, name = EncoderTrunk(config, context, "bert"), "roberta" if config.roberta else "bert"
    prefix = "" if config.bare else f"{name}."
    shift = config.first_position
    x = _embedded(trunk, config, f"{prefix}embeddings", shift)
    for n in range(config.num_hidden_layers):
        x = _layer(trunk, config, x, n, f"{prefix}encoder.layer.{n}")
    if config.classifies:
        _classified(trunk, config, x, prefix)
    scores = "scores" if config.classifies else ""
    return trunk.finish(Encoder(segments=config.type_vocab_size, places=shift, scores=scores))


def _norm(config: Config) -> LayerNorm:
    return LayerNorm(config.hidden_size, config.layer_norm_eps)


def _embedded(trunk: EncoderTrunk, config: Config, file: str, shift: int) -> Value:
    """Write the sum of the tables' rows, normed; RoBERTa's positions are an input."""
    b, position = trunk.builder, trunk.builder.input(PLACE) if shift else trunk.position
    x = trunk.table(config.vocab_size, trunk.token, "embed", f"{file}.word_embeddings")
    kind = trunk.table(
        config.type_vocab_size, b.input(SEGMENT), "kind", f"{file}.token_type_embeddings"
    )
    where = trunk.table(
        config.max_position_embeddings, position, "place.row", f"{file}.position_embeddings"
    )
    x = b.add(Residual(), x, kind, name="kinded")
    x = b.add(Residual(), x, where, name="placed")
    return trunk.apply(_norm(config), x, "embed.norm", f"{file}.LayerNorm")


def _layer(trunk: EncoderTrunk, config: Config, x: Value, n: int, file: str) -> Value:
    here, last = f"layers.{n}", n == config.num_hidden_layers - 1
    op = attention(config, biased=True, output_biased=True, until=True)
    y = trunk.builder.add(
        op, x, trunk.position, trunk.last, name=f"{here}.attention",
        weights=named(op, f"{file}.attention", ATTENTION), slots={"kv": f"{here}.kv"},
    )  # fmt: skip
    x = trunk.builder.add(Residual(), x, y, name=f"{here}.attended")
    x = trunk.apply(_norm(config), x, f"{here}.middle", f"{file}.attention.output.LayerNorm")
    mlp = MLP(config.hidden_size, config.intermediate_size, activation(config.hidden_act), True)
    weights = named(mlp, file, FEED_FORWARD)
    y = trunk.builder.add(mlp, x, name=f"{here}.mlp", weights=weights)
    x = trunk.builder.add(Residual(), x, y, name=f"{here}.sum")
    out = "hidden" if last else f"{here}.out"
    return trunk.apply(_norm(config), x, out, f"{file}.output.LayerNorm")


def _classified(trunk: EncoderTrunk, config: Config, x: Value, prefix: str) -> None:
    """Write the classifier's outputs, of the row that begins the text."""
    dense, out = f"{prefix}pooler.dense", "classifier"
    if config.roberta:
        dense, out = "classifier.dense", "classifier.out_proj"
    y = trunk.dense(x, "pooled", dense, config.hidden_size, "tanh")
    trunk.dense(y, "scores", out, config.labels)
