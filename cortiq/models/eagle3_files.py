"""Files of EAGLE-3 heads: folders of speculators and of EAGLE's authors, and GGUF's `eagle3`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from cortiq.errors import FormatError, UnsupportedError, shown
from cortiq.ir import Program
from cortiq.ir.heads import EAGLE3
from cortiq.models.config import BaseConfig, Keys, config_from_json
from cortiq.models.gguf_config import config_from_gguf
from cortiq.models.open_checkpoint import OpenCheckpoint
from cortiq.models.registry import location_of
from cortiq.numerics.contract import F32
from cortiq.numerics.layouts import Weight

PREFIX = f"{EAGLE3}."
"""The beginning of its weights' names in a program."""
TAPS = "eagle_aux_hidden_state_layer_ids"
LAYER, OLD_LAYER = "layers.0.", "midlayer."
"""The beginning of its layer's names, and that in the folders of EAGLE's authors."""
GGUF: Mapping[str, str] = {
    "fc": "fc", "norm": "output_norm", "lm_head": "output", "embed_tokens": "token_embd",
    "layers.0.input_layernorm": "blk.0.attn_norm", "layers.0.hidden_norm": "blk.0.attn_norm_2",
    "layers.0.post_attention_layernorm": "blk.0.ffn_norm",
    **{f"layers.0.self_attn.{r}_proj": f"blk.0.attn_{'output' if r == 'o' else r}" for r in "qkvo"},
    **{f"layers.0.mlp.{r}_proj": f"blk.0.ffn_{r}" for r in ("gate", "up", "down")},
}  # fmt: skip
"""Its tensors in GGUF files of the architecture `eagle3`, without `.weight`."""
UNREAD = frozenset({"d2t", "t2d", "rope_freqs.weight"})
"""Tensors that are no weights of its layer; t2d repeats what d2t says."""
KEYS = Keys(
    harmless=frozenset({
        "embed_requires_grad", "has_no_defaults_at_init", "layer_types", "max_window_layers",
        "speculators_config", "speculators_model_type", "speculators_version",
        "target_model_type", "use_sliding_window",
    }),
    only={"norm_before_fc": False, "norm_output": False, "fc_norm": False},
    gguf={
        "extract_layers": TAPS, "target_layers": TAPS, "target_hidden_size": "target_hidden_size",
        "norm_before_residual": "norm_before_residual",
    },
    gguf_only={"norm_before_fc": False},
)  # fmt: skip
NESTED: Mapping[str, Any] = {
    "use_aux_hidden_state": True, "use_input_layernorm_in_first_layer": True,
    "use_last_layernorm": True, "use_mtp_layernorm": False,
}  # fmt: skip
"""Keys of `eagle_config` with the one value that is supported."""


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of a head's config.json: those of its layer, and what it reads and scores.

    Attributes
    ----------
    eagle_aux_hidden_state_layer_ids : layers of the trunk whose inputs it reads; their number
        stands for the last layer's output. None: the third, the middle one, the third last.
    draft_vocab_size : tokens that it scores; None for all.
    target_hidden_size : the trunk's width, where it is another than the head's.
    """

    rms_norm_eps: float = 1e-6
    hidden_act: str = "silu"
    attention_bias: bool = False
    mlp_bias: bool = False
    draft_vocab_size: int | None = None
    target_hidden_size: int | None = None
    norm_before_residual: bool = False
    eagle_aux_hidden_state_layer_ids: tuple[int, ...] | None = None
    eagle_config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def target_width(self) -> int:
        """The trunk's width."""
        return self.target_hidden_size or self.hidden_size


@dataclass(frozen=True)
class EagleHead:
    """A head that fits a trunk.

    Attributes
    ----------
    taps : the trunk's values that it reads.
    own_table, own_scores : whether it has an embedding table, and an output matrix.
    places : a row of its output matrix for each token, −1 for none; None where all are in order.
    """

    config: Config
    taps: tuple[str, ...]
    own_table: bool = True
    own_scores: bool = True
    places: Weight | None = None


def is_head(side: OpenCheckpoint) -> bool:
    """Return whether a file or folder says that it is an EAGLE-3 head."""
    named = side.config.get("architectures") or ()
    said = (side.architecture, *(named if isinstance(named, (list, tuple)) else ()))
    return any("eagle3" in str(one).lower() for one in said)


def tensor_name(name: str, side: OpenCheckpoint) -> str:
    """Return the file's name of a weight of the program."""
    name = name.removeprefix(PREFIX)
    if side.kind == "gguf":
        base, _, end = name.rpartition(".")
        return f"{GGUF[base]}.{end}"
    old = name.replace(LAYER, OLD_LAYER, 1)
    return next((known for known in (name, old, f"model.{name}") if known in side), name)


