"""`cortiq bench`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from cortiq.cli.flags import ADAPTERS, grouped_command, options_of
from cortiq.cli.generate import with_draft_heads
from cortiq.cli.inputs import MODEL
from cortiq.cli.render import echo, note, print_json, print_table, progress_bar
from cortiq.errors import BackendError
from cortiq.options import GenerateOptions, LoadOptions, resolve

if TYPE_CHECKING:
    from cortiq.bench.measure import Runner, Speed, Workload
    from cortiq.model.model import Model

PEERS = ("llama.cpp", "engine")


@grouped_command()
@click.argument("model", type=MODEL)
@click.option(
    "-p", "--prompt-tokens", type=click.IntRange(1), default=512, show_default=True,
    help="Tokens of each prompt.",
)  # fmt: skip
@click.option(
    "-n", "--new-tokens", type=click.IntRange(1), default=128, show_default=True,
    help="Tokens decoded after each prompt.",
)  # fmt: skip
@click.option(
    "--batch", type=click.IntRange(1), default=1, show_default=True,
    help="Sequences decoded together.",
)  # fmt: skip
@click.option(
    "-r", "--repeats", type=click.IntRange(1), default=5, show_default=True,
    help="Repetitions that count, after one that warms up.",
)  # fmt: skip
@click.option(
    "--against", type=click.Choice(PEERS),
    help="Compare, in turn, with llama.cpp on the same file and as many threads, or with the "
    "generation engine and all its work per token.",
)  # fmt: skip
@click.option(
    "--draft", metavar="NAME[:ARGUMENT]",
    help="Measure this drafter instead, with and without it, on a repetitive text and another one.",
)  # fmt: skip
@click.option(
    "--draft-depth",
    type=click.IntRange(1, 64),
    help="Tokens drafted at a time; by default chosen automatically from measured gain.",
)
@click.option("--profile", is_flag=True, help="Show each op's time and its bound.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@options_of(LoadOptions, without=ADAPTERS)
def bench(
    model: str,
    against: str | None,
    draft: str | None,
    draft_depth: int | None,
    profile: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Measure a model: prompt and decode tokens per second.

    Rates are medians of the repetitions. Nothing else should run on the machine.
    """
    from cortiq.bench.measure import Workload, measure
    from cortiq.engine.request import check_prompt, vocabulary_size
    from cortiq.ir.purpose import check_continues
    from cortiq.model.drafter_factory import drafters_named
    from cortiq.model.load import load

    work = Workload(*(given.pop(n) for n in ("prompt_tokens", "new_tokens", "batch", "repeats")))
    chosen = resolve(LoadOptions, given)
    if draft is not None:
        drafters_named(
            GenerateOptions(draft=draft, draft_depth=draft_depth)
        )  # before a model is opened
    given = with_draft_heads(given, draft)
    extra = {"profile": True} if profile else {}
    with progress_bar(in_bytes=True) as bar:
        loaded = load(model, progress=bar, extra=extra, **given)
    with loaded:
        if draft is not None:
            return _print_drafts(loaded, draft, draft_depth, work, as_json)
        check_continues(loaded.program, loaded.name)
        work.check(loaded.context)
        check_prompt(work.prompt(vocabulary_size(loaded.program)), loaded.program)
        runners = _runners(loaded, model, work, against, chosen.threads)
        with progress_bar() as bar:
            speeds = measure(runners, work, vocabulary_size(loaded.program), bar)
        facts = _facts(loaded, model, work, runners)
        if profile:
            facts["profile"] = profile_of(loaded, runners["cortiq"], work)
    return _print(speeds, facts, as_json)


def _print_drafts(
    loaded: Model, draft: str, depth: int | None, work: Workload, as_json: bool
) -> None:
    """Measure a drafter; print decoded tokens per second."""
    from cortiq.bench.drafts import compare

    with progress_bar() as bar:
        found = compare(loaded, draft, depth, work.new_tokens, work.repeats, bar)
    numbers = {name: compared.as_dict() for name, compared in found.items()}
    if as_json:
        print_json({"model": loaded.name, "draft": draft, "draft_depth": depth, "tasks": numbers})
        return
    keys = ("plain", "drafted", "ratio", "tokens_per_step")
    rows = [(name, *(f"{n[key]:.2f}" for key in keys)) for name, n in numbers.items()]
    print_table(("text", "plain tokens/s", f"with {draft}", "ratio", "tokens/step"), rows)


