"""Signed receipts: whatever is edited is found, and so is a key that is not the one expected."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
from dataclasses import replace

import pytest

import cortiq
from cortiq.cli.main import main
from cortiq.errors import CortiqError, FormatError

pytest.importorskip("cryptography")
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from cortiq.receipts.ed25519 import LOW_ORDER, is_weak
from cortiq.receipts.reader import parse_receipt
from cortiq.receipts.record import Receipt, Signature
from cortiq.receipts.signing import (
    fingerprint_of,
    is_valid,
    load_private_key,
    load_public_key,
)

NAME = "synthetic:tiny-llama"
ENCODING, PRIVATE, PUBLIC = (
    serialization.Encoding, serialization.PrivateFormat, serialization.PublicFormat,
)  # fmt: skip
OPEN = serialization.NoEncryption()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Keys in every form that is read, all of one pair; `other.pub` is of another."""
    made = tmp_path_factory.mktemp("keys")
    key, public = (k := ed25519.Ed25519PrivateKey.generate()), k.public_key()
    files = {
        "pem": key.private_bytes(ENCODING.PEM, PRIVATE.PKCS8, OPEN),
        "ssh": key.private_bytes(ENCODING.PEM, PRIVATE.OpenSSH, OPEN),
        "pem.pub": public.public_bytes(ENCODING.PEM, PUBLIC.SubjectPublicKeyInfo),
        "ssh.pub": public.public_bytes(ENCODING.OpenSSH, PUBLIC.OpenSSH) + b" somebody@host\n",
        "hex.pub": public.public_bytes_raw().hex().encode() + b"\n",
        "other.pub": ed25519.Ed25519PrivateKey.generate().public_key().public_bytes_raw().hex()
        .encode(),
        "curve": ec.generate_private_key(ec.SECP256R1()).private_bytes(
            ENCODING.PEM, PRIVATE.PKCS8, OPEN
        ),
        "locked": key.private_bytes(
            ENCODING.PEM, PRIVATE.PKCS8, serialization.BestAvailableEncryption(b"x")
        ),
        "noise": b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
    }  # fmt: skip
    for name, data in files.items():
        (made / name).write_bytes(data)
    return made


@pytest.fixture(scope="module")
def model():
    with cortiq.load(NAME, backend="reference") as opened:
        yield opened


@pytest.fixture(scope="module")
def signed(model, folder):
    return (
        model.generate("ab", max_tokens=4, temperature=2.0, seed=1).receipt().sign(folder / "pem")
    )


def test_every_form_of_a_key_is_the_same_key(signed, folder):
    (public,) = {load_public_key(folder / f"{form}.pub") for form in ("pem", "ssh", "hex")}
    assert signed.sign(folder / "ssh") == signed
    assert signed.signature.public_key == public


@pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="needs ssh-keygen")
def test_fingerprint_is_the_one_that_ssh_shows(signed, folder):
    shown = subprocess.run(
        ["ssh-keygen", "-lf", folder / "ssh.pub"], capture_output=True, text=True, check=True
    ).stdout
    assert fingerprint_of(signed.signature.public_key) in shown


def test_valid_signature_says_who_signed(model, signed, folder):
    for key in (None, folder / "pem.pub"):
        verdict = cortiq.verify(signed, model, key=key)
        assert verdict and verdict.signed_by == signed.signature.public_key


def test_key_that_is_not_the_expected_one_or_no_signature_is_a_difference(model, signed, folder):
    verdict = cortiq.verify(signed, model, key=folder / "other.pub")
    assert not verdict and "another key" in str(verdict.differences[0])
    verdict = cortiq.verify(replace(signed, signature=None), model, key=folder / "pem.pub")
    assert [d.field for d in verdict.differences] == ["signature"]
    assert verdict.signed_by == ""
    assert cortiq.verify(replace(signed, signature=None), model)


P = 2**255 - 19
D = -121665 * pow(121666, -1, P) % P


