"""`cortiq.verify`: verifies a receipt against a model."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from cortiq.arguments import path_of
from cortiq.engine.session import Progress
from cortiq.errors import RequestError, shown
from cortiq.formats.cache import Progress as FetchProgress
from cortiq.formats.known_models import KNOWN_MODELS
from cortiq.model.load import choose_backend, model_of
from cortiq.model.model import Model
from cortiq.model.source import ModelSource, model_name, open_source
from cortiq.models.synthetic import PREFIX
from cortiq.options import LoadOptions, resolve
from cortiq.receipts.difference import Difference, Verification, field_difference
from cortiq.receipts.record import Claim, Receipt
from cortiq.receipts.replay import contract_differences, edited_fields


def verify(
    receipt: Receipt | str | os.PathLike[str],
    model: Model | str | os.PathLike[str] | None = None,
    *,
    key: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    fetching: FetchProgress | None = None,
    images: Iterable[Any] = (),
    audio: Any = None,
    **options: Any,
) -> Verification:
    """Recompute what a receipt claims, all rows at once, and compare every bit.

    Parameters
    ----------
    receipt : a receipt, or the file it is in.
    model : the model file, or an opened model; None for the known or synthetic model that the
        receipt names. It is opened with the claim's context and weight format.
    key : file with the public key that must have signed the receipt; without one any valid
        signature passes.
    progress, fetching : called with rows done and in all; as for `cortiq.load`.
    images : those that the receipt is about, in their order.
    audio : the sound that it is about.
    options : `backend`, `device`, `threads` and `strict_placement` of `cortiq.LoadOptions`.

    Raises
    ------
    FormatError : the file is no receipt.
    CortiqError : the model or the backend cannot be used: there is no verdict.
    """
    if not isinstance(receipt, Receipt):
        if not isinstance(receipt, (str, os.PathLike)):
            what = f"expected a receipt or the name of its file, not {shown(receipt)}"
            raise RequestError(what, where="verify")
        receipt = Receipt.read(receipt)
    signed_by, forged = check_signature(receipt, key)
    verdict = _recomputed(receipt, model, progress, fetching, options, (list(images), audio))
    differences = (*forged, *verdict.differences)
    return replace(verdict, differences=differences, signed_by=signed_by)


def check_signature(
    receipt: Receipt, key: str | os.PathLike[str] | None
) -> tuple[str, list[Difference]]:
    """Return the public key of a valid signature, or the differences of an invalid one."""
    from cortiq.receipts.signing import is_valid, load_public_key

    expected = None if key is None else load_public_key(path_of(key, "key"))
    signature = receipt.signature
    if signature is None:
        missing = Difference("signature", "the receipt is not signed")
        return "", [] if expected is None else [missing]
    if expected not in (None, signature.public_key):
        what = "the receipt is signed with another key than the one given"
        return "", [Difference("signature", what, None, signature.public_key, expected)]
    if not is_valid(receipt, signature):
        what = "the signature does not match the receipt: something in it was changed"
        return "", [Difference("signature", what)]
    return signature.public_key, []


def _recomputed(
    receipt: Receipt,
    model: Model | str | os.PathLike[str] | None,
    progress: Progress | None,
    fetching: FetchProgress | None,
    options: dict[str, Any],
    media: tuple[list[Any], Any],
) -> Verification:
    images, audio = media
    if isinstance(model, Model):
        if options:
            what = f"{', '.join(options)}: an opened model has them already"
            raise RequestError(what, hint="give a model by its name or path")
        return model.verify(receipt, progress=progress, images=images, audio=audio)
    name = model_name(_named_model(receipt) if model is None else model)
    found = contract_differences(receipt.claim)
    opened = None if found else _open_claimed(name, receipt.claim, options, fetching)
    if not isinstance(opened, Model):
        found += opened or []
        return Verification((*found, *edited_fields(receipt)))
    with opened:
        return opened.verify(receipt, progress=progress, images=images, audio=audio)


def _named_model(receipt: Receipt) -> str:
    """Return the model that a receipt names, if it is a known or synthetic one."""
    name = receipt.stated.get("model")
    if isinstance(name, str) and (name in KNOWN_MODELS or name.startswith(PREFIX)):
        return name
    message = "the receipt was made with a model file of its own"
    hint = f"name the file or folder whose hash is {receipt.claim.model_hash}"
    raise RequestError(message, where="model", hint=hint)


def _open_claimed(
    name: str, claim: Claim, given: dict[str, Any], fetching: FetchProgress | None
) -> Model | list[Difference]:
    """Open the claimed model with the claim's options, or return differences if it is another.

    The hash is compared before anything is compiled.
    """
    for option in ("context", "weight_format"):
        if option in given:
            raise RequestError(f"{option} comes from the receipt, not from the caller")
    started = time.perf_counter()
    chosen = resolve(LoadOptions, given)
    placed = choose_backend(chosen)
    fixed: dict[str, Any] = {"context": claim.context, "weight_format": claim.weight_format}
    claimed = replace(chosen, **fixed)
    try:
        source = open_source(name, claimed, fetching, media=bool(claim.images))
    except RequestError as error:
        return _context_difference(name, claim, chosen, error)
    found = _hash_difference(source, claim)
    if found:
        source.close()
        return found
    model = model_of(name, source, placed, claimed)
    model.load_seconds = time.perf_counter() - started
    return model


def _hash_difference(source: ModelSource, claim: Claim) -> list[Difference]:
    if source.model_hash() == claim.model_hash:
        return []
    return [field_difference("model_hash", claim.model_hash, source.model_hash())]


def _context_difference(
    name: str, claim: Claim, options: LoadOptions, error: RequestError
) -> list[Difference]:
    """Return the difference of a refused context: another model file, or a false claim."""
    source = open_source(name, replace(options, context=None, weight_format=None))
    try:
        found = _hash_difference(source, claim)
    finally:
        source.close()
    sentence = f"context {claim.context} is refused: {error.what}"
    return found or [Difference("context", sentence, None, claim.context)]
