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
    return next((kind for kind in (TAGS, BRACKETS) if kind.closes in template), None)
