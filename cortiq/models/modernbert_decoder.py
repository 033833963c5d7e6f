"""Ettin's decoders: ModernBERT's blocks that see earlier rows; a dense row before the head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from cortiq.errors import FormatError
from cortiq.ir import Program
from cortiq.ir.layers import LayerNorm, Linear
from cortiq.ir.ops import Activation
from cortiq.models import modernbert
from cortiq.models.config import BaseConfig, Keys, check_derived
from cortiq.models.layer_kinds import GLOBAL, LOCAL, windows
from cortiq.models.names import Names
from cortiq.models.parts import ATTENTION, Decoder, activation, attention, gated_mlp
from cortiq.models.rope import of_layer_type, rope_table
from cortiq.models.tensor_pieces import FusedTensor

ARCHITECTURES = ("modernbert-decoder",)
GGUF: tuple[str, ...] = ()
KEYS = Keys(
    harmless=modernbert.KEYS.harmless - {"decoder_bias"},
    same_as=modernbert.KEYS.same_as,
    only={"causal_mask": True, "is_causal": True},
)
NAMES = Names(
    folder={
        "model.embed_tokens.": "model.embeddings.tok_embeddings.",
        "model.norm.": "model.final_norm.", "model.head.": "lm_head.", "lm_head.": "decoder.",
    },
    fused=(FusedTensor("mlp.Wi", ("mlp.gate", "mlp.up")),),
)  # fmt: skip
TENSORS: Mapping[str, str] = {**ATTENTION, "o": "Wo.weight", "o_bias": "Wo.bias"}


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `ModernBertDecoderConfig`; a row sees half of `local_attention`, itself too."""

    max_position_embeddings: int = 8192
    tie_word_embeddings: bool = True
    hidden_activation: str = "gelu"
    norm_eps: float = 1e-5
    norm_bias: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    decoder_bias: bool = True
    local_attention: int = 128
    sliding_window: int | None = None
    global_attn_every_n_layers: int = 3
    layer_types: tuple[str, ...] | None = None
    global_rope_theta: float = 160000.0
    local_rope_theta: float = 10000.0
    classifier_bias: bool = False
    classifier_activation: str = "gelu"

    def windows(self) -> tuple[int | None, ...]:
        """Return the window of every layer, None for full attention."""
        if self.local_attention < 2:
            raise FormatError(f"local_attention is {self.local_attention}", where="config")
        half = self.local_attention // 2
        check_derived("config", sliding_window=(self.sliding_window, half))
        count, every = self.num_hidden_layers, self.global_attn_every_n_layers
        kinds = [LOCAL if n % every else GLOBAL for n in range(count)]
        return windows(self.layer_types or kinds, count, half)

    def of_kind(self, kind: str) -> Config:
        """Return it with the rope parameters of one kind of layer."""
        theta = self.global_rope_theta if kind == GLOBAL else self.local_rope_theta
        given = of_layer_type(self, kind) or {"rope_type": "default", "rope_theta": theta}
        return replace(self, rope_parameters=given)


def build(config: Config, context: int) -> Program:
    """Build the trunk; the first layer reads the embedding's norm itself."""
    width = config.hidden_size
    norm = LayerNorm(width, config.norm_eps, biased=config.norm_bias)
    decoder = Decoder(config, context, family="modernbert_decoder", norm=norm)
    ropes = {kind: rope_table(config.of_kind(kind), context) for kind in (GLOBAL, LOCAL)}
    mlp = gated_mlp(config, config.hidden_activation, config.mlp_bias)
    x = decoder.norm(decoder.embed(), "embed.norm", "model.embeddings.norm")
    for n, window in enumerate(config.windows()):
        mixer = attention(
            config, rope=ropes[LOCAL if window else GLOBAL], window=window,
            biased=config.attention_bias, output_biased=config.attention_bias,
        )  # fmt: skip
        before = "attn_norm" if n else None
        x = decoder.mixer(x, n, mixer, tensors="attn", table=TENSORS, before=before)
        x = decoder.feed_forward(x, n, mlp, table=modernbert.FEED_FORWARD, before="mlp_norm")
    y = decoder.norm(x, "hidden", "model.norm")
    dense = Linear(width, width, config.classifier_bias)
    weights = {role: f"model.head.dense.{role}" for role in dense.weight_shapes()}
    y = decoder.builder.add(dense, y, name="head.dense", weights=weights)
    act = Activation(activation(config.classifier_activation))
    y = decoder.norm(decoder.builder.add(act, y, name="head.act"), "head.norm", "model.head.norm")
    return decoder.finish(y, norm=None, biased=config.decoder_bias)
