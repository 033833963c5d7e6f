"""Strict reading of receipts: an untrusted file becomes a `Receipt` or a FormatError."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from cortiq.arguments import is_finite
from cortiq.errors import CortiqError, FormatError, shown
from cortiq.formats.strict_json import parse_object, read_bytes
from cortiq.numerics.digest import Digest
from cortiq.options import GenerateOptions, LoadOptions, defaults, specs
from cortiq.receipts.ed25519 import WEAK, is_weak
from cortiq.receipts.record import (
    ALWAYS,
    FORMAT,
    RECORDED,
    SEAL_DIGITS,
    VERSION,
    Claim,
    Receipt,
    Signature,
)

MAX_STATED = 1 << 16
"""Most characters of a receipt's machine facts."""
MAX_DEPTH = 4
"""Most levels of nested objects in them."""
MAX_END_IDS = 1 << 12
"""Most end tokens of a model in a receipt."""

Object = Mapping[str, Any]


def read_receipt(path: Path) -> Receipt:
    """Read a receipt from a file of at most `strict_json.MAX_BYTES`."""
    return parse_receipt(read_bytes(path), str(path))


def parse_receipt(data: bytes, where: str) -> Receipt:
    """Parse a receipt from its JSON.

    Every field must be present, of its type and within its bounds; unknown fields are refused,
    since they could not be verified.

    Raises
    ------
    FormatError : it is no receipt; the message names the field.
    """
    return receipt_of(parse_object(data, where), where)


def receipt_of(top: Object, where: str) -> Receipt:
    """Return the receipt that a JSON object is; errors as `parse_receipt`."""
    try:
        return _receipt(top)
    except FormatError as error:
        raise FormatError(f"is no receipt: {error}", where=where) from None


def _receipt(top: Object) -> Receipt:
    if top.get("format") != FORMAT:
        raise FormatError(f"must be {FORMAT!r}, not {shown(top.get('format'))}", where="format")
    if type(top.get("version")) is not int or top["version"] != VERSION:
        hint = "another version of cortiq reads it"
        message = f"{shown(top.get('version'))} is not {VERSION}"
        raise FormatError(message, where="version", hint=hint)
    names = ["format", "version", "claim", "stated", "seals"]
    _check_fields(top, names, "receipt", optional=["signature"])
    stated = _stated(top["stated"])
    claim = _claim(_object(top["claim"], "claim"))
    seals = _object(top["seals"], "seals")
    _check_fields(seals, claim.seals(), "seals")
    seals = {name: _hex(SEAL_DIGITS)(seal, f"seals.{name}") for name, seal in seals.items()}
    signature = _signature(top["signature"]) if "signature" in top else None
    return Receipt(claim, stated, seals, signature)


def _check_fields(
    fields: Object, names: Collection[str], where: str, optional: Collection[str] = ()
) -> None:
    """Check that an object has exactly these fields."""
    for name in names:
        if name not in fields:
            raise FormatError(f"has no {name!r}", where=where)
    for name in fields:
        if name not in (*names, *optional):
            what = f"has a field {shown(name)}, which is unknown"
            raise FormatError(what, where=where, hint="a newer cortiq may know it")


def _object(value: Any, where: str) -> Object:
    if type(value) is not dict:
        raise FormatError(f"must be an object, not {shown(value)}", where=where)
    return value


def _integer(value: Any, where: str) -> int:
    if type(value) is not int or not 0 <= value < 1 << 32:
        raise FormatError(f"must be an integer below 2^32, not {shown(value)}", where=where)
    return value


def _text(value: Any, where: str) -> str:
    if type(value) is not str:
        raise FormatError(f"must be a text, not {shown(value)}", where=where)
    return value


def _text_or_none(value: Any, where: str) -> str | None:
    return value if value is None else _text(value, where)


def _hex(digits: int) -> Callable[[Any, str], str]:
    """Return a reader of texts of this many lower-case hexadecimal digits."""

    def read(value: Any, where: str) -> str:
        if type(value) is not str or not re.fullmatch(f"[0-9a-f]{{{digits}}}", value):
            what = f"must be {digits} hexadecimal digits, not {shown(value)}"
            raise FormatError(what, where=where)
        return value

    return read


def _digest(value: Any, where: str) -> Digest:
    words = _hex(32)(value, where)
    first, second, third, fourth = (int(words[i : i + 8], 16) for i in range(0, 32, 8))
    return first, second, third, fourth


def _list_of(read: Callable[[Any, str], Any]) -> Callable[[Any, str], tuple[Any, ...]]:
    def read_list(value: Any, where: str) -> tuple[Any, ...]:
        _length(value, where)
        return tuple(read(item, f"{where}[{index}]") for index, item in enumerate(value))

    return read_list


def read_options(value: Any, where: str) -> GenerateOptions:
    """Return the options that a JSON object holds; raise FormatError if they are none."""
    fields = _object(value, where)
    _check_fields(fields, ALWAYS, where, optional=RECORDED)
    given = {name: _option(name, value, f"{where}.{name}") for name, value in fields.items()}
    try:
        return GenerateOptions(**given)
    except CortiqError as error:
        raise FormatError(str(error), where=where) from None


