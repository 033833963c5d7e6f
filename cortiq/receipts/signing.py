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
"""Domain separation: prepended to the signed bytes."""
OPENSSH = b"-----BEGIN OPENSSH PRIVATE KEY-----"


def load_private_key(path: Path) -> Ed25519PrivateKey:
    """Load a private Ed25519 key: PEM (PKCS #8) or OpenSSH, without passphrase.

    Raises
    ------
    FormatError : the file holds no such key.
    CortiqError : the package `cryptography` is missing.
    """
    require_cryptography()
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
        raise _key_error(path, "is no private key in PEM or OpenSSH's format") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise _key_error(path, "is no Ed25519 key")
    return key


def load_public_key(path: Path) -> str:
    """Load a public Ed25519 key as hex, from PEM, OpenSSH (`ssh-ed25519 ...`), or hex."""
    require_cryptography()
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    data = read_bytes(path).strip()
    if len(data) == 64:
        try:
            return _checked_key(binascii.unhexlify(data), path).hex()
        except binascii.Error:
            raise _key_error(path, "is no public key") from None
    ssh = data.startswith(b"ssh-")
    load = serialization.load_ssh_public_key if ssh else serialization.load_pem_public_key
    try:
        key = load(data)
    except Exception:  # as above
        raise _key_error(path, "is no public key in PEM, OpenSSH's format or hex") from None
    if not isinstance(key, Ed25519PublicKey):
        raise _key_error(path, "is no Ed25519 key")
    return _checked_key(key.public_bytes_raw(), path).hex()


def sign(receipt: Receipt, key: Ed25519PrivateKey) -> Signature:
    """Sign a receipt: `DOMAIN` and its `signed_bytes`."""
    value = key.sign(DOMAIN + receipt.signed_bytes())
    return Signature(key.public_key().public_bytes_raw().hex(), value.hex())


def is_valid(receipt: Receipt, signature: Signature) -> bool:
    """Return whether a signature of this receipt is valid for the key it names."""
    require_cryptography()
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
    """Return a public key's fingerprint as `ssh-keygen -l` shows it: `SHA256:` and base64.

    It hashes the key's wire format: the lengths (32 bits, big-endian) and bytes of "ssh-ed25519"
    and of the key.
    """
    import hashlib

    fields = (b"ssh-ed25519", bytes.fromhex(public_key))
    blob = b"".join(len(part).to_bytes(4, "big") + part for part in fields)
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def _checked_key(key: bytes, path: Path) -> bytes:
    """Return a public key; raise FormatError if it is weak."""
    if is_weak(key):
        raise _key_error(path, WEAK)
    return key


def _key_error(path: Path, what: str) -> FormatError:
    hint = "an Ed25519 key is made by: openssl genpkey -algorithm ed25519 -out KEY"
    return FormatError(what, where=str(path), hint=hint)


def require_cryptography() -> None:
    """Raise CortiqError, with the command that installs it, if `cryptography` is missing."""
    try:
        import cryptography  # noqa: F401
    except ImportError:
        from cortiq.plugins.extras import extra_command

        message = "signatures need the package 'cryptography', which is not installed"
        raise CortiqError(message, hint=extra_command("sign")) from None
