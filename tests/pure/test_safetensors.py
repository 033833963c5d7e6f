"""The safetensors reader: the package's files are read, hostile ones are refused."""

from __future__ import annotations

import json
import struct
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import safetensors
from fuzzing import memory_limit, outcomes

from cortiq.errors import CortiqError, FormatError, UnsupportedError
from cortiq.formats.safetensors import INDEX_NAME, open_safetensors

Table = dict[str, tuple[str, list[int], bytes]]
TABLE: Table = {
    "a": ("F32", [2, 3], bytes(range(24))),
    "b.weight": ("BF16", [3, 2], bytes(range(12))),
    "c": ("F16", [4], bytes(range(8))),
    "d": ("F32", [], bytes(4)),
    "e": ("BOOL", [8], bytes(8)),
    "f": ("BF16", [0, 5], b""),
}


def by_hand(header: object, data: bytes = b"", length: int | None = None) -> bytes:
    """A file with any header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def serialise(table: Table) -> bytes:
    """A file of these tensors."""
    header, data = {}, b""
    for name, (kind, shape, content) in table.items():
        offsets = [len(data), len(data) + len(content)]
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": offsets}
        data += content
    return by_hand(header, data)


@pytest.fixture
def folder(tmp_path):
    """A folder with model.safetensors of TABLE."""
    (tmp_path / "model.safetensors").write_bytes(serialise(TABLE))
    return tmp_path


def refusal(folder: Path, kind: type[CortiqError] = FormatError) -> str:
    with pytest.raises(kind) as caught:
        open_safetensors(folder)
    assert str(folder) in caught.value.where
    return str(caught.value)


def test_tensors_are_the_bytes_that_the_package_reads(folder):
    expected = dict(safetensors.deserialize((folder / "model.safetensors").read_bytes()))
    with open_safetensors(folder) as model:
        assert model.tensors.keys() == expected.keys() == TABLE.keys()
        for name in TABLE.keys() - {"e"}:
            assert model.raw(name).tobytes() == bytes(expected[name]["data"]) == TABLE[name][2]
            assert list(model.tensors[name].shape) == expected[name]["shape"]
            assert model.tensors[name].type == expected[name]["dtype"]


def test_tensors_are_views_with_rows_first(folder):
    with open_safetensors(folder) as model:
        assert model.raw("b.weight").shape == (3, 4)
        assert model.raw("d").shape == (4,) and model.raw("f").shape == (0, 10)
        assert model.raw("a").view(np.float32).shape == (2, 3)
        assert not model.raw("a").flags.owndata and not model.raw("a").flags.writeable


def test_a_type_that_no_weight_has_is_refused_when_it_is_asked_for(folder):
    with open_safetensors(folder) as model, pytest.raises(UnsupportedError) as caught:
        model.raw("e")
    assert "'e' has type BOOL" in str(caught.value) and "BF16" in str(caught.value)


def test_every_truncation_is_refused(tmp_path):
    whole = serialise({"a": TABLE["a"]})
    for length in range(len(whole)):
        (tmp_path / str(length)).mkdir()
        (tmp_path / str(length) / "model.safetensors").write_bytes(whole[:length])
        refusal(tmp_path / str(length))


def entry(**changes: object) -> dict[str, object]:
    return {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes


BROKEN = {
    "the header has 18446744073709551615 bytes": by_hand({}, length=(1 << 64) - 1),
    "the header is no JSON object": by_hand([]),
    "is not valid JSON": by_hand(b'{"a": '),
    "'utf-8' codec can't decode": by_hand(b'{"\xff": 1}'),
    "surrogates not allowed": by_hand(b'{"\\ud800": 1}'),
    "nested too deeply": by_hand(b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "more than 131072 tensors": by_hand(b'{"a": [' + b"[]," * 400_000 + b"[]]}"),
    "the key 'a' appears twice": by_hand(
        f'{{"a": {json.dumps(entry())}, "a": {json.dumps(entry())}}}'.encode(), bytes(8)
    ),
    "__metadata__ is not a mapping of strings": by_hand({"__metadata__": {"format": 1}}),
    "'a' is not described by data_offsets, dtype, shape": by_hand({"a": entry(extra=1)}, bytes(8)),
    "'b' is not described by": by_hand({"b": 5}),
    "'a' has the shape [-2]": by_hand({"a": entry(shape=[-2])}, bytes(8)),
    "'a' has the shape [2.0]": by_hand({"a": entry(shape=[2.0])}, bytes(8)),
    "'a' has the shape [True, 2]": by_hand({"a": entry(shape=[True, 2])}, bytes(8)),
    "'a' has the shape [1, 1, 1, 1, 1, 1, 1, 1, 1]": by_hand({"a": entry(shape=[1] * 9)}, bytes(8)),
    "'a' has the shape [99999999999999999999": by_hand({"a": entry(shape=[10**4000 - 1] * 8)}),
    "'a' has the offsets [0]": by_hand({"a": entry(data_offsets=[0])}, bytes(8)),
    "'a' has the offsets 8": by_hand({"a": entry(data_offsets=8)}, bytes(8)),
    "'a' has [3] F32, but offsets [0, 8]": by_hand({"a": entry(shape=[3])}, bytes(8)),
    "but offsets [8, 0]": by_hand({"a": entry(data_offsets=[8, 0])}, bytes(8)),
    "'a' leaves a gap before it": by_hand({"a": entry(data_offsets=[8, 16])}, bytes(16)),
    "'b' overlaps what is before it": by_hand(
        {"a": entry(), "b": entry(data_offsets=[4, 12])}, bytes(12)
    ),
    "tensors end at byte": by_hand({"a": entry()}, bytes(9)),
    "truncated or corrupt: tensors end": by_hand({"a": entry()}, bytes(7)),
}


@pytest.mark.parametrize("message", BROKEN)
def test_inconsistent_files_are_refused_with_the_reason(tmp_path, message):
    (tmp_path / "model.safetensors").write_bytes(BROKEN[message])
    assert message in refusal(tmp_path)


def test_an_unknown_type_is_named(tmp_path):
    data = by_hand({"a": entry(dtype="F4")}, bytes(8))
    (tmp_path / "model.safetensors").write_bytes(data)
    assert "'a' has type 'F4'" in refusal(tmp_path, UnsupportedError)


@pytest.fixture
def shards(tmp_path):
    """Two shards and their index."""
    names = [f"model-{number:05}-of-00002.safetensors" for number in (1, 2)]
    (tmp_path / names[0]).write_bytes(serialise({"a": TABLE["a"], "extra": TABLE["c"]}))
    (tmp_path / names[1]).write_bytes(serialise({"b": TABLE["c"]}))
    index = {"metadata": {"total_size": 32}, "weight_map": {"b": names[1], "a": names[0]}}
    (tmp_path / INDEX_NAME).write_text(json.dumps(index))
    return tmp_path


def test_shards_are_one_model(shards):
    model = open_safetensors(shards)
    assert list(model.tensors) == ["b", "a"]
    assert model.raw("a").tobytes() == TABLE["a"][2]
    assert model.raw("b").tobytes() == TABLE["c"][2]


def test_missing_shards_and_tensors_are_named(shards):
    second = shards / "model-00002-of-00002.safetensors"
    second.write_bytes(serialise({"other": TABLE["c"]}))
    assert "has no tensor 'b'" in refusal(shards)
    second.unlink()
    assert "1 of 2 shards are missing: model-00002-of-00002.safetensors" in refusal(shards)
    (shards / INDEX_NAME).unlink()
    (shards / "third.safetensors").write_bytes(serialise({}))
    assert f"2 safetensors files and no {INDEX_NAME}" in refusal(shards)


@pytest.mark.parametrize("name", ["../m.safetensors", "/m.safetensors", "", 7, "a\0", "x" * 999])
def test_an_index_cannot_point_out_of_its_folder(shards, name):
    (shards / INDEX_NAME).write_text(json.dumps({"weight_map": {"a": name}}))
    assert "is not a plain file name" in refusal(shards)


def test_an_index_names_safetensors_files_only(shards):
    (shards / INDEX_NAME).write_text(json.dumps({"weight_map": {"a": "model.npz"}}))
    assert "'a' is in model.npz, which is not a safetensors file" in refusal(shards)


@pytest.mark.parametrize("index", ["{}", '{"weight_map": []}', '{"weight_map": {}}', "[]", "{"])
def test_a_malformed_index_is_refused(shards, index):
    (shards / INDEX_NAME).write_text(index)
    assert INDEX_NAME in refusal(shards)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "model.ckpt"])
def test_pickled_weights_are_refused_by_name(tmp_path, name):
    (tmp_path / name).write_bytes(b"\x80\x04.")
    message = refusal(tmp_path, UnsupportedError)
    assert name in message and "runs the code in it" in message
    (tmp_path / INDEX_NAME).write_text(json.dumps({"weight_map": {"a": name}}))
    assert name in refusal(tmp_path, UnsupportedError)


def test_a_folder_without_weights_says_so(tmp_path):
    assert "holds no *.safetensors file" in refusal(tmp_path)


def test_mutated_files_raise_only_our_errors(tmp_path):
    """And what we accept, the safetensors package accepts."""
    seeds = [serialise(TABLE), by_hand({"a": entry(), "__metadata__": {"k": "v"}}, bytes(8))]
    pieces = [b'"a"', b'"shape":[2]', b"[", b"]", b"{", b"}", b",", b"1e9", b"-1", b"null", b"\xff"]
    pieces += [b'"dtype":"F64"', b"99999999999999999999", b"NaN", b"[0,8]", b" "]
    path = tmp_path / "model.safetensors"

    def read(path: Path) -> None:
        with open_safetensors(path.parent) as model:
            for name, tensor in model.tensors.items():
                if tensor.type != "I64":
                    assert model.raw(name).size == tensor.nbytes
            safetensors.deserialize(path.read_bytes())

    with memory_limit(64):
        counts = Counter(outcomes(seeds, path, read, pieces))
    assert min(counts["read"], counts["FormatError"]) > 20, counts
