"""Purpose of a program: to continue texts, to embed them, or to transcribe speech."""

from __future__ import annotations

from enum import StrEnum

from cortiq.errors import RequestError
from cortiq.ir.encoded import encoded_rows
from cortiq.ir.encoders import ENCODER
from cortiq.ir.graph import Program
from cortiq.ir.images import IMAGES


class Purpose(StrEnum):
    """Use that a program is made for."""

    TEXT = "text"
    EMBEDDINGS = "embeddings"
    SPEECH = "speech"


REFUSALS = {
    Purpose.EMBEDDINGS: (
        "the model is an encoder, which predicts no tokens",
        "it is for embeddings and reranking: Model.embed, Model.rerank, /v1/embeddings, /v1/rerank",
    ),
    Purpose.SPEECH: (
        "the model transcribes speech, and there is no sound",
        "cortiq transcribe MODEL FILE, Model.transcribe, /v1/audio/transcriptions",
    ),
}
"""Message and hint for a program that does not continue texts."""


def purpose_of(program: Program) -> Purpose:
    """Return what a program is for."""
    if ENCODER in program.facts:
        return Purpose.EMBEDDINGS
    heard = encoded_rows(program) is not None and IMAGES not in program.facts
    return Purpose.SPEECH if heard else Purpose.TEXT


def check_continues(program: Program, where: str = "") -> None:
    """Check that a program continues texts by themselves; RequestError says what it is for."""
    if refusal := REFUSALS.get(purpose_of(program)):
        what, hint = refusal
        raise RequestError(what, where=where, hint=hint)
