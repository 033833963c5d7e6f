"""ModernBERT: an encoder with RoPE and gated MLPs; two of three layers see a window both ways."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from cortiq.errors import FormatError, UnsupportedError
from cortiq.ir import Program, Value
from cortiq.ir.encoders import LAST, NEAR, Encoder
from cortiq.ir.layers import GatedMLP, LayerNorm, Residual
from cortiq.models.config import Amount, BaseConfig, Keys, convert_config
from cortiq.models.encoder import EncoderConfig, EncoderTrunk
from cortiq.models.gguf_keys import CLASSIFIER_POOLING, POOLINGS, WINDOW_PATTERN, WINDOWS_BASE
from cortiq.models.layer_kinds import windows
from cortiq.models.names import Names
from cortiq.models.parts import activation, attention, named
from cortiq.models.rope import of_layer_type, rope_table
from cortiq.models.tensor_pieces import FusedTensor

ARCHITECTURES = ("modernbert", "modern-bert")
GGUF = ("modern-bert",)
KEYS = Keys(
    harmless=frozenset({
        "cls_token_id", "decoder_bias", "deterministic_flash_attn", "initializer_cutoff_factor",
        "mlp_dropout", "norm_dropout", "position_embedding_type", "reference_compile",
        "repad_logits_with_grad", "sparse_pred_ignore_index", "sparse_prediction",
    }),
    same_as={"layer_norm_eps": "norm_eps"},
    gguf={
        "attention.layer_norm_epsilon": "norm_eps", "attention.layer_norm_rms_epsilon": "norm_eps",
        "attention.sliding_window": "window", CLASSIFIER_POOLING: "pooled",
        "hidden_activation": "hidden_activation", WINDOW_PATTERN: "global_attn_every_n_layers",
        WINDOWS_BASE: "local_rope_theta",
    },
    gguf_only={"attention.causal": False},
    gguf_tensors={"classifier_bias": "cls.bias"},
    gguf_rows={"outputs": "cls.output.weight"},
)  # fmt: skip
ATTENTION: Mapping[str, str] = {
    **{role: f"{role}.weight" for role in "qkv"},
    **{f"{role}_bias": f"{role}.bias" for role in "qkv"},
    "o": "Wo.weight", "o_bias": "Wo.bias",
}  # fmt: skip
FEED_FORWARD: Mapping[str, str] = {
    **{role: f"{role}.weight" for role in ("gate", "up")},
    **{f"{role}_bias": f"{role}.bias" for role in ("gate", "up")},
    "down": "Wo.weight", "down_bias": "Wo.bias",
}  # fmt: skip
TENSORS = Names(
    fused=(
        FusedTensor("attn.Wqkv", ("attn.q", "attn.k", "attn.v")),
        FusedTensor("mlp.Wi", ("mlp.gate", "mlp.up")),
    ),
    unread=r"decoder\..*|head\..*",
    gguf={
        "model.embeddings.tok_embeddings": "token_embd", "model.final_norm": "output_norm",
        "model.embeddings.norm": "token_embd_norm", "attn_norm": "attn_norm",
        "mlp_norm": "ffn_norm", "attn.Wqkv": "attn_qkv", "attn.Wo": "attn_output",
        "mlp.Wi": "ffn_up", "mlp.Wo": "ffn_down", "head.dense": "cls", "head.norm": "cls.norm",
        "classifier": "cls.output",
    },
)  # fmt: skip
FULL, SLIDING = "full_attention", "sliding_attention"


def NAMES(config: BaseConfig) -> Names:
    """Return tensor names: files of the trunk only have no prefix."""
    assert isinstance(config, Config)
    names = replace(TENSORS, unread=r"decoder\..*") if config.classifies else TENSORS
    return replace(names, folder={"model.": ""}) if config.bare else names


@dataclass(frozen=True, kw_only=True)
class Config(EncoderConfig):
    """Fields of `ModernBertConfig`; `local_attention` is the window, half before, half after."""

    max_position_embeddings: int = 8192
    tie_word_embeddings: bool = True
    hidden_activation: str = "gelu"
    norm_eps: float = 1e-5
    norm_bias: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    local_attention: int = 128
    global_attn_every_n_layers: int = 3
    layer_types: tuple[str, ...] | None = None
    global_rope_theta: float = 160000.0
    local_rope_theta: float | None = 10000.0
    classifier_pooling: str = "cls"
    classifier_bias: bool = False
    classifier_activation: str = "gelu"

    def windows(self) -> tuple[int | None, ...]:
        """Return how far each layer sees before and after a row; `None` for everything."""
        layers, half = range(self.num_hidden_layers), self.local_attention // 2
        if self.layer_types is not None:
            return windows(self.layer_types, len(layers), half)
        return tuple(half if n % self.global_attn_every_n_layers else None for n in layers)

    def with_theta(self, kind: str) -> Config:
        """Return it with the rope parameters of one kind of layer."""
        given = of_layer_type(self, kind)
        if not given:
            local = self.local_rope_theta or self.global_rope_theta
            theta = self.global_rope_theta if kind == FULL else local
            given = {"rope_type": "default", "rope_theta": theta}
        return replace(self, rope_parameters=given)


@dataclass(frozen=True, kw_only=True)
class GGUFConfig(Config):
    """Fields of GGUF files.

    Attributes
    ----------
    outputs : of the classifier; 0 without one. pooled : the kind of row that it reads.
    window : keys that a row of a windowed layer sees, half before, half after; 0 for all.
    """

    outputs: Amount = Amount(0)
    pooled: Amount = Amount(1)
    window: Amount = Amount(0)
    local_rope_theta: float | None = None
    not_in_json: ClassVar[frozenset[str]] = frozenset({"source", "outputs", "pooled", "window"})

    def config(self, where: str) -> Config:
        """Return the configuration in a folder's form."""
        base = dict(self.rope_parameters)
        local = base if self.local_rope_theta is None else {
            "rope_type": "default", "rope_theta": self.local_rope_theta
        }  # fmt: skip
        end = "ForSequenceClassification" if self.outputs else "Model"
        pooled, every = POOLINGS.get(self.pooled), self.global_attn_every_n_layers
        if pooled not in ("cls", "mean") and self.outputs:
            message = f"{CLASSIFIER_POOLING} {int(self.pooled)}, which is neither mean nor cls"
            raise UnsupportedError(message, where=where)
        return convert_config(
            Config, self, where, architectures=(f"ModernBert{end}",),
            rope_parameters={FULL: base, SLIDING: local}, classifier_pooling=pooled or "cls",
            local_attention=self.window or 2,
            global_attn_every_n_layers=every if self.window else 1,
            id2label={str(n): "" for n in range(self.outputs)},
        )  # fmt: skip


