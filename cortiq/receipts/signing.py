"""Ed25519 signatures of receipts, through the package `cryptography` (`cortiq[sign]`)."""

from __future__ import annotations

import base64
import binascii
from pathlib import Path
from typing import TYPE_CHECKING

from cortiq.errors import CortiqError, FormatError
from cortiq.formats.strict_json import read_bytes
from cortiq.receipts.ed25519 import WEAK, is_weak
from cortiq.receipts.record import FORMAT, VERSION, Receipt, Signature

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

DOMAIN = f"{FORMAT} {VERSION}\n".encode()
"""Put before what is signed, so that a signature can't be taken for one of something else."""
OPENSSH = b"-----BEGIN OPENSSH PRIVATE KEY-----"


def load_private_key(path: Path) -> Ed25519PrivateKey:
    """The private Ed25519 key in a file: PEM (PKCS #8) or OpenSSH, without passphrase.

    Raises
    ------
    FormatError : the file holds no such key.
    CortiqError : the package `cryptography` is missing.
    """
    _require()
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    data = read_bytes(path)
    load = serialization.load_pem_private_key
    if data.lstrip().startswith(OPENSSH):
        load = serialization.load_ssh_private_key  # type: ignore[assignment]
    try:
        key = load(data, password=None)
    except TypeError:
        hint = "write one without passphrase: openssl genpkey -algorithm ed25519 -out KEY"
        raise FormatError("the key has a passphrase", where=str(path), hint=hint) from None
    except Exception:  # the library raises its own errors and those of its parsers
        raise _no_key(path, "is no private key in PEM or OpenSSH's format") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise _no_key(path, "is no Ed25519 key")
    return key


def load_public_key(path: Path) -> str:
    """The public Ed25519 key in a file, in hex: PEM, OpenSSH (`ssh-ed25519 ...`), or hex."""
    _require()
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    data = read_bytes(path).strip()
    if len(data) == 64:
        try:
            return _strong(binascii.unhexlify(data), path).hex()
        except binascii.Error:
            raise _no_key(path, "is no public key") from None
    ssh = data.startswith(b"ssh-")
    load = serialization.load_ssh_public_key if ssh else serialization.load_pem_public_key
    try:
        key = load(data)
    except Exception:  # as above
        raise _no_key(path, "is no public key in PEM, OpenSSH's format or hex") from None
    if not isinstance(key, Ed25519PublicKey):
        raise _no_key(path, "is no Ed25519 key")
    return _strong(key.public_bytes_raw(), path).hex()


def sign(receipt: Receipt, key: Ed25519PrivateKey) -> Signature:
    """The signature of a receipt: of `DOMAIN` and its `signed_bytes`."""
    value = key.sign(DOMAIN + receipt.signed_bytes())
    return Signature(key.public_key().public_bytes_raw().hex(), value.hex())


def is_valid(receipt: Receipt, signature: Signature) -> bool:
    """Whether the signature is one of this receipt by the key it names."""
    _require()
    if is_weak(bytes.fromhex(signature.public_key)):
        return False
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(signature.public_key))
        key.verify(bytes.fromhex(signature.value), DOMAIN + receipt.signed_bytes())
    except (InvalidSignature, ValueError):  # ValueError: these bytes are no key
        return False
    return True


def fingerprint_of(public_key: str) -> str:
    """A public key as OpenSSH's `ssh-keygen -l` shows it: `SHA256:` and base64.

    Of the key's wire form: the lengths (32 bits, big-endian) and bytes of "ssh-ed25519" and of
    the key.
    """
    import hashlib

    fields = (b"ssh-ed25519", bytes.fromhex(public_key))
    blob = b"".join(len(part).to_bytes(4, "big") + part for part in fields)
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def _strong(key: bytes, path: Path) -> bytes:
    """Return a public key; FormatError for one that anybody can sign for."""
    if is_weak(key):
        raise _no_key(path, WEAK)
    return key


def _no_key(path: Path, what: str) -> FormatError:
    hint = "an Ed25519 key is made by: openssl genpkey -algorithm ed25519 -out KEY"
    return FormatError(what, where=str(path), hint=hint)


def _require() -> None:
    try:
        import cryptography  # noqa: F401
    except ImportError:
        message = "signatures need the package 'cryptography', which is not installed"
        raise CortiqError(message, hint="pip install 'cortiq[sign]'") from None