def _option(name: str, value: Any, where: str) -> Any:
    """Convert an option's value for the option class, which checks type and bounds."""
    spec = specs(GenerateOptions)[name]
    if spec.bias:
        pairs = _list_of(_pair)(value, where)
        if [token for token, _ in pairs] != sorted({token for token, _ in pairs}):
            raise FormatError("must have ascending ids", where=where)
        return dict(pairs)
    if spec.repeated:
        return _list_of(lambda item, _: item)(value, where)
    if value is None and defaults(GenerateOptions)[name] is not None:
        raise FormatError("must have a value", where=where)
    return value


def read_adapter(value: Any, where: str) -> tuple[str, float]:
    """Return hash and scale of an adapter; raise FormatError if there are none."""
    if type(value) is not list or len(value) != 2 or type(value[1]) not in (int, float):
        raise FormatError(f"must be [hash, scale], not {shown(value)}", where=where)
    if not is_finite(value[1]):
        raise FormatError(f"has the scale {shown(value[1])}", where=where)
    return _hex(64)(value[0], where), float(value[1])


def _pair(value: Any, where: str) -> tuple[int, float]:
    if type(value) is not list or len(value) != 2 or type(value[1]) not in (int, float):
        raise FormatError(f"must be [id, bias], not {shown(value)}", where=where)
    return _integer(value[0], where), value[1]


CLAIM_READERS: Mapping[str, Callable[[Any, str], Any]] = {
    "contract": _integer,
    "model_hash": _hex(64),
    "context": _integer,
    "weight_format": _text_or_none,
    "end_ids": _list_of(_integer),
    "fingerprint": _hex(64),
    "prompt_ids": _list_of(_integer),
    "options": read_options,
    "token_ids": _list_of(_integer),
    "digests": _list_of(_digest),
    "chain": _hex(64),
    "finish_reason": _text,
    "text": _text,
}
"""Reader of each field of a claim."""
OPTIONAL_READERS: Mapping[str, Callable[[Any, str], Any]] = {
    "adapter": read_adapter, "images": _list_of(_hex(64)), "sound": _hex(64),
}  # fmt: skip
"""Reader of each field that claims have only where it says something."""


def _check_lengths(fields: Object) -> None:
    """Refuse lists of impossible lengths before their items are read and sealed.

    Raises
    ------
    FormatError : no prompt, no token, digests of other tokens, or more of all than the context.
    """
    lists = ("prompt_ids", "token_ids", "digests")
    prompt, tokens, digests = (_length(fields[name], f"claim.{name}") for name in lists)
    if not prompt or not tokens:
        raise FormatError("must not be empty", where="claim.prompt_ids, claim.token_ids")
    if digests != tokens:
        what = f"has {digests} digests for {tokens} tokens"
        raise FormatError(what, where="claim.digests")
    context = _integer(fields["context"], "claim.context")
    if 0 < context < prompt + tokens:  # 0 is refused by the option's own bounds
        what = f"has {prompt} and {tokens} ids for a context of {context}"
        raise FormatError(what, where="claim.prompt_ids, claim.token_ids")
    if _length(fields["end_ids"], "claim.end_ids") > MAX_END_IDS:
        raise FormatError(f"has more than {MAX_END_IDS} ids", where="claim.end_ids")


def _length(value: Any, where: str) -> int:
    """Return the length of a value that must be a list."""
    if type(value) is not list:
        raise FormatError(f"must be a list, not {shown(value)}", where=where)
    return len(value)


def _claim(fields: Object) -> Claim:
    _check_fields(fields, CLAIM_READERS, "claim", OPTIONAL_READERS)
    _check_lengths(fields)
    readers = {**CLAIM_READERS, **OPTIONAL_READERS}
    there = {name: read for name, read in readers.items() if name in fields}
    claim = Claim(**{name: read(fields[name], f"claim.{name}") for name, read in there.items()})
    if "images" in fields and not 0 < len(claim.images) <= len(claim.prompt_ids):
        raise FormatError("must be as many as the prompt can have", where="claim.images")
    if claim.options.temperature > 0 and claim.options.seed is None:
        raise FormatError("sampling needs a seed", where="claim.options.seed")
    try:
        LoadOptions(context=claim.context, weight_format=claim.weight_format)
    except CortiqError as error:
        raise FormatError(str(error), where="claim") from None
    return claim


def _stated(value: Any) -> Object:
    if len(repr(value)) > MAX_STATED:
        raise FormatError(f"is longer than {MAX_STATED} characters", where="stated")
    _check_plain(_object(value, "stated"), "stated", MAX_DEPTH)
    return value


def _check_plain(value: Any, where: str, depth: int) -> None:
    """Check that a value holds only texts, integers, and objects of them."""
    if type(value) is dict and depth > 0:
        for name, inner in value.items():
            _check_plain(inner, f"{where}.{name}", depth - 1)
    elif type(value) not in (str, int):
        raise FormatError(f"must be a text or an integer, not {shown(value)}", where=where)


def _signature(value: Any) -> Signature:
    fields = _object(value, "signature")
    _check_fields(fields, ["algorithm", "public_key", "value"], "signature")
    if fields["algorithm"] != "ed25519":
        what = f"{shown(fields['algorithm'])} is not 'ed25519'"
        raise FormatError(what, where="signature.algorithm")
    key = _hex(64)(fields["public_key"], "signature.public_key")
    if is_weak(bytes.fromhex(key)):
        raise FormatError(WEAK, where="signature.public_key")
    return Signature(key, _hex(128)(fields["value"], "signature.value"))
