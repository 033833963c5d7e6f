"""CMF's encodings: vectors of the original engine, a float64 decoder by hand, and our layouts."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from cmf_by_hand import BY_HAND, random_payload

from cortiq.formats.cmf import powers
from cortiq.formats.cmf.decode import decode_rows
from cortiq.formats.cmf.dtypes import BY_NAME
from cortiq.formats.cmf.encode import encode, encode_rows, survey
from cortiq.formats.cmf.hash64 import hash64
from cortiq.formats.cmf.layouts import layout_of, tensor_of
from cortiq.formats.cmf.payloads import problem
from cortiq.formats.cmf.scalars import half_bits
from cortiq.models.weights import raw_weight
from cortiq.numerics.weights import weight_values

ENCODED = {
    "f16": "baf3f0b2610595ec", "q8_row": "6225321ac09053bf", "q8_2f": "48df0c071dfce81b",
    "q4_block": "e3ec3e3464a6765d", "q4_tiled": "1d3bd1bcf51d40fb", "q4tp": "26fb2d6b95b8794f",
    "q2tp": "873e7f52b2e42323", "q1": "0db2a38aa1cfd5cf", "q1p": "cfddd99706a01c23",
    "q1s": "bd52193cfd21aed9", "q1t": "b625926dce69d315", "vbit": "25463fc3285a9701",
    "vbit_ro": "e4d97826bddbf586",
}  # fmt: skip
"""SHA-256, 16 digits, of what the original engine's own encoders make of `matrix()`."""
DECODED = {
    "f16": "cda0cf4609e8ee41", "q8_row": "1c34ff73bebf81a9", "q8_2f": "5e133fd70ba77ce6",
    "q4_block": "0ad9f18bfb7ce0d5", "q4_tiled": "0ad9f18bfb7ce0d5", "q4tp": "9e9d9f62fed1ae68",
    "q2tp": "b0c65b5d0fd16f04", "q1": "208878bae7eb65cd", "q1p": "3a27067e583f39ad",
    "q1s": "6e5c1c4d77c38756", "q1t": "b4133bdccba94f1e", "vbit": "cc619f41bef472c4",
    "vbit_ro": "cc619f41bef472c4",
}  # fmt: skip
"""The same of what its decoders make of those bytes; of the ladders, whose powers of two it takes
from a library that misses some, what they should be.
"""


