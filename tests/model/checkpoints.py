"""Tiny checkpoints written by transformers, and what transformers computes of them in double."""

from __future__ import annotations

import copy
import math
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

TOKENS = 80
"""Positions compared: more than one tile of attention, and than the windows."""

SMALL = {
    "vocab_size": 96, "hidden_size": 40, "intermediate_size": 72, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 0.02,
    "max_position_embeddings": 1024,
}  # fmt: skip
"""Widths that are no multiple of 32; an eps large enough to be seen."""


OWN: dict[str, Any] = {}
"""Classes with a head of texts, for configurations whose class of transformers does not do."""


@dataclass(frozen=True)
class Case:
    """A model to write: its transformers configuration, and the context to load it with.

    `call` is passed to the model's forward function too, for options of the configuration that
    transformers' own layers do not pass on to their attention function.
    """

    name: str
    config: str
    options: dict[str, Any] = field(default_factory=dict)
    context: int | None = None
    call: dict[str, Any] = field(default_factory=dict)
    positions: int = TOKENS

    def __str__(self) -> str:
        return self.name

    def build(self) -> Any:
        """The transformers configuration, of copies: transformers writes into `rope_parameters`."""
        return getattr(transformers, self.config)(**copy.deepcopy(self.options))


def case(
    name: str,
    config: str,
    options: dict[str, Any] | None = None,
    context: int | None = None,
    call: dict[str, Any] | None = None,
) -> Case:
    """A case with the widths of `SMALL`; an option `...` leaves one of them out."""
    chosen = {k: v for k, v in (SMALL | (options or {})).items() if v is not ...}
    return Case(name, config, chosen, context, call or {})


def rope(kind: str, **options: Any) -> dict[str, Any]:
    """`rope_parameters` as transformers 5 takes them."""
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 1000.0, **options}}


LONG = [1.0 + 0.5 * i for i in range(5)]
SHORT = [1.0 + 0.03 * i for i in range(5)]
LONGROPE = {"long_factor": LONG, "short_factor": SHORT}

