"""DeepSeek V4's DSpark: layers like the trunk's, beside it in its folder (`mtp.0`, `mtp.1` …).

A context row is of the means of the tapped layers' streams; a block sees a window of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from cortiq.errors import FormatError
from cortiq.ir import Builder, Program, Value, ops
from cortiq.ir.heads import DSPARK, REDUCED
from cortiq.ir.layers import Linear, RMSNorm, StreamEntry, StreamMean, StreamRead, StreamWrite
from cortiq.models.deepseek_v4 import ATTENTION, EXPERTS, MOST_STAGES, Config
from cortiq.models.dspark import (
    MOST_ROWS,
    BlockRows,
    HeadLinear,
    Scoring,
    attended,
    checked_taps,
    context_row,
    turned,
    with_block,
)
from cortiq.models.hyper_connections import LAST, STREAMS
from cortiq.models.layer_kinds import LOCAL
from cortiq.models.parts import named

LEAST = "attn.wkv.weight"
"""A tensor that each of its layers has."""


def with_drafter(
    program: Program, config: Config, has: Callable[[str], bool] | None = None
) -> Program:
    """Return the program with the folder's drafter; unchanged if it has none.

    Parameters
    ----------
    has : whether there is a tensor of a canonical name; None for formula models.

    Raises
    ------
    FormatError : what the configuration says of it is no drafter of this model.
    """
    first = config.num_hidden_layers
    there = has or {f"model.layers.{first + n}.{LEAST}" for n in range(2)}.__contains__
    present = [there(f"model.layers.{first + n}.{LEAST}") for n in range(MOST_STAGES)]
    count = (*present, False).index(False)
    if not config.dspark_block_size or not count:
        return program
    checked_taps(config.dspark_target_layer_ids, program, "dspark_target_layer_ids", "config")
    bounds = {
        "dspark_block_size": (config.dspark_block_size, 1, MOST_ROWS),
        "dspark_markov_rank": (config.dspark_markov_rank, 1, config.vocab_size),
        "dspark_noise_token_id": (config.dspark_noise_token_id, 0, config.vocab_size - 1),
    }
    for key, (value, low, high) in bounds.items():
        if not low <= value <= high:
            what = f"{key} is {value}, not between {low} and {high}"
            raise FormatError(what, where="config", hint="heads='off' loads the model without it")
    return with_block(program, Stages(config, program.context, count))


class Stages:
    """Writes the drafter's layers (`dspark.Backbone`)."""

    def __init__(self, config: Config, context: int, count: int) -> None:
        self.config = config = config.with_tables()
        self.attention, self.experts = config.attention(LOCAL, context), config.experts(False)
        self.read = StreamRead(
            config.hc_mult, config.hidden_size, config.rms_norm_eps, config.hc_eps,
            config.hc_sinkhorn_iters,
        )  # fmt: skip
        first = config.num_hidden_layers
        self.files = [f"model.layers.{first + n}" for n in range(count)]
        self.taps, self.size = config.dspark_target_layer_ids, int(config.dspark_block_size)
        self.mask_token, self.window = int(config.dspark_noise_token_id), config.sliding_window
        last = self.files[-1]
        before, after = (f"{last}.markov_head.markov_w{n}.weight" for n in (1, 2))
        chance = f"{last}.confidence_head.proj.weight"
        self.scoring = Scoring(config.dspark_markov_rank, before, after, chance)

    def context(self, b: Builder) -> None:
        """Write the context row, and each layer's key of it."""
        rows, file = [self._mean(b, n) for n in self.taps], self.files[0]
        project, norm = (f"{file}.main_{part}.weight" for part in ("proj", "norm"))
        c = context_row(b, rows, project, norm, self.config.rms_norm_eps)
        position = Value("position", b.values["position"])
        for n in range(len(self.files)):
            self._store(b, c, position, n, f"{DSPARK}.context.{n}", f"{DSPARK}.context.{n}.kv")

    def block(self, b: Builder, rows: BlockRows, embedded: Value) -> tuple[Value, Value]:
        """Write the layers: attention and experts, read from streams."""
        sizes = self.read.streams, self.read.width
        write, norm = StreamWrite(*sizes), RMSNorm(self.read.width, self.read.eps)
        streams = b.add(StreamEntry(*sizes), embedded, name=f"{DSPARK}.streams")
        for n, file in enumerate(self.files):
            here = f"{DSPARK}.{n}"
            row, *how = self._row(b, streams, "attn", file, f"{here}.attention")
            y = self._attended(b, row, rows, n, here)
            streams = b.add(write, streams, y, *how, name=f"{here}.middle")
            row, *how = self._row(b, streams, "ffn", file, f"{here}.mlp")
            weights = named(self.experts, f"{file}.ffn", EXPERTS)
            y = b.add(self.experts, row, name=f"{here}.mlp", weights=weights)
            streams = b.add(write, streams, y, *how, name=f"{here}.out")
        file, last = self.files[-1], replace(self.read, last=True, rounds=1)
        weights = {r: f"{file}.hc_head_{LAST[r][3:]}" for r in last.weight_shapes()}
        reduced = b.add(last, streams, name=REDUCED, weights=weights)
        weights = {"weight": f"{file}.norm.weight"}
        return reduced, b.add(norm, reduced, name=f"{DSPARK}.hidden", weights=weights)

    def _row(self, b: Builder, streams: Value, of: str, file: str, name: str) -> tuple[Value, ...]:
        """Write the row that a branch reads, after its norm, and how it is written back."""
        weights = {r: f"{file}.hc_{of}_{STREAMS[r]}" for r in self.read.weight_shapes()}
        row, *how = b.add_node(self.read, streams, name=f"{name}_read", weights=weights)
        norm, weights = (
            RMSNorm(self.read.width, self.read.eps),
            {"weight": f"{file}.{of}_norm.weight"},
        )
        return b.add(norm, row, name=f"{name}_norm", weights=weights), *how

    def _mean(self, b: Builder, layer: int) -> Value:
        """Write the mean of the streams behind a layer of the trunk."""
        streams = Value(f"layers.{layer}.out", b.values[f"layers.{layer}.out"])
        return b.add(StreamMean(*streams.type.shape), streams, name=f"{DSPARK}.tap.{layer}")

    def _tensor(self, n: int, role: str) -> dict[str, str]:
        return {"weight": f"{self.files[n]}.attn.{ATTENTION[role]}"}

    def _store(self, b: Builder, x: Value, place: Value, n: int, name: str, slot: str) -> None:
        """Store the key of a row, which is its value, too."""
        op = self.attention
        k = b.add(Linear(op.width, op.dim), x, name=f"{name}.kv", weights=self._tensor(n, "kv"))
        norm, weights = RMSNorm(op.dim, op.eps), self._tensor(n, "kv_norm")
        k = b.add(norm, k, name=f"{name}.normed", weights=weights)
        k = b.add(ops.Reshape((1, op.dim)), k, name=f"{name}.head")
        k = turned(b, k, place, op.rope, f"{name}.k")
        k = b.add(ops.Quantise(), k, name=f"{name}.codes")
        b.add_node(ops.StoreKV(1, op.dim, op.dim), k, k, name=f"{name}.store", slots={"kv": slot})

    def _attended(self, b: Builder, x: Value, rows: BlockRows, n: int, name: str) -> Value:
        op = self.attention
        self._store(b, x, rows.place, n, name, f"{name}.kv")
        q = b.add(
            Linear(op.width, op.query_latent), x, name=f"{name}.q_a", weights=self._tensor(n, "q_a")
        )
        norm, weights = RMSNorm(op.query_latent, op.eps), self._tensor(n, "q_a_norm")
        q = b.add(norm, q, name=f"{name}.q_a.normed", weights=weights)
        wide, weights = Linear(op.query_latent, op.heads * op.dim), self._tensor(n, "q")
        q = b.add(wide, q, name=f"{name}.q", weights=weights)
        q = b.add(ops.Reshape((op.heads, op.dim)), q, name=f"{name}.q.heads")
        q = b.add(ops.RMSNorm(op.dim, op.eps, weighted=False), q, name=f"{name}.q.normed")
        q = turned(b, q, rows.place, op.rope, f"{name}.q")
        q = b.add(ops.Quantise(), q, name=f"{name}.q.codes")
        near = ops.Attend(op.heads, 1, op.dim, op.dim, op.scale)
        sinks = f"{self.files[n]}.attn.{ATTENTION['sinks']}"
        y = attended(b, q, rows, name, f"{DSPARK}.context.{n}.kv", near, sinks)
        y = turned(b, y, rows.place, replace(op.rope, inverse=True), f"{name}.out")
        each, merged = op.heads // op.groups * op.dim, op.groups * op.group_dim
        y = b.add(ops.Reshape((op.groups, each)), y, name=f"{name}.groups")
        group, weights = HeadLinear(op.groups, each, op.group_dim), self._tensor(n, "o_a")
        y = b.add(group, y, name=f"{name}.o_a", weights=weights)
        y = b.add(ops.Reshape((merged,)), y, name=f"{name}.merged")
        return b.add(Linear(merged, op.width), y, name=f"{name}.o", weights=self._tensor(n, "o"))
