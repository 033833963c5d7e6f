"""Ed25519 signatures of model files, beside them as `NAME.sig`, through `cryptography`.

The file is a JSON object: `alg`, which is "ed25519-sha256", and in hexadecimal `pubkey`, `sha256`
of the whole file, and `sig`, of those 32 bytes. Anybody can sign anything: a signature says
something only of a key that is known from elsewhere.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cortiq.atomic import write_atomically
from cortiq.errors import FormatError, shown
from cortiq.formats.digest import file_sha256
from cortiq.formats.strict_json import read_object
from cortiq.receipts.ed25519 import WEAK, is_weak
from cortiq.receipts.signing import require_cryptography

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

ALGORITHM = "ed25519-sha256"
LENGTHS = {"pubkey": 64, "sha256": 64, "sig": 128}
"""Hexadecimal digits of each field."""


@dataclass(frozen=True)
class FileSignature:
    """A signature that was checked: the key that made it, in hexadecimal."""

    public_key: str


def signature_path(path: Path) -> Path:
    """Return where the signature of a file lies."""
    return path.with_name(f"{path.name}.sig")


def sign_file(path: Path, key: Ed25519PrivateKey) -> Path:
    """Sign a file as it is now; return the path of the signature."""
    digest = file_sha256(path)
    fields = {
        "alg": ALGORITHM,
        "pubkey": key.public_key().public_bytes_raw().hex(),
        "sha256": digest,
        "sig": key.sign(bytes.fromhex(digest)).hex(),
    }
    beside = signature_path(path)
    write_atomically(beside, [json.dumps(fields, indent=1).encode() + b"\n"])
    return beside


def check_signature(path: Path, pinned: str | None = None) -> FileSignature | None:
    """Check the signature beside a file; None if there is none.

    Parameters
    ----------
    pinned : the public key, in hexadecimal, that must have made it.

    Raises
    ------
    FormatError : it is malformed, of another file or key, or not valid.
    """
    beside = signature_path(path)
    if not beside.is_file():
        return None
    where, fields = str(beside), read_object(beside)
    if fields.get("alg") != ALGORITHM:
        raise FormatError(f"is signed by {shown(fields.get('alg'))}", where=where)
    for name, length in LENGTHS.items():
        if not re.fullmatch(rf"[0-9a-fA-F]{{{length}}}", str(fields.get(name))):
            raise FormatError(f"has no {name} of {length} hexadecimal digits", where=where)
    public = fields["pubkey"].lower()
    if pinned is not None and public != pinned.lower():
        raise FormatError("was made by another key than the one that is asked for", where=where)
    if is_weak(bytes.fromhex(public)):
        raise FormatError(f"its key {WEAK}", where=where)
    if fields["sha256"].lower() != file_sha256(path):
        raise FormatError("was made of another file, or the file has changed since", where=where)
    _check_bytes(public, fields["sig"], fields["sha256"], where)
    return FileSignature(public)


def _check_bytes(public: str, signature: str, digest: str, where: str) -> None:
    require_cryptography()
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(public))
        key.verify(bytes.fromhex(signature), bytes.fromhex(digest))
    except (InvalidSignature, ValueError):
        raise FormatError("is not valid", where=where) from None