def _runners(
    loaded: Model, model: str, work: Workload, against: str | None, threads: int
) -> dict[str, Runner]:
    from cortiq.bench.measure import ExecutableRunner

    runners: dict[str, Runner] = {"cortiq": ExecutableRunner(loaded.executable, work)}
    if against == "engine":
        from cortiq.bench.engine_runner import EngineRunner

        runners[against] = EngineRunner(loaded.executable, loaded.tokenizer, work)
    elif against is not None:
        from cortiq.bench.llama_cpp import LlamaCppRunner
        from cortiq.bench.measure import cores
        from cortiq.formats.fetch import resolve as path_of

        runners[against] = LlamaCppRunner(path_of(model), work, threads or cores())
    return runners


def _facts(
    loaded: Model, model: str, work: Workload, runners: Mapping[str, Runner]
) -> dict[str, Any]:
    from cortiq.bench.measure import cores

    facts = {
        "model": model,
        "backend": f"{loaded.backend}:{loaded.device}",
        "threads": loaded.options.threads or cores(),
        "prompt_tokens": work.prompt_tokens,
        "new_tokens": work.new_tokens,
        "batch": work.batch,
        "repeats": work.repeats,
        "load_seconds": round(loaded.load_seconds, 4),
    }
    versions = {n: r.version for n, r in runners.items() if hasattr(r, "version")}
    return facts | ({"peer": versions} if versions else {})


def profile_of(loaded: Model, runner: Runner, work: Workload) -> dict[str, Any]:
    """Return the time per op in a prefill and in decoding steps, and the machine's limits.

    The executable has a `profile` with `start`, `stop` and `limits` if its backend can record.
    """
    from cortiq.engine.request import vocabulary_size

    recorder = loaded.executable.profile
    if recorder is None:
        raise BackendError(f"the backend {loaded.backend} records no times of its ops")
    recorder.start()
    runner.prefill(work.prompt(vocabulary_size(loaded.program)))
    prefill = recorder.stop()
    recorder.start()
    runner.decode(work.new_tokens)
    return {"prefill": prefill, "decode": recorder.stop(), "limits_per_second": recorder.limits()}


def _print(speeds: Mapping[str, Speed], facts: dict[str, Any], as_json: bool) -> None:
    numbers = {name: speed.as_dict() for name, speed in speeds.items()}
    ratios = {}
    if len(speeds) > 1:
        ours, theirs = speeds.values()
        ratios = {
            "prefill": round(ours.prefill.median / theirs.prefill.median, 3),
            "decode": round(ours.decode.median / theirs.decode.median, 3),
        }
    if as_json:
        print_json({**facts, "tokens_per_second": numbers, "ratio": ratios})
        return
    rows = [
        (name, part, *(f"{spread[key]:.1f}" for key in ("median", "least", "most")))
        for name, parts in numbers.items()
        for part, spread in parts.items()
    ]
    rows += [("ratio", part, f"{ratio:.2f}", "", "") for part, ratio in ratios.items()]
    print_table(("", "part", "tokens/s", "least", "most"), rows)
    _print_profile(facts.get("profile", {}))
    for name, version in facts.get("peer", {}).items():
        note(f"{name}: {version}")


def _print_profile(profile: dict[str, Any]) -> None:
    for part in ("prefill", "decode") if profile else ():
        echo(f"\n{part}, by op; limits are measured on this machine:")
        rows = [tuple(str(value) for value in row.values()) for row in profile[part]]
        headings = ("op", "calls", "ms", "share", "memory ms", "arithmetic ms", "of limit")
        print_table(headings, rows)
    if profile:
        limits = profile["limits_per_second"]
        note(", ".join(f"{name.replace('_', ' ')} a second: {n}" for name, n in limits.items()))
