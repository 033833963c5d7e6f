"""BERT, RoBERTa and XLM-R: encoders with learned positions, a norm after each branch, biases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from cortiq.errors import UnsupportedError
from cortiq.ir import Program, Value
from cortiq.ir.encoders import PLACE, SEGMENT, Encoder
from cortiq.ir.layers import MLP, LayerNorm, Residual
from cortiq.models.config import Amount, Keys, convert_config
from cortiq.models.encoder import EncoderConfig, EncoderTrunk
from cortiq.models.names import Names
from cortiq.models.parts import activation, attention, named
from cortiq.models.tensor_pieces import FusedTensor

ARCHITECTURES = ("bert", "roberta", "xlm-roberta")
GGUF = ("bert",)
KEYS = Keys(
    only={"position_embedding_type": "absolute"},
    defaults={name: {"layer_norm_eps": 1e-5} for name in ("roberta", "xlm-roberta")},
    harmless=frozenset({
        "directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers",
        "pooler_size_per_head", "pooler_type", "sentence_transformers",
    }),
    gguf={"attention.layer_norm_epsilon": "layer_norm_eps"},
    gguf_only={"attention.causal": False},
    gguf_tensors={"dense_head": "cls.weight"},
    gguf_rows={"type_vocab_size": "token_types.weight", "outputs": "cls.output.weight"},
)  # fmt: skip
NAMES = Names(
    unread=r"cls\.predictions.*|cls\.seq_relationship.*|lm_head\..*|.*position_ids|(\w+\.)?pooler\..*",
    gguf={
        "embeddings.word_embeddings": "token_embd", "embeddings.LayerNorm": "token_embd_norm",
        "embeddings.token_type_embeddings": "token_types",
        "embeddings.position_embeddings": "position_embd",
        "attention.self.qkv": "attn_qkv", "attention.self.query": "attn_q",
        "attention.self.key": "attn_k", "attention.self.value": "attn_v",
        "attention.output.dense": "attn_output", "attention.output.LayerNorm": "attn_output_norm",
        "intermediate.dense": "ffn_up", "output.dense": "ffn_down",
        "output.LayerNorm": "layer_output_norm",
        "classifier.dense": "cls", "classifier.out_proj": "cls.output",
    },
    fused=(FusedTensor("attention.self.qkv", tuple(
        f"attention.self.{role}" for role in ("query", "key", "value")
    )),),
)  # fmt: skip
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
    type_vocab_size: Amount = Amount(2)
    pad_token_id: Amount | None = None
    model_type: str = "bert"

    @property
    def roberta(self) -> bool:
        """Whether this is RoBERTa, with other positions and another classifier."""
        return self.model_type != "bert"

    @property
    def first_position(self) -> int:
        """Number of the first row of a text in the table of positions."""
        if not self.roberta or self.source == "gguf":  # whose tables begin with the first row
            return 0
        return 2 if self.pad_token_id is None else self.pad_token_id + 1

    @property
    def prefix(self) -> str:
        """Beginning of the names of a folder's tensors."""
        bare = self.bare or self.source == "gguf"
        return "" if bare else "roberta." if self.roberta else "bert."


@dataclass(frozen=True, kw_only=True)
class GGUFConfig(Config):
    """Fields of GGUF files, which have one name and one form for all.

    Attributes
    ----------
    outputs : of the classifier; 0 without one. dense_head : it has a layer before its outputs.
    """

    outputs: Amount = Amount(0)
    dense_head: bool = False
    type_vocab_size: Amount = Amount(0)
    tie_word_embeddings: bool = True
    not_in_json: ClassVar[frozenset[str]] = frozenset({"source", "outputs", "dense_head"})

    def config(self, where: str) -> Config:
        """Return the configuration in a folder's form.

        Raises
        ------
        UnsupportedError : a classifier has no layer before its outputs: a BERT's, whose pooler
            llama.cpp's converter leaves out.
        """
        if self.outputs and not self.dense_head:
            what = "has a classifier's outputs (cls.output) without the layer that they read (cls)"
            hint = "a BERT's pooler is in no GGUF file: take the Hugging Face folder"
            raise UnsupportedError(what, where=where, hint=hint)
        end = "ForSequenceClassification" if self.outputs else "Model"
        return convert_config(
            Config, self, where, model_type="roberta", architectures=(f"Roberta{end}",),
            id2label={str(n): "" for n in range(self.outputs)},
        )  # fmt: skip


def build(config: Config, context: int) -> Program:
    """Build the trunk, and the classifier if the file has one."""
    trunk, prefix = EncoderTrunk(config, context, "bert"), config.prefix
    shift = config.first_position
    layer = "model.layers" if config.source == "gguf" else f"{prefix}encoder.layer"
    x = _embedded(trunk, config, f"{prefix}embeddings", shift)
    for n in range(config.num_hidden_layers):
        x = _layer(trunk, config, x, n, f"{layer}.{n}")
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
    if kinds := config.type_vocab_size:
        row = trunk.table(kinds, b.input(SEGMENT), "kind", f"{file}.token_type_embeddings")
        x = b.add(Residual(), x, row, name="kinded")
    where = trunk.table(
        config.max_position_embeddings, position, "place.row", f"{file}.position_embeddings"
    )
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