def read_head(side: OpenCheckpoint, program: Program) -> EagleHead:
    """Read a head's configuration, and check that it fits a trunk.

    Raises
    ------
    FormatError : it was made for another model, or its files contradict one another.
    """
    where = location_of(side)
    config = _config(side, where)
    facts = program.facts
    pairs = {
        "vocab_size": (config.vocab_size, facts["vocab_size"]),
        "target_hidden_size": (config.target_width, facts["width"]),
    }
    for key, (mine, other) in pairs.items():
        if mine != other:
            what = f"is a head of another model: its {key} is {mine}, the model's {other}"
            raise FormatError(what, where=where, hint="draft with it for the model of its training")
    if config.num_hidden_layers != 1:
        raise UnsupportedError(f"a head of {config.num_hidden_layers} layers", where=where)
    own_table = tensor_name("embed_tokens.weight", side) in side
    own_scores = tensor_name("lm_head.weight", side) in side
    scored = config.draft_vocab_size or config.vocab_size
    if config.source == "gguf" and "d2t" in side:
        scored = side.tensor("d2t").shape[0]
        config = replace(config, draft_vocab_size=scored)
    if not own_scores and scored != config.vocab_size:
        raise FormatError("lacks lm_head.weight: the model's scores all tokens", where=where)
    if not own_table and config.hidden_size != facts["width"]:
        raise FormatError("lacks embed_tokens.weight: the model's has another width", where=where)
    places = _places(side, config, scored, where)
    return EagleHead(config, _taps(config, program, where), own_table, own_scores, places)


def _config(side: OpenCheckpoint, where: str) -> Config:
    """Read the configuration in any of its three forms."""
    if side.kind == "gguf":
        return config_from_gguf(Config, KEYS, side, where=where)
    given = {key: value for key, value in side.config.items() if key != "transformer_layer_config"}
    config = config_from_json(
        Config, KEYS, {**side.config.get("transformer_layer_config", {}), **given}, where=where
    )
    nested = dict(config.eagle_config)
    taps = nested.pop(TAPS, None)
    if wrong := {key: value for key, value in nested.items() if value != NESTED.get(key, object)}:
        raise UnsupportedError(f"eagle_config has {shown(wrong)}", where=where)
    if config.eagle_aux_hidden_state_layer_ids is None and taps:
        return replace(config, eagle_aux_hidden_state_layer_ids=tuple(taps))
    return config


def _taps(config: Config, program: Program, where: str) -> tuple[str, ...]:
    """Return the trunk's values that a head reads."""
    layers = program.facts["layers"]
    taps = config.eagle_aux_hidden_state_layer_ids or (2, layers // 2, layers - 3)
    if not all(type(n) is int and 0 <= n <= layers for n in taps):
        hint = f"{TAPS} lists layers of the model, from 0 to {layers}"
        raise FormatError(f"taps the layers {shown(taps)} of {layers}", where=where, hint=hint)
    names = tuple(f"layers.{n - 1}.out" if n else "embed" for n in taps)
    values, width = program.trunk.values, (program.facts["width"],)
    if wrong := [n for n in names if n not in values or values[n].shape != width]:
        raise UnsupportedError(f"a head of a model without one row {wrong[0]}", where=where)
    return names


def _places(side: OpenCheckpoint, config: Config, scored: int, where: str) -> Weight | None:
    """Return each token's row of the output matrix, from the tokens that the rows stand for."""
    vocabulary = config.vocab_size
    if "d2t" not in side:
        if scored != vocabulary:
            raise FormatError(f"lacks d2t: it scores {scored} of {vocabulary} tokens", where=where)
        return None
    found = side.tensor("d2t")
    if tuple(found.shape) != (scored,) or found.type != "F32":
        what = f"d2t is {found.type} {list(found.shape)}, should be integers [{scored}]"
        raise FormatError(what, where=where)
    tokens = found.raw.view("<f4").astype(np.int64)
    if config.source != "gguf":
        tokens += np.arange(scored)  # folders hold how far a token is from its row
    if tokens.min() < 0 or tokens.max() >= vocabulary or len(np.unique(tokens)) < scored:
        raise FormatError(f"d2t does not name {scored} of the {vocabulary} tokens", where=where)
    index = np.full((1, vocabulary), -1, F32)
    index[0, tokens] = np.arange(scored)
    return Weight.from_floats(index)
