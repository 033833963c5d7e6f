"""The header of a CMF file: what its JSON says of the model, as typed objects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cortiq.errors import FormatError, shown
from cortiq.formats.cmf.fields import read_fields
from cortiq.formats.strict_json import parse_object

QUANT_TYPES = frozenset({"Q8_ROW", "Q4_BLOCK", "Q8_2F", "VBIT", "BF16", "F16", "F32"})
"""Labels of `quant_type`; what a tensor is in, the directory says."""
FULL, SLIDING, LINEAR, CONV, KDA = LAYER_TYPES = (
    "FullAttention", "SlidingAttention", "LinearAttention", "ShortConv", "Kda",
)  # fmt: skip
MAX_LAYERS, MAX_LEVELS = 4096, 32
VERSION = 2


@dataclass(frozen=True)
class YarnFields:
    """YaRN's parameters; `mscale_all_dim` m scales the attention by (0.1·m·ln(factor) + 1)²."""

    factor: float
    original_max_position_embeddings: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float = 1.0
    mscale_all_dim: float | None = None


@dataclass(frozen=True)
class Latent:
    """Sizes of multi-head latent attention; `nope` for heads without rotation."""

    kv_lora_rank: int
    qk_rope_head_dim: int
    qk_nope_head_dim: int
    v_head_dim: int
    q_lora_rank: int | None = None
    nope: bool = False


@dataclass(frozen=True)
class Drafts:
    """The multi-token head's layers, and what it shares with the trunk."""

    num_layers: int = 0
    share_lm_head: bool = True
    share_embed: bool = True


@dataclass(frozen=True)
class Experts:
    """The mixture of experts."""

    num_experts: int
    top_k: int
    moe_intermediate_size: int
    norm_topk_prob: bool = False
    shared_expert_intermediate_size: int | None = None
    router_sigmoid: bool = False
    routed_scaling_factor: float | None = None
    router_resonance: bool = False


@dataclass(frozen=True)
class LinearCore:
    """Kind and sizes of layers that are linear attention."""

    kind: str
    num_heads: int
    nphase: int | None = None
    value_head_dim: int | None = None


@dataclass(frozen=True)
class Arch:
    """The architecture: sizes, and which optional parts there are (`arch` of the header)."""

    arch_name: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_attention_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    layer_types: tuple[str, ...]
    rms_norm_eps: float
    max_position_embeddings: int
    norm_style: str = "qwen"
    rope_theta: float = 10000.0
    partial_rotary_factor: float = 1.0
    hidden_act: str = "silu"
    tie_word_embeddings: bool = False
    embed_multiplier: float = 1.0
    query_pre_attn_scalar: float | None = None
    attention_heads_per_layer: tuple[int, ...] | None = None
    sliding_window: int | None = None
    sliding_window_pattern: int | None = None
    rope_local_base_freq: float | None = None
    local_partial_rotary_factor: float | None = None
    global_head_dim: int | None = None
    num_global_kv_heads: int | None = None
    global_partial_rotary_factor: float | None = None
    final_logit_softcapping: float | None = None
    attn_logit_softcapping: float | None = None
    attn_v_norm: bool = False
    activation_situ_beta: float | None = None
    activation_situ_linear_beta: float | None = None
    head_clusters: int | None = None
    logit_multiplier: float | None = None
    rope_freq_factors: tuple[float, ...] | None = None
    kda_gate_lower_bound: float | None = None
    linear_conv_kernel_dim: int | None = None
    linear_num_key_heads: int | None = None
    linear_num_value_heads: int | None = None
    linear_key_head_dim: int | None = None
    linear_value_head_dim: int | None = None
    num_loops: int = 1
    loop_final_norm: bool = False
    yarn: YarnFields | None = None
    mla: Latent | None = None
    mtp: Drafts | None = None
    moe: Experts | None = None
    linear_core: LinearCore | None = None
    g3n: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Bundle:
    """The chat bundle: template, and special tokens beside the tokenizer's own."""

    chat_template: str | None = None
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    pad_token_id: int | None = None


