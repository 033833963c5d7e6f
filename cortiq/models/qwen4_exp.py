"""Qwen 3.8 Flash Next's text model: gated streams, Qwen 3.5's mixers, windows of keys, n-grams.

Qwen 3.5 MoE's mixers and experts read residual streams through gates of low rank. Attention sees
the best windows of keys, and the first listed layers' streams are given rows of a table by the last
tokens. While the declared context has no more windows than a query takes, that is all of them, and
there is no indexer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from cortiq.errors import UnsupportedError
from cortiq.ir import Op, Program, Value
from cortiq.ir.images import IMAGES, TEXT_ONLY, ImageRows
from cortiq.ir.layers import (
    GatedStreamRead,
    GatedStreamWrite,
    StreamEntry,
    StreamNGrams,
    WindowIndexer,
)
from cortiq.ir.ops import HashNGrams
from cortiq.models import qwen3_5, qwen4_exp_gguf
from cortiq.models.config import Amount, convert_config
from cortiq.models.layer_kinds import GLOBAL
from cortiq.models.ngram_hashes import multipliers, primes
from cortiq.models.parts import ATTENTION, Decoder, activation, named, norm_offset
from cortiq.models.qwen2_moe import EXPERTS, experts_of
from cortiq.models.qwen3_next import DELTA, LinearConfig, delta_net, gated_attention
from cortiq.models.qwen4_exp_names import GRAMS, INDEX, INDEXER, READ, names_for
from cortiq.models.rope import rope_table

ARCHITECTURES = ("qwen4_exp_text", "qwen4exp")
GGUF = ("qwen4exp",)
INDEXED = "indexed_attention"
KEYS = replace(
    qwen3_5.KEYS,
    aliases={"num_local_experts": "num_experts"},
    gguf=qwen4_exp_gguf.KEYS,
    harmless=qwen3_5.KEYS.harmless | {
        "index_share_for_mtp_iteration", "mtp", "number_of_conv_states", "ple_embedding_dtype",
        "ple_offload_embedding",
    },
    only={k: v for k, v in qwen3_5.KEYS.only.items() if k != "output_gate_type"},
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Config(LinearConfig):
    """Fields of `Qwen4ExpTextConfig`; no layer has an MLP of `intermediate_size`.

    Attributes
    ----------
    hash_factors, hash_heights : of n-grams, where a file stores what else follows from `seed`.
    """

    intermediate_size: Amount = Amount(0)
    num_key_value_heads: int | None = 2
    max_position_embeddings: int = 32768
    num_experts: int = 512
    num_experts_per_tok: int = 10
    norm_topk_prob: bool = True
    moe_intermediate_size: int = 512
    shared_expert_intermediate_size: int = 512
    output_gate_type: str | None = None
    hc_count: int = 4
    hc_lowrank: int = 320
    ple_layer_ids: tuple[int, ...] | None = None
    ple_embed_dim: int | None = None
    ple_conv_kernel_size: int = 4
    ngram_size: int = 3
    heads_per_ngram: int = 8
    ngram_vocab_size_base: int = 20_000_000
    make_ngram_vocab_size_divisible_by: int = 128
    seed: Amount = Amount(1234)
    split_ngram_parts: int = 512
    indexer_n_heads: int | None = None
    indexer_kv_heads: int | None = None
    indexer_head_dim: int | None = None
    indexer_budget: int | None = None
    indexer_compress_ratio: int | None = None
    eos_token_id: Amount | tuple[int, ...] | None = None
    hash_factors: tuple[int, ...] | None = None
    hash_heights: tuple[int, ...] | None = None
    not_in_json: ClassVar[frozenset[str]] = LinearConfig.not_in_json | {
        "hash_factors", "hash_heights",
    }  # fmt: skip

    def kinds(self) -> tuple[str, ...]:
        """Return each layer's mixer, delta net or attention."""
        listed = self.layer_types
        if listed is not None:
            listed = tuple(GLOBAL if kind == INDEXED else kind for kind in listed)
        return LinearConfig.kinds(replace(self, layer_types=listed, ple_layer_ids=None))

    @property
    def gate(self) -> str:
        """Activation of a delta net's output gate."""
        given = self.output_gate_type or self.hidden_act
        return "sigmoid" if given == "sigmoid" else activation(given)

    @property
    def dilated(self) -> int:
        """Rows that the convolution of n-grams looks back at, with its own."""
        return (self.ple_conv_kernel_size - 1) * self.ngram_size + 1

    def indexer(self, context: int) -> WindowIndexer | None:
        """Return what chooses windows of keys, if there may be too many."""
        heads, dim, every = self.indexer_n_heads, self.indexer_head_dim, self.indexer_compress_ratio
        budget = self.indexer_budget
        if heads is None or dim is None or every is None or budget is None:
            return None
        if self.indexer_kv_heads != 1 or budget % every:
            what = f"{self.indexer_kv_heads} key heads of an indexer, {budget} keys of windows"
            raise UnsupportedError(f"{what} of {every}", where="config")
        if context // every <= budget // every:
            return None
        return WindowIndexer(
            self.hidden_size, heads, dim, every, budget // every, self.rms_norm_eps,
            norm_offset(self), rope_table(self, context),
        )  # fmt: skip

    def grams(self, place: int) -> StreamNGrams:
        """Return what the `place`th layer of those that are listed adds of n-grams."""
        heads = (self.ngram_size - 1) * self.heads_per_ngram
        width, ends = self.ple_embed_dim or self.hidden_size, self.eos_token_id
        end = ends[0] if isinstance(ends, tuple) and ends else ends
        if self.ngram_size < 2 or width % heads or not isinstance(end, int):
            what = f"{heads} heads of n-grams share {width} values, and {end} ends a text"
            raise UnsupportedError(what, where="config")
        heights, factors = self.hash_heights, self.hash_factors
        if heights is None or factors is None:
            found = primes(self.ngram_vocab_size_base - 1, (place + 1) * heads)
            heights = tuple(found[place * heads :])
            factors = multipliers(self.vocab_size, self.ngram_size, self.seed, place)
        hashes = HashNGrams(end, factors, heights)
        part = self.make_ngram_vocab_size_divisible_by
        return StreamNGrams(
            self.hc_count, self.hidden_size, hashes, -(-sum(heights) // part) * part,
            width // heads, self.dilated, self.rms_norm_eps,
        )  # fmt: skip


NAMES = names_for


@dataclass(frozen=True, kw_only=True)
class GGUFConfig(qwen4_exp_gguf.StoredFields):
    """Fields of GGUF files."""

    def config(self, where: str) -> Config:
        """Return the configuration in a folder's form."""
        found = convert_config(Config, self, where, **self.in_folders_form(where))
        factors = None if self.factors is None else tuple(self.factors)
        return replace(found, hash_factors=factors)  # integers of 64 bits: no other field has such


class StreamDecoder(Decoder):
    """A decoder whose branches read streams and write to them."""

    config: Config

    def __init__(self, config: Config, context: int) -> None:
        super().__init__(config, context, family="qwen4_exp", eps=config.rms_norm_eps)
        sizes = config.hc_count, config.hidden_size
        self._read = GatedStreamRead(*sizes, config.hc_lowrank, config.rms_norm_eps)
        self._write, self._entry = GatedStreamWrite(*sizes), StreamEntry(*sizes)

    def streams(self) -> Value:
        """Write the token's row in every stream."""
        return self.builder.add(self._entry, self.embed(), name="streams")

    def within(
        self, op: Op, name: str, prefix: str, table: Mapping[str, str], *inputs: Value
    ) -> Value:
        """Write an operator of a layer, with its slots."""
        slots = {role: f"{name}.{role}" for role in op.slot_kinds()}
        weights = named(op, prefix, table)
        return self.builder.add(op, *inputs, name=name, weights=weights, slots=slots)

    def read(self, streams: Value, name: str, prefix: str) -> tuple[Value, ...]:
        """Write the row that a branch reads, and the weights of its output."""
        weights = named(self._read, prefix, READ)
        return self.builder.add_node(self._read, streams, name=name, weights=weights)

    def write(self, streams: Value, branch: Value, weights: Value, name: str) -> Value:
        """Write the streams with a branch's output."""
        return self.builder.add(self._write, streams, branch, weights, name=name)

    def last(self, streams: Value) -> Program:
        """Write what follows the last layer."""
        op = replace(self._read, last=True)
        weights = named(op, "model.hyper_connection_mixer", READ)
        y = self.builder.add(op, streams, name="hidden", weights=weights)
        return self.finish(y, norm=None)


def build(config: Config, context: int, rows: ImageRows = TEXT_ONLY) -> Program:
    """Build the trunk; one that sees images turns rows by their positions on several axes."""
    decoder, indexer = StreamDecoder(config, context), config.indexer(context)
    if indexer and rows.sections:
        indexer = replace(indexer, sections=rows.sections)
        rows = replace(rows, window=indexer.every)
        decoder.builder.facts[IMAGES] = rows
    net = delta_net(config, gate=config.gate, tiled=config.source == "gguf")
    attention = replace(
        gated_attention(config, context, rows.sections), listed=indexer.listed if indexer else None
    )
    experts = experts_of(config, renormalise=config.norm_topk_prob)
    with_grams = sorted(set(config.ple_layer_ids or ()))
    axes = decoder.axes(rows)
    x = decoder.streams()
    for n, kind in enumerate(config.kinds()):
        file, here = f"model.layers.{n}", f"layers.{n}"
        if n + 1 in with_grams:
            grams = config.grams(with_grams.index(n + 1))
            x = decoder.within(grams, f"{here}.grams", f"{file}.ple", GRAMS, x, decoder.token)
        row, weights = decoder.read(x, f"{here}.attention_read", f"{file}.attn_hyper_connection")
        if kind == GLOBAL:
            inputs = [row, decoder.position]
            chosen = []
            if indexer:
                at = f"{file}.{INDEXER}"
                given = *inputs, *axes
                chosen.append(decoder.within(indexer, f"{here}.indexer", at, INDEX, *given))
            inputs += [*axes[:1], *chosen]
            at = f"{file}.self_attn"
            y = decoder.within(attention, f"{here}.attention", at, ATTENTION, *inputs)
        else:
            y = decoder.within(net, f"{here}.delta", f"{file}.linear_attn", DELTA, row)
        x = decoder.write(x, y, weights, f"{here}.middle")
        row, weights = decoder.read(x, f"{here}.mlp_read", f"{file}.mlp_hyper_connection")
        y = decoder.within(experts, f"{here}.mlp", f"{file}.mlp", EXPERTS, row)
        x = decoder.write(x, y, weights, f"{here}.out")
    return decoder.last(x)
