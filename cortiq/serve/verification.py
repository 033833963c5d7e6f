"""`/v1/verify`: a receipt is recomputed on the model that it is about, between engine steps."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import asdict, replace
from typing import Any

from cortiq.errors import FormatError
from cortiq.receipts.difference import Verification
from cortiq.receipts.reader import receipt_of
from cortiq.receipts.record import Receipt
from cortiq.receipts.replay import verification_steps
from cortiq.receipts.verify import check_signature
from cortiq.serve.errors import ApiError, error_sentence, invalid
from cortiq.serve.fields import Fields
from cortiq.serve.offered_model import OfferedModel
from cortiq.serve.served_model import ServedModel


def read_receipt(fields: Fields) -> Receipt:
    """Return the receipt of a request, under `receipt` or alone; ApiError (400) if it is none."""
    if "receipt" not in fields.values and "format" in fields.values:
        given: Any = fields.values
        fields.note_read(*given)
    else:
        given = fields.object("receipt")
    fields.close()
    if given is None:
        raise fields.wrong("receipt", "a receipt")
    try:
        return receipt_of(given, "receipt")
    except FormatError as error:
        raise invalid(error_sentence(error), "receipt", "invalid_receipt") from None


def model_of_receipt(models: Mapping[str, OfferedModel], receipt: Receipt) -> str:
    """Return the name of the model that a receipt is about; ApiError (404) if there is none.

    A model that was never loaded is not recognised: its hash is not known yet.
    """
    wanted = receipt.claim.model_hash
    for name, model in models.items():
        if model.model_hash == wanted:
            return name
    unknown = [name for name, model in models.items() if not model.model_hash]
    more = f" ({', '.join(unknown)}: not loaded yet, so of unknown hash)" if unknown else ""
    message = f"No model of the hash {wanted} is served here{more}: verify with `cortiq verify`."
    raise ApiError(404, message, "model_not_found", "receipt")


def steps(served: ServedModel, receipt: Receipt) -> Generator[Verification | None, None, None]:
    """Recompute a receipt; yield None between its parts, and the verdict at last."""
    signed_by, forged = check_signature(receipt, None)
    verdict = yield from verification_steps(served.model, receipt)
    differences = (*forged, *verdict.differences)
    yield replace(verdict, differences=differences, signed_by=signed_by)


def verdict_object(verdict: Verification) -> dict[str, Any]:
    """Return a verdict as the response has it."""
    return asdict(verdict) | {"identical": verdict.identical}
