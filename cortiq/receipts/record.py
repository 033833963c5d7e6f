"""Receipts: the claim (what was computed), machine facts, seals, and a signature."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cortiq.arguments import path_of
from cortiq.atomic import write_atomically
from cortiq.engine.overlay import facts_of
from cortiq.engine.request import Request
from cortiq.errors import CortiqError, RequestError, shown
from cortiq.numerics.digest import Digest, hexadecimal
from cortiq.options import GenerateOptions, defaults, specs

if TYPE_CHECKING:
    from cortiq.model.generation import Generation
    from cortiq.model.model import Model

FORMAT = "cortiq-receipt"
VERSION = 1
SEAL_DIGITS = 16
"""Hexadecimal digits of a seal, which identifies an edited field but proves nothing by itself."""

RECORDED = tuple(n for n, spec in specs(GenerateOptions).items() if spec.bits or spec.ends)
"""Options that can change a token or the end of the text; a claim records all of them."""
ALWAYS = frozenset({
    "max_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty",
    "presence_penalty", "frequency_penalty", "logit_bias", "seed", "choice", "stop", "stop_ids",
    "ignore_eos", "loop_tokens",
})  # fmt: skip
"""Options that are always written. An option added later is written only if it differs from its
default, so that the seals and signatures of older receipts stay valid.
"""


@dataclass(frozen=True)
class Claim:
    """The computation that a receipt claims; verification recomputes every field.

    Attributes
    ----------
    contract : version of the numerics contract.
    model_hash : SHA-256, in hex, of the model's files (`Model.model_hash`).
    context : longest sequence the model was loaded for, in tokens.
    weight_format : requested format for weights that the file stores as floats; None for the
        default.
    end_ids : the model's own end tokens.
    fingerprint : of model and options (`Generation.fingerprint`).
    prompt_ids : token ids fed before the first draw.
    options : options that determine the draws and the end of the text (`RECORDED`).
    token_ids : every drawn token.
    digests : the contract's digest of the logits that each token was drawn from.
    chain : SHA-256 chain over these digests (`engine.digest_chain`), in hex.
    finish_reason, text : as in `Generation`.
    adapter : hash of the files, and scale, of the adapter; None for none, which is not written.
    images : SHA-256, in hex, of each image in the prompt as the model sees it; written only where
        there are any, so that seals of older receipts stay valid.
    sound : SHA-256, in hex, of the window of sound as the model hears it; written only where there
        is one.
    """

    contract: int
    model_hash: str
    context: int
    weight_format: str | None
    end_ids: tuple[int, ...]
    fingerprint: str
    prompt_ids: tuple[int, ...]
    options: GenerateOptions
    token_ids: tuple[int, ...]
    digests: tuple[Digest, ...]
    chain: str
    finish_reason: str
    text: str
    adapter: tuple[str, float] | None = None
    images: tuple[str, ...] = ()
    sound: str = ""

    def as_object(self) -> dict[str, Any]:
        """Return the claim as a JSON object."""
        written = dict(vars(self))
        for name in ("images", "sound"):
            if not written[name]:
                del written[name]
        written["options"] = options_object(self.options)
        written["digests"] = [hexadecimal(words) for words in self.digests]
        if self.adapter is None:
            del written["adapter"]
        return {name: list(v) if isinstance(v, tuple) else v for name, v in written.items()}

    def seals(self) -> dict[str, str]:
        """Return a short hash of every field by name, each option a field of its own.

        They identify an edit that recomputation cannot detect, such as another `top_p` that keeps
        the same tokens. Recomputed seals make it another claim, which is then true or refuted.
        """
        fields = self.as_object()
        options = fields.pop("options")
        fields |= {f"options.{name}": value for name, value in options.items()}
        return {name: _seal(name, value) for name, value in fields.items()}


@dataclass(frozen=True)
class Signature:
    """An Ed25519 signature of everything else in the receipt; key and value in hex."""

    public_key: str
    value: str


@dataclass(frozen=True)
class Receipt:
    """A claim about a generation, with stated facts about the machine that made it.

    Attributes
    ----------
    claim : the computation; verified by recomputation.
    stated : machine facts: backend, device, kernels, driver, versions. They cannot be verified; a
        signature says who stated them.
    seals : `claim.seals()` of the claim as it was made.
    signature : of claim, seals and machine facts; None for an unsigned receipt.
    """

    claim: Claim
    stated: Mapping[str, Any]
    seals: Mapping[str, str]
    signature: Signature | None = None

    def __repr__(self) -> str:
        model, backend = (shown(self.stated.get(name)) for name in ("model", "backend"))
        signed = "not signed" if self.signature is None else "signed"
        return f"<Receipt of {len(self.claim.token_ids)} tokens, {model} on {backend}, {signed}>"

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Receipt:
        """Read a receipt from a file; raise FormatError for anything else."""
        from cortiq.receipts.reader import read_receipt

        return read_receipt(path_of(path, "Receipt.read"))

    def sign(self, key: str | os.PathLike[str]) -> Receipt:
        """Return the receipt signed with the private Ed25519 key in this file (PEM or OpenSSH).

        Raises
        ------
        CortiqError : the package `cryptography` is missing, or the file holds no such key.
        """
        from cortiq.receipts.signing import load_private_key, sign

        file = path_of(key, "Receipt.sign")
        return replace(self, signature=sign(self, load_private_key(file)))

    def as_object(self) -> dict[str, Any]:
        """Return the receipt as a JSON object."""
        written = {
            "format": FORMAT,
            "version": VERSION,
            "claim": self.claim.as_object(),
            "stated": dict(self.stated),
            "seals": dict(self.seals),
        }
        if self.signature is not None:
            written["signature"] = {"algorithm": "ed25519", **vars(self.signature)}
        return written

    def signed_bytes(self) -> bytes:
        """Return the bytes to sign: everything but the signature, in `canonical` form."""
        return canonical(replace(self, signature=None).as_object())

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the receipt as JSON, atomically.

        Raises
        ------
        CortiqError : it cannot be written.
        """
        target = writable_path(path)
        text = _readable_json(self.as_object()) + "\n"
        try:
            write_atomically(target, [text.encode()])
        except OSError as error:
            raise CortiqError(
                f"cannot be written: {error.strerror or error}", where=str(path)
            ) from None


