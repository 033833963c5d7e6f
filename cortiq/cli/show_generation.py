"""Shows a generation: its text, its JSON object, its statistics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from cortiq.cli.render import (
    byte_count,
    counted,
    echo,
    note,
    progress_bar,
)
from cortiq.cli.wrapping import AnswerPrinter

if TYPE_CHECKING:
    from cortiq.model.generation import Generation
    from cortiq.model.model import Model


def note_length(made: Generation) -> None:
    """Note that a text was cut, for its length or for repeating itself, and the flag for more."""
    if made.finish_reason == "length" and not made.note:
        note(f"[cut after {counted(len(made.token_ids), 'token')}; --max-tokens allows more]")
    if made.finish_reason == "loop":
        note("[stopped: the text repeats itself; --loop-tokens 0 goes on]")


def note_unused(made: Generation, prefix: str | None, kept: int) -> None:
    """Note why the tokens of a prefix were not used, if none of so many was."""
    if not kept or made.stats.reused_tokens:
        return
    from cortiq.engine.prefixes import LEAST_ROWS

    why = f"the prompt does not begin with its {kept} tokens"
    if kept < LEAST_ROWS:
        why = f"it has {kept} tokens, fewer than the {LEAST_ROWS} that are worth reusing"
    note(f"{prefix}: not used: {why}")


def show_generation(
    model: Model, ids: list[int], options: dict[str, Any], quiet: bool, wraps: bool
) -> Generation:
    """Generate and print the text as it comes, unless it is to be quiet.

    Parameters
    ----------
    wraps : as for `AnswerPrinter`: true for answers, false for texts that are continued.
    """
    written, printer = False, AnswerPrinter(wraps)
    with progress_bar() as bar:

        def show(piece: str) -> None:
            nonlocal written
            bar.stop()
            if not quiet:
                printer.add(piece)
                written = True

        def advance(done: int, total: int) -> None:
            bar("Reading the prompt", done, total)

        try:
            made = model.generate(ids, on_text=show, progress=advance, **options)
        except BaseException:
            if written:
                printer.finish()
                echo()
            raise
    if not quiet:
        printer.finish()
        echo(",".join(map(str, made.token_ids)) if model.tokenizer.absent else "")
    return made


def generation_object(made: Generation) -> dict[str, Any]:
    """Return the JSON object of a generation."""
    from cortiq.numerics.digest import hexadecimal

    names = (
        "text", "token_ids", "finish_reason", "backend", "device", "placement", "seed", "contract",
        "model_hash", "fingerprint", "digest", "note",
    )  # fmt: skip
    facts = {name: getattr(made, name) for name in names} | {"stats": made.stats.as_dict()}
    if made.confidence:
        facts["confidence"] = made.confidence
    if made.trace:
        facts["trace"] = [{**asdict(row), "digest": hexadecimal(row.digest)} for row in made.trace]
    return facts


def print_statistics(made: Generation) -> None:
    """Print times, placement and memory of a generation on stderr."""
    numbers = made.stats.as_dict()
    placed = ", ".join(f"{name} {count} nodes" for name, count in made.placement.items())
    memory = numbers["peak_memory_bytes"]
    note(f"backend {made.backend}:{made.device} ({placed}), finish reason {made.finish_reason}")
    note(f"load {numbers['load_seconds']:.2f} s")
    for part, count, what in (
        ("prompt", "prompt_tokens", "until the first token was drawn"),
        ("decode", "decoded_tokens", "after the first"),
    ):
        rate = numbers[f"{part}_tokens_per_second"]
        speed = f", {rate:.1f} tok/s" if rate is not None else ""
        note(
            f"{part} {numbers[count]} tokens in {numbers[f'{part}_seconds']:.2f} s{speed} ({what})"
        )
    if numbers["reused_tokens"]:
        note(f"{numbers['reused_tokens']} prompt tokens were cached")
    for line in drafting_lines(numbers.get("drafting", {})):
        note(line)
    if memory is not None:
        note(f"peak memory {byte_count(memory)}")


def drafting_lines(drafting: Mapping[str, Any]) -> list[str]:
    """Return the drafting statistics, one line per drafter."""
    lines = [
        f"drafted by {name}: {d['rounds']} rounds,"
        f" {d['accepted']} of {d['drafted']} tokens accepted,"
        f" {d['tokens_per_round']:.2f} tokens per round,"
        f" {d['draft_seconds']:.2f} of {d['wall_seconds']:.2f} s spent drafting"
        for name, d in drafting.get("drafters", {}).items()
    ]
    if lines:
        lines.append(f"steps without a draft: {drafting['plain_rounds']}")
    if "error" in drafting:
        lines.append(f"drafting was disabled: {drafting['error']}")
    return lines
