"""Dory: rows of length 1, residuals that interpolate, and middle layers passed several times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from cortiq.errors import FormatError
from cortiq.ir import Op, Program, Value
from cortiq.ir.layers import Approach, Residual, UnitAttention, UnitMLP
from cortiq.ir.ops import L2Norm
from cortiq.models.config import Amount, BaseConfig, Keys
from cortiq.models.layer_kinds import GLOBAL, LOCAL, layer_list, layer_ropes, windows
from cortiq.models.names import Names
from cortiq.models.parts import Decoder, activation, named, passes

ARCHITECTURES = ("dory",)
GGUF: tuple[str, ...] = ()
BLOCK = "mlp"
"""Kind of layer that published files list, for feed-forward blocks as layers of their own."""
ROTARY: Mapping[str, Mapping[str, float]] = {
    GLOBAL: {"rope_theta": 1e7},
    LOCAL: {"rope_theta": 1e4},
}
KEYS = Keys(
    only={"recurrent_kv_cache_mode": "per_loop"},
    defaults={"dory": {"initializer_range": 0.0177, "head_dim": 256, "sliding_window": 1024}},
)
ATTENTION: Mapping[str, str] = {
    **{role: f"self_attn.{role}_proj.weight" for role in "qkvo"},
    **{f"{role}_bias": f"self_attn.{role}_proj.bias" for role in "qkvo"},
    "gate": "self_attn.gate_proj.weight",
    "query_gain": "self_attn.sqk",
    "gate_gain": "self_attn.s_gate",
}
MLP: Mapping[str, str] = {
    **{role: f"mlp.{role}_proj.weight" for role in ("gate", "up", "down")},
    **{f"{role}_bias": f"mlp.{role}_proj.bias" for role in ("gate", "up", "down")},
    "gate_gain": "mlp.suv_gate",
    "up_gain": "mlp.suv_up",
}
EPS = 1e-6
"""Added to the sum of squares of a row that is made length 1."""


def saved(name: str) -> str:
    """Return a tensor's name in folders that transformers has saved."""
    name = name.replace("model.layers.", "backbone.layers.").replace(
        "attn.gate_proj", "attn.g_proj"
    )
    return name.replace("model.embed_tokens.", "backbone.embeddings.")


def in_blocks(name: str) -> str:
    """Return a tensor's name in published files: attention and MLP are blocks of their own."""
    own, layers, rest = saved(name).partition(".layers.")
    if not layers:
        return own
    layer, _, rest = rest.partition(".")
    part, dot, end = rest.partition(".")
    block = 2 * int(layer) + (part in ("mlp", "lambda_2"))
    branch = {"lambda_1": "attn_alpha", "lambda_2": "mlp_alpha"}.get(part, "mixer")
    return f"{own}{layers}{block}.{branch}{dot}{end}"