def points_of(y):
    """The points of the curve -x² + y² = 1 + dx²y² at a coordinate y: RFC 8032, 5.1."""
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    root = pow(square, (P + 3) // 8, P)
    root = root if root * root % P == square else root * pow(2, (P - 1) // 4, P) % P
    return {(x, y) for x in (root, -root % P)} if root * root % P == square else set()


def added(a, b):
    (x1, y1), (x2, y2) = a, b
    product = D * x1 * x2 * y1 * y2
    return (
        (x1 * y2 + x2 * y1) * pow(1 + product, -1, P) % P,
        (y1 * y2 + x1 * x2) * pow(1 - product, -1, P) % P,
    )


def times(count, point):
    made = (0, 1)
    for bit in f"{count:b}":
        made = added(made, made)
        made = added(made, point) if bit == "1" else made
    return made


def test_the_keys_that_are_refused_are_the_points_of_low_order():
    """By the group's own arithmetic: there are eight, and all are named."""
    order = 2**252 + 27742317777372353535851937790883648493
    low = {point for y in LOW_ORDER for point in points_of(y)}
    assert len(low) == 8 and all(times(8, point) == (0, 1) for point in low)
    drawn = random.Random(1)
    while True:
        found = points_of(drawn.randrange(P))
        torsion = {times(order, point) for point in found} - {(0, 1)}
        if torsion and all(times(4, point) != (0, 1) for point in torsion):
            break
    (generator, *_) = torsion
    assert {times(n, generator) for n in range(8)} == low


def encodings():
    """Every encoding of such points: both signs, and numbers of the field that are too large."""
    for y in [*LOW_ORDER, P, P + 1]:
        for sign in (0, 1 << 255):
            yield (y | sign).to_bytes(32, "little")


@pytest.mark.parametrize("key", [*encodings()], ids=bytes.hex)
def test_a_key_that_anybody_can_sign_for_signs_nothing(key, signed, tmp_path):
    forged = {"algorithm": "ed25519", "public_key": key.hex(), "value": key.hex() + "00" * 32}
    top = {**signed.as_object(), "signature": forged}
    with pytest.raises(FormatError, match=r"signature\.public_key: is a key of low order"):
        parse_receipt(json.dumps(top).encode(), "here")
    assert not is_valid(signed, Signature(key.hex(), forged["value"]))
    (tmp_path / "key").write_text(key.hex())
    with pytest.raises(FormatError, match="low order"):
        load_public_key(tmp_path / "key")


def test_other_keys_are_not_weak():
    assert not any(
        is_weak(ed25519.Ed25519PrivateKey.generate().public_key().public_bytes_raw())
        for _ in range(50)
    )
    assert is_weak((P + 5).to_bytes(32, "little")) and not is_weak((5).to_bytes(32, "little"))


def leaves(value, path=()):
    """Every value of a JSON object that is no object, with its path."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from leaves(inner, (*path, name))
    else:
        yield path, value


def edited(value):
    """Another value of the type."""
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case float():
            return value / 2 if value else 0.5
        case str():
            return ("1" if value[:1] == "0" else "0") + value[1:]
        case None:
            return "w8"
    return [*value[:-1], edited(value[-1])] if value else [3]


def test_any_edit_of_a_signed_receipt_is_found(model, signed):
    paths = [path for path, _ in leaves(signed.as_object())]
    assert len(paths) > 60
    for path in paths:
        top = json.loads(json.dumps(signed.as_object()))
        holder = top
        for name in path[:-1]:
            holder = holder[name]
        holder[path[-1]] = edited(holder[path[-1]])
        try:
            receipt = parse_receipt(json.dumps(top).encode(), "edited")
        except FormatError:
            continue
        assert receipt != signed
        verdict = cortiq.verify(receipt, model)
        assert not verdict and verdict.signed_by == "", path
        assert verdict.differences[0].field == "signature", path


@pytest.mark.parametrize("name", ["curve", "locked", "noise", "missing", "pem.pub"])
def test_file_without_a_usable_key_is_refused(folder, name):
    with pytest.raises(FormatError, match=name):
        load_private_key(folder / name)


@pytest.mark.parametrize("name", ["pem", "ssh", "noise", "missing"])
def test_file_without_a_public_key_is_refused(folder, name):
    with pytest.raises(FormatError, match=name):
        load_public_key(folder / name)


def test_without_the_package_a_signature_is_neither_made_nor_believed(
    model, signed, folder, monkeypatch
):
    monkeypatch.setitem(__import__("sys").modules, "cryptography", None)
    for call in (lambda: signed.sign(folder / "pem"), lambda: cortiq.verify(signed, model)):
        with pytest.raises(CortiqError, match=r"pip install .*\[sign\]'"):
            call()


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as exit:
        main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return exit.value.code, out, err


def generate(capsys, *arguments):
    tail = ("-p", "ab", "-n", 6, "-b", "reference", *arguments)
    return run(capsys, "generate", NAME, *tail)


def test_command_line_generates_signs_and_verifies(folder, tmp_path, capsys):
    file, keys = tmp_path / "r.json", ("--sign", folder / "pem")
    code, _, err = generate(capsys, "--receipt", file, *keys)
    assert (code, err) == (0, "")
    code, out, _ = run(capsys, "verify", file, "-b", "reference", "--key", folder / "ssh.pub")
    assert code == 0 and out.startswith("identical: 6 steps on reference:cpu, ")
    assert "signed by SHA256:" in out


def test_command_line_says_what_differs_and_exits_with_1(tmp_path, capsys):
    file = tmp_path / "r.json"
    generate(capsys, "--receipt", file)
    top = json.loads(file.read_text())
    top["claim"]["token_ids"][2] += 1
    file.write_text(json.dumps(top))
    code, out, _ = run(capsys, "verify", file, "-b", "reference")
    assert code == 1 and out.startswith("not identical: step 2: the token is ")
    top["stated"]["backend"] = "x\n\x1b[2Jidentical"
    file.write_text(json.dumps(top))
    assert "\x1b" not in run(capsys, "verify", file, "-b", "reference")[1]
    assert "2 steps before it are identical on reference:cpu" in out and "not signed" in out
    code, out, _ = run(capsys, "verify", file, f"{NAME}?seed=1", "--json")
    verdict = json.loads(out)
    assert code == 1 and verdict["identical"] is False
    assert verdict["differences"][0]["field"] == "model_hash"


def test_wrong_key_or_edited_signature_leaves_all_steps_identical(folder, tmp_path, capsys):
    file = tmp_path / "r.json"
    generate(capsys, "--receipt", file, "--sign", folder / "pem")
    top = json.loads(file.read_text())
    value = top["signature"]["value"]
    top["signature"]["value"] = value[:-1] + ("0" if value[-1] != "0" else "1")
    edited = tmp_path / "edited.json"
    edited.write_text(json.dumps(top))
    for arguments in ((file, "--key", folder / "other.pub"), (edited,)):
        code, out, _ = run(capsys, "verify", *arguments, "-b", "reference")
        assert code == 1 and out.startswith("not identical: the ")
        assert "all 6 steps are identical on reference:cpu" in out and "before it" not in out


def test_command_line_exits_with_2_when_nothing_is_decided(folder, tmp_path, capsys):
    file = tmp_path / "r.json"
    code, _, err = run(capsys, "verify", file)
    assert code == 2 and "missing" in err
    generate(capsys, "--receipt", file)
    for arguments in (("-b", "none"), ("--key", folder / "pem"), ("nowhere.gguf",)):
        code, out, err = run(capsys, "verify", file, *arguments)
        assert (code, out) == (2, "") and err.startswith("error: ")


def test_receipt_and_key_are_looked_at_before_anything_is_generated(folder, tmp_path, capsys):
    for arguments, says in (
        (("--sign", folder / "pem"), "needs --receipt"),
        (("--receipt", tmp_path / "r.json", "--sign", folder / "curve"), "no Ed25519 key"),
        (("--receipt", tmp_path / "no" / "r.json"), "cannot be written"),
    ):
        code, out, err = generate(capsys, *arguments)
        assert (code, out) == (2, "") and says in err
    assert list(tmp_path.iterdir()) == []


def test_receipt_can_go_into_a_pipe_or_through_a_link(signed, tmp_path):
    (tmp_path / "link").symlink_to("r.json")
    (tmp_path / "r.json").write_text("old")
    signed.write(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert Receipt.read(tmp_path / "r.json") == signed
    signed.write(os.devnull)
    assert not os.path.isfile(os.devnull)


def test_receipt_that_cannot_be_replaced_stays_as_it_was(signed, tmp_path, monkeypatch):
    signed.write(tmp_path / "r.json")
    before = (tmp_path / "r.json").read_bytes()

    def fail(*_):
        raise OSError("no space left")

    monkeypatch.setattr("cortiq.receipts.record.os.replace", fail)
    with pytest.raises(CortiqError, match="no space left"):
        signed.write(tmp_path / "r.json")
    assert (tmp_path / "r.json").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]
    assert Receipt.read(tmp_path / "r.json") == signed
