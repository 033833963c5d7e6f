"""Markers around models' thinking, and the framing of an answer's channels."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Thinking:
    """Markers around a thinking block.

    Attributes
    ----------
    opens, closes : the markers.
    frames : markers of the answer itself, which are not part of its text.
    """

    opens: str
    closes: str
    frames: tuple[str, ...] = ()


TAGS = Thinking("<think>", "</think>")
ANSWERS = Thinking(
    "<think>", "</think>",
    tuple(mark for word in ("answer", "response") for mark in (f"<{word}>\n", f"\n</{word}>")),
)  # fmt: skip
SEED = Thinking("<seed:think>", "</seed:think>")
COHERE = Thinking(
    "<|START_THINKING|>", "<|END_THINKING|>", ("<|START_RESPONSE|>", "<|END_RESPONSE|>")
)
BRACKETS = Thinking("[THINK]", "[/THINK]")
GEMMA = Thinking("<|channel>thought\n", "<channel|>")
HARMONY = Thinking(
    "<|channel|>analysis<|message|>", "<|end|>",
    ("<|start|>assistant", "<|channel|>final<|message|>", "<|channel|>commentary<|message|>",
     "<|end|>", "<|return|>"),
)  # fmt: skip


def thinking_of(template: str | None) -> Thinking | None:
    """Return the thinking markers of a chat template's models; None without thinking.

    Any thinking template names its closing marker: it takes the thinking of earlier turns away.
    """
    if template is None:
        return None
    if "<|channel|>" in template and "analysis" in template:
        return HARMONY
    if "<|channel>" in template and "<channel|>" in template:
        return GEMMA
    if TAGS.closes in template and ("</answer>" in template or "</response>" in template):
        return ANSWERS
    kinds = (TAGS, BRACKETS, SEED, COHERE)
    return next((kind for kind in kinds if kind.closes in template), None)