def writable_path(path: str | os.PathLike[str]) -> Path:
    """Return the file to write, links followed; raise CortiqError if it cannot be written."""
    target = path_of(path, "the receipt's file").resolve()
    place = target if _is_device(target) else target.parent
    if target.is_dir() or not os.access(place, os.W_OK):
        raise CortiqError("cannot be written here", where=str(path))
    return target


def _is_device(target: Path) -> bool:
    """Return whether a path is a pipe or device, which is written to and not replaced."""
    return target.exists() and not target.is_file()


def canonical(value: Any) -> bytes:
    """Return canonical JSON: ASCII, keys sorted, no spaces, floats by Python's shortest `repr`."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return text.encode("ascii")


def make_receipt(made: Generation, model: Model, request: Request) -> Receipt:
    """Return the receipt of a generation; see `Generation.receipt`."""
    from cortiq.receipts.provenance import machine_facts

    if not made.token_ids:
        raise RequestError("nothing was generated, so there is nothing to write a receipt for")
    given = request.embeddings is not None or request.masks is not None
    if type(request) is not Request or given:
        what = "a receipt cannot hold the embeddings or masks that this generation was made with"
        raise RequestError(what)
    options = {name: getattr(made.options, name) for name in RECORDED} | {"seed": made.seed}
    claim = Claim(
        contract=made.contract,
        model_hash=made.model_hash,
        context=model.context,
        weight_format=model.options.weight_format,
        end_ids=model.eos_ids,
        fingerprint=made.fingerprint,
        prompt_ids=made.prompt_ids,
        options=GenerateOptions(**options),
        token_ids=made.token_ids,
        digests=made.step_digests,
        chain=made.digest,
        finish_reason=made.finish_reason,
        text=made.text,
        adapter=facts_of(request.overlay),
        images=request.image_digests,
        sound="" if request.encoded is None else request.encoded.digest,
    )
    return Receipt(claim, machine_facts(made, model), claim.seals())


def options_object(options: GenerateOptions) -> dict[str, Any]:
    """Return the options that determine the draws and the end of a text, as a JSON object."""
    return {
        name: _written(options, name)
        for name in RECORDED
        if name in ALWAYS or getattr(options, name) != defaults(GenerateOptions)[name]
    }


def _written(options: GenerateOptions, name: str) -> Any:
    value = getattr(options, name)
    if specs(GenerateOptions)[name].bias:
        return [[token, bias] for token, bias in sorted((value or {}).items())]
    return list(value) if isinstance(value, tuple) else value


def _seal(name: str, value: Any) -> str:
    return hashlib.sha256(canonical([name, value])).hexdigest()[:SEAL_DIGITS]


def _readable_json(value: Any, indent: str = "") -> str:
    """Return readable JSON: one field per line, each list on one line."""
    if not isinstance(value, dict) or not value:
        separators = (",", ":") if isinstance(value, Sequence) else None
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=separators)
    inner = indent + " "
    fields = [f"{inner}{json.dumps(k)}: {_readable_json(v, inner)}" for k, v in value.items()]
    return "{\n" + ",\n".join(fields) + f"\n{indent}}}"
