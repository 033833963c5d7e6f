"""The sound of a claim: held against the given one, as the model hears it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cortiq.engine.prompt_encoded import EncodedPrompt
from cortiq.errors import RequestError
from cortiq.model.transcribe import hearing_of
from cortiq.receipts.difference import Difference, field_difference
from cortiq.receipts.record import Claim

if TYPE_CHECKING:
    from cortiq.model.model import Model


def claimed_sound(model: Model, claim: Claim, audio: Any) -> EncodedPrompt | Difference | None:
    """Return a claim's sound, or how the given one differs from it; None for a claim without.

    Raises
    ------
    RequestError : the claim is about a sound and none is given, or none and one is; or it cannot
        be read.
    """
    if (audio is None) != (not claim.sound):
        what = "the receipt is about a sound, none is given"
        if audio is not None:
            what = "the receipt is about no sound, one is given"
        hint = "cortiq verify RECEIPT MODEL --audio FILE"
        raise RequestError(what, where="audio", hint=hint)
    if audio is None:
        return None
    own = hearing_of(model)
    made = own.encoded(own.samples(audio))
    if made.digest != claim.sound:
        return field_difference("sound", claim.sound, made.digest)
    return made
