"""Measure the gain of draft heads: `python benchmarks/draft_heads.py [--layers N] ...`.

There is no small public model with a head, so one is fitted: the trunk is a Llama by formula whose
attention is turned down, so that its text follows from the last tokens; the head's joining matrix
is the least-squares map from (embedding of the next token, hidden row) to the next hidden row, over
texts of the trunk's own, and its block adds nothing. A useless head is that of the formula: `auto`
must notice.
Both texts of a pair are stepped in turn, by processor time, which a busy machine disturbs less, and
compared.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from statistics import mean, pstdev

import numpy as np
import numpy.typing as npt

from cortiq.backend import Batch, CompileOptions, Executable, Named, Row
from cortiq.engine.drafters.blocks import BlockDrafter
from cortiq.engine.drafters.heads import HeadDrafter
from cortiq.engine.drafters.kinds import DFLASH, MTP
from cortiq.engine.drafters.turns import in_turns
from cortiq.engine.drafting import Speculation
from cortiq.engine.engine import Engine
from cortiq.engine.request import Request, make_request
from cortiq.models import load_program
from cortiq.models.bind import LoadedProgram
from cortiq.models.synthetic import SyntheticCheckpoint
from cortiq.numerics.layouts import Weight
from cortiq.numerics.weights import convert
from cortiq.options import GenerateOptions
from cortiq.tokenizer.tokenizer import byte_tokenizer
from cortiq_reference.ideal import dequantise

Doubles = npt.NDArray[np.float64]
ATTENTION = 0.05
"""Scale of the trunk's attention."""
TEXTS, RIDGE = 6, 1e-3
EPS = 1e-6


@dataclass(frozen=True)
class TrunkSize:
    """Sizes of a trunk."""

    layers: int = 3
    width: int = 64
    inner: int = 96
    vocabulary: int = 320
    heads: int = 4
    context: int = 1024

    def checkpoint(self, layout: str, seed: int) -> SyntheticCheckpoint:
        """Return a synthetic Llama checkpoint."""
        config = {
            "model_type": "llama", "vocab_size": self.vocabulary, "hidden_size": self.width,
            "intermediate_size": self.inner, "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads, "num_key_value_heads": self.heads // 2,
            "head_dim": self.width // self.heads, "max_position_embeddings": self.context,
            "rms_norm_eps": EPS, "tie_word_embeddings": False,
        }  # fmt: skip
        return SyntheticCheckpoint("fitted", seed, layout, config)


def changed(loaded: LoadedProgram, floats: Mapping[str, Doubles], layout: str) -> dict[str, Weight]:
    """Return the weights with some of them replaced."""
    made = {}
    for name, values in floats.items():
        weight = Weight.from_floats(np.ascontiguousarray(values, np.float32).reshape(
            -1, values.shape[-1]))  # fmt: skip
        spec = loaded.program.weights[name]
        made[name] = weight if spec.layout == "f32" else convert(weight, layout, name)
    return {**loaded.weights, **made}


def quiet_attention(loaded: LoadedProgram) -> dict[str, Doubles]:
    """Return the output projections of the trunk's attention, scaled down."""
    names = [n for n in loaded.weights if n.startswith("model.") and n.endswith("o_proj.weight")]
    return {name: ATTENTION * dequantise(loaded.weights[name]) for name in names}


def rows_of(executable: Executable, ids: list[int], name: str) -> Doubles:
    """Return a value at every position of a text."""
    state, want = executable.open(len(ids)), Named(name)
    batch = Batch([Row(state, i, t, (want,)) for i, t in enumerate(ids)])
    rows = executable.forward(batch).result().rows
    state.release()
    return np.array([row[want] for row in rows], np.float64)


def normed(x: Doubles) -> Doubles:
    """Return the norm of a row, its weight 1."""
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + EPS)