@dataclass(frozen=True)
class Shard:
    """The number of a file among those of its model, from 1 on."""

    no: int
    count: int


@dataclass(frozen=True)
class ConfidenceScale:
    """The temperature under which the model's confidences are those it has earned."""

    temperature: float
    ece_before: float | None = None
    ece_after: float | None = None


@dataclass(frozen=True)
class Routing:
    """The calibration of the router of skills."""

    temperature: float
    novelty_theta: float
    samples: int
    target_fpr: float


@dataclass(frozen=True)
class Selection:
    """The subspace by which a skill is chosen: f16 numbers, base64."""

    metric: str
    phi_layer: int
    mean: str
    basis: str
    rank: int
    err_mean: float | None = None
    err_std: float | None = None
    holdout: str | None = None
    holdout_n: int | None = None


@dataclass(frozen=True)
class Skill:
    """A record of the skills; a detached file's has the directory hash of its base."""

    id: str
    name: str | None = None
    layers: tuple[int, ...] = ()
    selection: Selection | None = None
    input_mask_task: Any = None
    quality: Mapping[str, Any] | None = None
    base_dir_hash: str | None = None
    base_arch: str | None = None
    task: Any = None
    provenance: Any = None


@dataclass(frozen=True)
class SectionHashes:
    """Hashes of optional sections, 16 hexadecimal digits each."""

    masks: str | None = None
    vocab: str | None = None
    index: str | None = None


@dataclass(frozen=True)
class Header:
    """A header.

    Attributes
    ----------
    raw : the whole object, with keys that are not known here, for writers.
    """

    version: int
    arch: Arch
    quant_type: str
    format: str = "cmf"
    provenance: Any = None
    tokenizer_config: Bundle | None = None
    section_hashes: SectionHashes | None = None
    skills: tuple[Skill, ...] = ()
    shard: Shard | None = None
    calibration: ConfidenceScale | None = None
    routing: Routing | None = None
    cortiq: Mapping[str, Any] | None = None
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)


def parse_header(data: bytes, where: str, strict: bool = True) -> Header:
    """Return the header of a file.

    Parameters
    ----------
    strict : compare what is said twice, too: the version, and the number of layers.

    Raises
    ------
    FormatError : it is no JSON object, or a field is missing or of another type.
    """
    inside = f"{where}, header"
    given = parse_object(data, inside, MAX_LEVELS)
    header = read_fields(Header, {k: v for k, v in given.items() if k != "raw"}, inside)
    object.__setattr__(header, "raw", given)
    arch = header.arch
    if header.quant_type not in QUANT_TYPES:
        raise FormatError(f"quant_type is {shown(header.quant_type)}", where=inside)
    odd = [kind for kind in arch.layer_types if kind not in LAYER_TYPES]
    if odd:
        raise FormatError(f"a layer is of the type {shown(odd[0])}", where=inside)
    if strict:
        _check_twice(header, inside)
    return header


def _check_twice(header: Header, where: str) -> None:
    arch = header.arch
    if header.format != "cmf" or header.version != VERSION:
        what = f"says it is {shown(header.format)} {header.version}, the file is CMF {VERSION}"
        raise FormatError(what, where=where)
    if len(arch.layer_types) != arch.num_layers or not 0 < arch.num_layers <= MAX_LAYERS:
        what = f"lists {len(arch.layer_types)} layer types for {arch.num_layers} layers"
        raise FormatError(what, where=where)
    if not 0 < arch.num_loops <= MAX_LAYERS:
        raise FormatError(f"passes its layers {arch.num_loops} times", where=where)
    heads = arch.attention_heads_per_layer
    if heads is not None and len(heads) != arch.num_layers:
        raise FormatError(f"lists heads of {len(heads)} layers", where=where)
    ids = [skill.id for skill in header.skills]
    if len(set(ids)) != len(ids):
        raise FormatError("has two skills of one id", where=where)