NAMES = Names(forms=(saved, in_blocks))


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `DoryConfig`.

    Attributes
    ----------
    initializer_range : what stored gains are divided by.
    ngpt_alpha_init : rate of a residual whose stored rate is `initializer_range`.
    n_input_layers, n_output_layers : layers passed once, before and after the others.
    n_recurrent_loops : passes through the others, each with rows of keys and values of its own.
    """

    max_position_embeddings: int = 8192
    hidden_act: str = "silu"
    attention_bias: bool = False
    mlp_bias: bool = False
    sliding_window: int = 1024
    layer_types: tuple[str, ...] | None = None
    initializer_range: float
    ngpt_alpha_init: float = 0.05
    n_input_layers: Amount = Amount(8)
    n_recurrent_layers: Amount | None = None
    n_output_layers: Amount = Amount(8)
    n_recurrent_loops: int = 2

    def sections(self) -> tuple[tuple[str, ...], int, int]:
        """Return the kind of every layer, and the bounds of those that are passed again.

        Raises
        ------
        FormatError : blocks that are no pairs of attention and MLP, layers that the three parts do
            not add up to, gains that would be divided by 0.
        """
        kinds, count = self.layer_types, self.num_hidden_layers
        first, looped, last = self.n_input_layers, self.n_recurrent_layers, self.n_output_layers
        sizes = (count, first, last, count - first - last if looped is None else looped)
        if kinds is None:
            kinds = tuple(LOCAL if (n + 1) % 4 else GLOBAL for n in range(count))
        elif BLOCK in kinds:
            odd = any(n % 2 for n in (len(kinds), *sizes))
            if odd or set(kinds[1::2]) != {BLOCK} or BLOCK in kinds[::2]:
                hint = f"attention and {BLOCK!r} take turns, and every part has as many of both"
                raise FormatError("layer_types are no pairs of blocks", where="config", hint=hint)
            kinds, sizes = kinds[::2], tuple(n // 2 for n in sizes)  # type: ignore[assignment]
        count, first, last, again = sizes
        if again < 0 or first + again + last != count:
            what = f"{first} input, {again} recurrent and {last} output layers are not {count}"
            raise FormatError(what, where="config")
        if not self.initializer_range:
            raise FormatError("initializer_range is 0, and gains are divided by it", where="config")
        return layer_list(kinds, count, (GLOBAL, LOCAL)), first, first + again


def build(config: Config, context: int) -> Program:
    """Build the trunk: every pass through a layer is a layer of the graph."""
    kinds, first, last = config.sections()
    config = replace(config, num_hidden_layers=len(kinds), layer_types=kinds)
    width, dim, unit = config.hidden_size, config.head_width, config.initializer_range
    loops = config.n_recurrent_loops
    stored = passes(len(kinds), first, last, loops)
    decoder = Decoder(config, context, family="dory", norm=L2Norm(width, EPS), stored=stored)
    ropes = layer_ropes(config, context, ROTARY)
    spans = windows(kinds, len(kinds), config.sliding_window)
    mlp = UnitMLP(
        width, config.intermediate_size, width**0.5, EPS, activation(config.hidden_act),
        config.mlp_bias,
    )  # fmt: skip
    approach = Approach(width, config.ngpt_alpha_init / unit)

    def branch(x: Value, n: int, op: Op, name: str, table: Mapping[str, str]) -> Value:
        file, here = f"model.layers.{stored[n]}", f"layers.{n}"
        x = decoder.norm(x, f"{here}.{name}_norm", "")
        attends = name == "attention"
        slots = {role: f"{here}.{role}" for role in op.slot_kinds()}
        y = decoder.builder.add(
            op, x, *([decoder.position] if attends else []), name=f"{here}.{name}",
            weights=named(op, file, table), slots=slots,
        )  # fmt: skip
        y = decoder.norm(y, f"{here}.{name}_after_norm", "")
        rate, out = ("lambda_1", "middle") if attends else ("lambda_2", "out")
        weights = {"rate": f"{file}.{rate}"}
        return decoder.builder.add(approach, x, y, name=f"{here}.{out}", weights=weights)

    x = entry = decoder.embed()
    for n, layer in enumerate(stored):
        if n == first:
            entry = decoder.norm(x, "entry", "")
        if layer == first < last and n < first + loops * (last - first):
            again = decoder.norm(x, f"layers.{n}.entry_norm", "")
            x = decoder.builder.add(Residual(), again, entry, name=f"layers.{n}.entry")
        mixer = UnitAttention(
            width, config.num_attention_heads, config.kv_heads, dim, dim**-0.5, EPS,
            dim / unit**2, width**0.5 / unit**2, ropes[kinds[layer]],
            spans[layer], config.attention_bias,
        )  # fmt: skip
        x = branch(x, n, mixer, "attention", ATTENTION)
        x = branch(x, n, mlp, "mlp", MLP)
    return decoder.finish(x, multiplier=1 / unit, gained=True)