LLAMA = [
    case("llama", "LlamaConfig", rope("default")),
    case("llama-tied", "LlamaConfig", {"tie_word_embeddings": True}),
    case("llama-biased", "LlamaConfig", {"attention_bias": True, "mlp_bias": True}),
    case("llama-wide-heads", "LlamaConfig", {"head_dim": 24, "num_key_value_heads": 1}),
    case("llama-ungrouped", "LlamaConfig", {"num_key_value_heads": 4, "hidden_act": "relu2"}),
    case("llama-linear", "LlamaConfig", rope("linear", factor=2.5)),
    case("llama-llama3", "LlamaConfig", rope(
        "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=48)),
    case("llama-yarn", "LlamaConfig", rope(
        "yarn", factor=4.0, original_max_position_embeddings=64)),
    case("llama-yarn-options", "LlamaConfig", rope(
        "yarn", factor=4.0, original_max_position_embeddings=64, beta_fast=6.0, beta_slow=0.5,
        mscale=1.2, mscale_all_dim=0.8, truncate=False)),
    case("llama-yarn-attention-factor", "LlamaConfig", rope(
        "yarn", factor=4.0, original_max_position_embeddings=64, attention_factor=1.3)),
    case("llama-longrope-long", "LlamaConfig", rope(
        "longrope", **LONGROPE, original_max_position_embeddings=32)),
    case("llama-longrope-short", "LlamaConfig", rope(
        "longrope", **LONGROPE, original_max_position_embeddings=256), context=256),
    case("mistral", "MistralConfig", {"sliding_window": 24}),
    case("mistral-no-window", "MistralConfig", {"sliding_window": None, "head_dim": 16}),
]  # fmt: skip

_GEMMA = {
    "num_hidden_layers": 4, "head_dim": 16, "query_pre_attn_scalar": 20, "sliding_window": 24,
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "rope_theta": 2000.0, "factor": 8.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
    },
    "layer_types": ["sliding_attention", "full_attention"] * 2, "tie_word_embeddings": True,
}  # fmt: skip
GEMMA = [
    case("gemma3", "Gemma3TextConfig", _GEMMA),
    case("gemma3-pattern", "Gemma3TextConfig", _GEMMA | {
        "num_hidden_layers": 6, "layer_types": ..., "rope_parameters": None}),
    case("gemma3-untied-biased", "Gemma3TextConfig", _GEMMA | {
        "tie_word_embeddings": False, "attention_bias": True}),
    case("gemma3-attention-cap", "Gemma3TextConfig", _GEMMA | {"attn_logit_softcapping": 2.0},
         call={"softcap": 2.0}),
    case("gemma3-final-cap", "Gemma3TextConfig", _GEMMA | {"final_logit_softcapping": 3.0}),
]  # fmt: skip
MIXTRAL = [
    case("mixtral", "MixtralConfig", {"num_local_experts": 5, "num_experts_per_tok": 2}),
    case("mixtral-window", "MixtralConfig", {
        "num_local_experts": 4, "num_experts_per_tok": 3, "sliding_window": 24, "head_dim": 16,
        "tie_word_embeddings": True}),
]  # fmt: skip
_LFM2 = {
    "rms_norm_eps": ..., "norm_eps": 0.02, "num_hidden_layers": 3,
    "layer_types": ["conv", "full_attention", "conv"], "block_multiple_of": 24,
}  # fmt: skip
LFM2 = [
    case("lfm2", "Lfm2Config", _LFM2),
    case("lfm2-biased", "Lfm2Config", _LFM2 | {
        "conv_bias": True, "conv_L_cache": 4, "block_ffn_dim_multiplier": 1.3}),
    case("lfm2-indices", "Lfm2Config", _LFM2 | {
        "layer_types": ..., "full_attn_idxs": [0, 2], "block_auto_adjust_ff_dim": False}),
]  # fmt: skip
CASES = [*LLAMA, *GEMMA, *MIXTRAL, *LFM2]


def multiplier_of(config: Any) -> float:
    """Return the family's factor on rows of the embedding."""
    if config.model_type.startswith(("gemma", "recurrent_gemma")):
        return math.sqrt(config.hidden_size)
    named = (getattr(config, name, None) for name in ("embedding_multiplier", "scale_emb"))
    return next((float(value) for value in named if value), 1.0)


def draw_weights(model: Any) -> None:
    """Weights that make q·k·scale, and the logits, have a standard deviation of about 1 to 3.

    Vectors (norms, biases, gains) are moved from what transformers starts them with, which is 0 or
    1 as the family means them; buffers that are biases too.
    """
    generator = torch.Generator().manual_seed(5)
    multiplier = multiplier_of(model.config)
    biases = [
        (name, b)
        for name, b in model.named_buffers()
        if name.endswith("bias") and b.is_floating_point() and b.dim() == 1  # GPT-1's is a mask
    ]
    for name, parameter in [*model.named_parameters(), *biases]:
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() == 1:
            noise = parameter.data + (0.3 if name.endswith("bias") else 0.2) * noise
        elif "embed_tokens" in name:
            noise = noise / multiplier
        else:
            noise = noise / math.sqrt(parameter.shape[-1])
        parameter.data.copy_(noise)
    for name, lists in model.named_buffers():
        if name.endswith("tid2eid"):  # indices of experts for each token
            experts = torch.rand(len(lists), model.config.n_routed_experts, generator=generator)
            lists.copy_(experts.argsort(dim=1)[:, : lists.shape[1]])


@dataclass(frozen=True)
class Written:
    """A checkpoint on disk, the ids fed, and transformers' logits in double."""

    folder: Path
    tokens: list[int]
    logits: np.ndarray


def write(case: Case, folder: Path) -> Written:
    """Write the case's checkpoint and compute its logits."""
    config = case.build()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kind = OWN.get(case.config)
        kind = kind or getattr(
            transformers, case.config.removesuffix("Config") + "ForCausalLM", None
        )
        kind = kind or transformers.AutoModelForCausalLM._model_mapping[type(config)]
        # The eager softmax is in float32: not for models that have another.
        how = {"attn_implementation": "sdpa" if kind._supports_sdpa and not case.call else "eager"}
        counts = ("num_experts_per_tok", "top_k_experts", "moe_topk")
        if any(getattr(config, count, None) for count in counts):
            how["experts_implementation"] = "eager"  # the other one has no double
        torch.manual_seed(5)  # vectors are moved from what they start with, at times at random
        model = kind._from_config(config, **how).eval()
        draw_weights(model)
        model.tie_weights()
        model.save_pretrained(folder)
    known = getattr(config, "output_vocab_size", None) or config.vocab_size
    tokens = np.random.default_rng(3).integers(0, known, case.positions).tolist()
    with torch.no_grad():
        logits = (
            model.double()(torch.tensor([tokens]), use_cache=False, **case.call).logits[0].numpy()
        )
    return Written(folder, tokens, logits)