def build(config: Config, context: int) -> Program:
    """Build the trunk, and the classifier if the file has one."""
    if config.local_attention < 2:
        raise FormatError(f"local_attention is {config.local_attention}", where="config")
    trunk, half = EncoderTrunk(config, context, "modernbert"), config.local_attention // 2
    reach, near = {LAST: 0}, trunk.last
    if any(config.windows()):
        reach[NEAR], near = half, trunk.builder.input(NEAR)
    file = "model.embeddings"
    x = trunk.table(config.vocab_size, trunk.token, "embed", f"{file}.tok_embeddings")
    x = trunk.apply(_norm(config), x, "embed.norm", f"{file}.norm")
    ropes = {k: rope_table(config.with_theta(k), context) for k in (FULL, SLIDING)}
    for n, window in enumerate(config.windows()):
        rope = ropes[SLIDING if window else FULL]
        op = attention(
            config, biased=config.attention_bias, output_biased=config.attention_bias, until=True,
            rope=rope, window=window and window + 1,
        )  # fmt: skip
        x = _layer(trunk, config, x, n, op, near if window else trunk.last)
    x = trunk.apply(_norm(config), x, "hidden", "model.final_norm")
    scores, scored = "", ""
    if config.classifies:
        scores, scored = _classified(trunk, config, x)
    return trunk.finish(Encoder(reach=reach, scores=scores, scored=scored))


def _norm(config: Config) -> LayerNorm:
    return LayerNorm(config.hidden_size, config.norm_eps, biased=config.norm_bias)


def _layer(trunk: EncoderTrunk, config: Config, x: Value, n: int, op: object, last: Value) -> Value:
    here, file, b = f"layers.{n}", f"model.layers.{n}", trunk.builder
    y = trunk.apply(_norm(config), x, f"{here}.attention_norm", f"{file}.attn_norm") if n else x
    y = b.add(
        op, y, trunk.position, last, name=f"{here}.attention",  # type: ignore[arg-type]
        weights=named(op, f"{file}.attn", ATTENTION),  # type: ignore[arg-type]
        slots={"kv": f"{here}.kv"},
    )  # fmt: skip
    x = b.add(Residual(), x, y, name=f"{here}.middle")
    y = trunk.apply(_norm(config), x, f"{here}.mlp_norm", f"{file}.mlp_norm")
    act = activation(config.hidden_activation)
    mlp = GatedMLP(config.hidden_size, config.intermediate_size, act, config.mlp_bias)
    y = b.add(mlp, y, name=f"{here}.mlp", weights=named(mlp, f"{file}.mlp", FEED_FORWARD))
    return b.add(Residual(), x, y, name=f"{here}.out")


def _classified(trunk: EncoderTrunk, config: Config, x: Value) -> tuple[str, str]:
    """Write the classifier; return its outputs, and the pooled row that it reads if not its own."""
    if config.classifier_pooling not in ("cls", "mean"):
        raise UnsupportedError(f"classifier_pooling {config.classifier_pooling!r}", where="config")
    act = activation(config.classifier_activation)
    y = trunk.dense(x, "pooled.raw", "head.dense", config.hidden_size, act, config.classifier_bias)
    y = trunk.apply(_norm(config), y, "pooled", "head.norm")
    trunk.dense(y, "scores", "classifier", config.labels)
    return "scores", "hidden" if config.classifier_pooling == "mean" else ""
