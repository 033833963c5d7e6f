"""Asking a cortiq server from the command line."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from typing import Any

from cortiq.errors import CortiqError, FormatError, shown
from cortiq.formats.strict_json import parse_object
from cortiq.receipts.difference import Difference, Verification
from cortiq.receipts.record import Receipt
from cortiq.receipts.verify import check_signature

KEY_VARIABLE = "CORTIQ_API_KEY"
MAX_ANSWER = 1 << 26
SECONDS = 600.0


def verify_at(url: str, receipt: Receipt, key: str | None) -> Verification:
    """Have a server recompute a receipt; the signature is checked here.

    Raises
    ------
    CortiqError : the server cannot be reached, refuses the request, or answers something else.
    """
    signed_by, forged = check_signature(receipt, key)
    answer = post(url.rstrip("/") + "/v1/verify", {"receipt": receipt.as_object()})
    try:
        found = [_difference(one) for one in answer["differences"]]
        facts = {name: kind(answer[name]) for name, kind in FACTS.items()}
        if answer["identical"] is not (not found):
            raise ValueError("identical")
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(f"answered no verdict: {shown(str(error))}", where=url) from None
    recomputed = (one for one in found if one.field != "signature")
    return Verification((*forged, *recomputed), signed_by=signed_by, **facts)


FACTS: dict[str, Any] = {"steps": int, "backend": str, "device": str, "seconds": float}


def _difference(one: Any) -> Difference:
    return Difference(str(one["field"]), str(one["sentence"]), one["step"])


def post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    """Post JSON and return the object that is answered; errors as `verify_at`."""
    headers = {"content-type": "application/json"}
    if key := os.environ.get(KEY_VARIABLE):
        headers["authorization"] = f"Bearer {key}"
    if not url.startswith(("http://", "https://")):
        hint = "for example http://127.0.0.1:8080"
        raise CortiqError("is no address of a server", where=url, hint=hint)
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as response:
            return parse_object(response.read(MAX_ANSWER), url)
    except urllib.error.HTTPError as error:
        raise CortiqError(_message(error), where=url) from None
    except OSError as error:  # also urllib's own
        reason = getattr(error, "reason", error)
        raise CortiqError(f"cannot be reached: {reason}", where=url) from None


def _message(error: urllib.error.HTTPError) -> str:
    """Return what a server says about an error, or its status."""
    try:
        return str(json.loads(error.read(MAX_ANSWER))["error"]["message"])
    except (ValueError, KeyError, TypeError, OSError):
        return f"answered {error.code} {error.reason}"