def matrix(rows=70, columns=160):
    """Values over many binades, with rows and groups of zeros, and ties."""
    number = np.arange(rows * columns, dtype=np.int64)
    steps = (number * 7919 + number * number % 1013 * 37) % 2003 - 1001
    values = steps.reshape(rows, columns) / np.float64(512)
    values *= np.exp2(np.arange(rows) * 5 % 23 - 14)[:, None]
    values *= np.exp2(np.arange(columns) // 32 % 3)
    values[7], values[11:20, 32:64] = 0, 0
    return values.astype(np.float32)


def digest(data):
    return hashlib.sha256(data).hexdigest()[:16]


@pytest.mark.parametrize("name", ENCODED)
def test_encoders_give_the_original_engines_bytes(name):
    values = matrix(600, 64) if name == "q8_2f" else matrix()
    made = encode(name, values)
    assert digest(made) == ENCODED[name]
    raw, dtype = np.frombuffer(made, np.uint8), BY_NAME[{"q1p": "q1"}.get(name, name)]
    assert not problem(dtype, values.shape, raw)
    assert digest(decode_rows(dtype, values.shape, raw, 0, len(values)).tobytes()) == DECODED[name]


@pytest.mark.parametrize("name", ENCODED)
def test_slices_of_rows_are_encoded_as_the_whole(name):
    values = matrix(600, 64) if name == "q8_2f" else matrix()
    cuts = [values[:3], values[3:40], values[40:]]
    found, start, parts = survey(name, values.shape, lambda: cuts), 0, []
    for cut in cuts:
        parts.append([part.tobytes() for part in encode_rows(name, cut, found, start)])
        start += len(cut)
    assert b"".join(b"".join(part) for part in zip(*parts, strict=True)) == encode(name, values)


@pytest.mark.parametrize("name", BY_HAND)
def test_every_value_is_that_of_a_decoder_in_double(name):
    rng, dtype = np.random.default_rng(5), BY_NAME[name]
    for rows, columns in ((1, 32), (3, 64), (9, 256), (5, 96)):
        raw = random_payload(name, rng, rows, columns)
        assert not problem(dtype, (rows, columns), np.frombuffer(raw, np.uint8))
        exact = np.array(BY_HAND[name](raw, rows, columns)).astype(np.float32)
        exact = exact.reshape(rows, columns)
        held = np.frombuffer(raw, np.uint8)
        found = decode_rows(dtype, (rows, columns), held, 0, rows)
        assert np.array_equal(found, exact), (rows, columns)
        last = decode_rows(dtype, (rows, columns), held, rows - 1, rows)
        assert np.array_equal(last, exact[-1:])


@pytest.mark.parametrize("name", sorted(BY_HAND.keys() - {"f32", "f16", "bf16"}))
def test_layouts_hold_exactly_the_values_of_a_file(name):
    rng, dtype = np.random.default_rng(6), BY_NAME[name]
    for rows, columns in ((1, 32), (6, 96), (4, 256)):
        raw = np.frombuffer(random_payload(name, rng, rows, columns), np.uint8)
        tensor = tensor_of("t", dtype, (rows, columns), raw)
        assert tensor.type == layout_of(dtype, (rows, columns), raw)
        exact = decode_rows(dtype, (rows, columns), raw, 0, rows)
        exact = np.where(np.abs(exact) < 2.0**-40, np.float32(0), exact)
        weight = raw_weight(tensor, (rows, columns))
        assert np.array_equal(weight_values(weight, "t"), exact)
        assert np.array_equal(weight_values(weight.rows(rows - 1, rows), "t"), exact[-1:])


def test_vbit_of_four_bits_and_q1t_without_overlay_stay_nibbles():
    rng = np.random.default_rng(7)
    values = rng.standard_normal((4, 64)).astype(np.float32)
    raw = np.frombuffer(encode("q1t", values), np.uint8)
    assert layout_of(BY_NAME["q1t"], values.shape, raw) == "Q4_0"
    narrow = np.frombuffer(b"\4\3" + bytes(8) + rng.bytes(32 + 24), np.uint8)
    assert not problem(BY_NAME["vbit"], (2, 64), narrow)
    assert layout_of(BY_NAME["vbit"], (2, 64), narrow) == "Q4_0"


def test_scalars_are_those_of_the_format():
    given = [2.0**-25, 2.5 * 2.0**-24, 65520.0, -1.7821789e-5, 2.0**-26]
    bits = half_bits(np.array(given, np.float32))
    assert [f"{b:04x}" for b in bits] == ["0001", "0003", "7c00", "812b", "0000"]
    rungs = powers.ladders(np.array([[0xC200, 0x3400]], np.uint16))[0].view(np.uint32)
    wanted = {0: 0x3E000000, 1: 0x3E1837F0, 4: 0x3E7FFFFD, 7: 0x3ED744F9, 12: 0x3F7FFFF9,
              31: 0x41D744EE}  # fmt: skip
    assert {n: int(rungs[n]) for n in wanted} == wanted
    zero = powers.ladders(np.array([[0xC200, 0x3400]], np.uint16), zero_first=True)[0]
    assert zero[0] == 0 and np.array_equal(zero[1:].view(np.uint32), rungs[:31])


def test_tables_of_powers_are_computed_exactly_where_a_library_differs(monkeypatch):
    """Digits give what the table holds; a table of another hash is never used."""
    x = float(np.uint16(0x3401).view(np.float16))
    assert np.float32(powers._exact("exp2", x)) == powers.exp2_table()[0x3401]
    assert np.float32(powers._exact("log2", x)) == powers.log2_table()[0x3401]
    monkeypatch.setattr(powers, "EXP2_SHA256", "0" * 64)
    monkeypatch.setattr(powers, "_exact", lambda function, x: 0.0)
    with pytest.raises(AssertionError, match="not the one that files are made with"):
        powers._table("exp2", powers.EXP2_SHA256)


def test_hashes_are_those_of_the_format():
    known = {
        b"": 0, b"CMF": 0xB59AA39A074033EC, b"0123456789abcdef": 0x30D401310062EA9F,
        bytes(range(256)): 0x9955BB876C0706BF, bytes(16): 0x00DDBEA04AD81625,
        b"\xff" * 16: 0x00DDBEA04AD81625, bytes(range(64)): 0x79D1716E27089B08,
    }  # fmt: skip
    assert {data: hash64(data) for data in known} == known


@pytest.mark.parametrize(
    ("name", "shape", "change", "match"),
    [
        ("q8_row", (2, 32), lambda d: d[:-1], "takes 68"),
        ("vbit", (2, 32), lambda d: b"\7" + d[1:], "codes of 7 bits"),
        ("vbit", (2, 32), lambda d: d + b"\0", "its rows take"),
        ("vbit", (2, 32), lambda d: d[:3], "too few"),
        ("vbit_ro", (2, 32), lambda d: d[:10] + b"\1" + d[11:], "row offsets"),
        ("q4tp", (2, 32), lambda d: d[:32] + b"\0\x7c" + d[34:], "the ladder"),
        ("q2tp", (2, 32), lambda d: d[:18] + b"\0\xbc" + d[20:], "the ladder"),
        ("q1s", (2, 32), lambda d: d[:12] + b"\xff" + d[13:], "overlaid values take"),
        ("q1s", (2, 32), lambda d: d[:16] + b"\x40" + d[17:], "do not ascend"),
        ("q1t", (2, 32), lambda d: d[:2] + b"\xf3" + d[3:], "five ternary digits"),
        ("q1t", (2, 32), lambda d: d[:18] + b"\1" + d[19:], "row starts"),
    ],
)  # fmt: skip
def test_what_a_decoder_would_trust_is_refused(name, shape, change, match):
    values = np.linspace(-1, 1, shape[0] * shape[1], dtype=np.float32).reshape(shape)
    changed = np.frombuffer(change(encode(name, values)), np.uint8)
    assert match in problem(BY_NAME[name], shape, changed)