def fitted_head(
    loaded: LoadedProgram, executable: Executable, size: TrunkSize, positions: int
) -> dict[str, Doubles]:
    """Fit the head's weights by least squares on texts that the trunk generated."""
    table = dequantise(loaded.weights["model.embed_tokens.weight"])
    last = f"layers.{size.layers - 1}.out"
    left, right = [], []
    for seed in range(TEXTS):
        ids = own_text(executable, seed, positions // TEXTS, size)
        out, hidden = rows_of(executable, ids, last), rows_of(executable, ids, "hidden")
        left.append(np.concatenate([normed(table[ids[1:]]), normed(hidden[:-1])], axis=-1))
        right.append(out[1:])
    x, y = np.concatenate(left), np.concatenate(right)
    gram = x.T @ x + RIDGE * len(x) * np.eye(x.shape[1])
    ones, nothing = np.ones(size.width), np.zeros((size.width, size.width))
    return {
        "mtp.fc.weight": np.linalg.solve(gram, x.T @ y).T,
        "mtp.pre_fc_norm_embedding.weight": ones,
        "mtp.pre_fc_norm_hidden.weight": ones,
        "mtp.norm.weight": dequantise(loaded.weights["model.norm.weight"])[0],
        "mtp.layers.0.self_attn.o_proj.weight": nothing,
        "mtp.layers.0.mlp.down_proj.weight": np.zeros((size.width, size.inner)),
    }


def own_text(executable: Executable, seed: int, length: int, size: TrunkSize) -> list[int]:
    """Sample a text from the trunk."""
    request = request_of(executable, size, seed, length, temperature=1.0)
    return list(request.prompt) + generated(executable, request, None)[0]


def request_of(
    executable: Executable, size: TrunkSize, seed: int, tokens: int, temperature: float
) -> Request:
    """Return a request with a random prompt."""
    ids = np.random.default_rng(seed).integers(0, size.vocabulary, 16).tolist()
    options = GenerateOptions(
        max_tokens=tokens, ignore_eos=True, seed=seed, temperature=temperature
    )
    return make_request(ids, options, executable.program, ())


def generated(
    executable: Executable, request: Request, speculation: Speculation | None
) -> tuple[list[int], float, float]:
    """Return tokens, seconds, and tokens for each run of the trunk."""
    tokenizer = byte_tokenizer(executable.program.facts["vocab_size"])
    with Engine(executable, tokenizer, clock=time.process_time) as engine:
        sequence = engine.submit(request, speculation=speculation)
        engine.step()
        started = time.process_time()
        engine.run()
        wall = time.process_time() - started
    assert sequence.error is None and not sequence.stats.drafts.error
    drafts = sequence.stats.drafts
    rounds = drafts.plain_rounds + sum(tally.rounds for tally in drafts.drafters.values())
    tokens = list(sequence.output.token_ids)
    return tokens, wall, len(tokens) / rounds if rounds else 1.0


def made(
    size: TrunkSize, layout: str, useful: bool, threads: int, positions: int, block: bool = False
) -> Executable:
    """Return the trunk with a fitted or synthetic head, and a synthetic block drafter."""
    from cortiq_cpu.backend import CpuBackend

    checkpoint = size.checkpoint(layout, seed=3)
    loaded = load_program(checkpoint, heads="mtp,dflash" if block else "mtp")
    options = CompileOptions(threads=threads)
    weights = changed(loaded, quiet_attention(loaded), layout)
    loaded = replace(loaded, weights=weights)
    executable = CpuBackend().compile(loaded.program, weights, options)
    if not useful:
        return executable
    head = fitted_head(loaded, executable, size, positions)
    executable.close()
    return CpuBackend().compile(loaded.program, changed(loaded, head, layout), options)


@dataclass(frozen=True)
class HeadComparison:
    """Processor seconds and rounds of texts with a head and of the same texts without."""

    plain: list[float]
    drafted: list[float]
    each: list[float]

    @property
    def ratio(self) -> float:
        """Tokens a second with the head, by those without, over all texts."""
        return sum(self.plain) / sum(self.drafted)

    @property
    def ratios(self) -> list[float]:
        """Return the ratio of every text."""
        return [p / d for p, d in zip(self.plain, self.drafted, strict=True)]


def side_by_side(
    executable: Executable, request: Request, speculation: Speculation
) -> tuple[float, float, float]:
    """Measure processor seconds without and with a head, and tokens per round with it.

    The shorter text runs next, so that both meet the same clock rates and neighbours.
    """
    tokenizer = byte_tokenizer(executable.program.facts["vocab_size"])
    ways: tuple[Speculation | None, ...] = (None, speculation)
    engines = [Engine(executable, tokenizer, clock=time.process_time) for _ in ways]
    texts = [e.submit(request, speculation=w) for e, w in zip(engines, ways, strict=True)]
    seconds = [0.0, 0.0]
    for engine in engines:
        engine.step()  # the prompt
    while going := [i for i, text in enumerate(texts) if not text.done]:
        now = min(going, key=lambda i: texts[i].generated)
        started = time.process_time()
        engines[now].step()
        seconds[now] += time.process_time() - started
    plain, drafted = texts
    assert drafted.output.token_ids == plain.output.token_ids
    assert not (plain.error or drafted.error or drafted.stats.drafts.error)
    drafts = drafted.stats.drafts
    rounds = drafts.plain_rounds + sum(tally.rounds for tally in drafts.drafters.values())
    return seconds[0], seconds[1], drafted.generated / rounds


def compare(
    executable: Executable,
    size: TrunkSize,
    way: Callable[[], Speculation],
    repeats: int,
    tokens: int,
    afresh: bool = False,
) -> HeadComparison:
    """Compare texts with and without the head, after one that is not counted.

    Parameters
    ----------
    way : makes a drafter that knows nothing yet; asked once, or for every text.
    afresh : whether it is asked for every text.
    """
    found, known = HeadComparison([], [], []), way()
    for seed in range(repeats + 1):
        request = request_of(executable, size, 100 + seed, tokens, temperature=0.0)
        speculation = way() if afresh else known
        plain, drafted, each = side_by_side(executable, request, speculation)
        if seed:
            for numbers, number in zip((found.plain, found.drafted, found.each),
                                       (plain, drafted, each), strict=True):  # fmt: skip
                numbers.append(number)
    return found


def main() -> int:
    """Print both comparisons; 1 if a bound is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for name, default in (("layers", 12), ("width", 512), ("inner", 1536), ("vocabulary", 320),
                          ("threads", 1), ("repeats", 6), ("depth", 0),
                          ("positions", 6000)):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--tokens", type=int, nargs="+", default=[200])
    parser.add_argument("--layout", default="w8")
    parser.add_argument("--block", action="store_true", help="a useless block drafter in turns")
    parser.add_argument("--afresh", action="store_true", help="every text learns from nothing")
    a = parser.parse_args()
    size = TrunkSize(a.layers, a.width, a.inner, a.vocabulary, heads=8, context=2048)

    def way() -> Speculation:
        kinds = {MTP: HeadDrafter(), **({DFLASH: BlockDrafter()} if a.block else {})}
        return in_turns(
            [
                Speculation(d, replace(k, extra=0).policies(a.depth or None, len(kinds)))
                for k, d in kinds.items()
            ]
        )

    worst = 0
    for title, useful, least in (("fitted", True, 1.2), ("useless", False, 0.97)):
        executable = made(size, a.layout, useful, a.threads, a.positions, a.block)
        for tokens in a.tokens:
            found = compare(executable, size, way, a.repeats, tokens, a.afresh)
            print(
                f"{title} head, {tokens} tokens: {mean(found.each):.2f} tokens a round, "
                f"{found.ratio:.3f} of plain ({min(found.ratios):.3f} to {max(found.ratios):.3f}, "
                f"deviation {pstdev(found.ratios):.3f}; least {least})"
            )
            worst |= found.ratio < least
        executable.close()
    return worst


if __name__ == "__main__":
    sys.exit(main())
