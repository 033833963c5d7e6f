"""The GGUF reader: what it reads is what is in the file, and nothing else gets in."""

from __future__ import annotations

import struct
from collections import Counter
from pathlib import Path

import gguf
import numpy as np
import pytest
from fuzzing import memory_limit, outcomes
from gguf_bytes import File, numbers, parts, scalar, small, string, tensor, text, texts
from work import calls

from cortiq.errors import CortiqError, FormatError, ModelNotFoundError, UnsupportedError
from cortiq.formats.checkpoint import open_checkpoint
from cortiq.formats.file_types import file_type_name
from cortiq.formats.gguf import GGML_TYPES, open_gguf
from cortiq.formats.gguf_types import INTEGER_TYPES, UNSUPPORTED_TYPES
from cortiq.numerics.dequantise import embedding_rows
from cortiq.numerics.layouts import LAYOUTS, Weight


@pytest.fixture
def write(tmp_path):
    """Write a File (or bytes) and give its path."""

    def write(content: File | bytes, name: str = "model.gguf") -> Path:
        path = tmp_path / name
        path.write_bytes(bytes(content))
        return path

    return write


def refusal(path: Path, kind: type[CortiqError] = FormatError) -> str:
    """The message with which a file is refused; it names the file."""
    with pytest.raises(kind) as caught:
        open_gguf(path)
    assert caught.value.where == str(path)
    return str(caught.value)


def test_every_kind_of_value_is_read(write):
    metadata = open_gguf(write(small())).metadata
    scalars = {key: metadata[key] for key in metadata if key.startswith(("a.", "general"))}
    assert scalars == {
        "general.architecture": "llama",
        "a.u8": 255,
        "a.i8": -1,
        "a.u16": 65535,
        "a.i16": -2,
        "a.u32": 1 << 31,
        "a.i32": -3,
        "a.f32": 0.5,
        "a.yes": True,
        "a.u64": 1 << 63,
        "a.i64": -4,
        "a.f64": 0.1,
        "a.text": "Ġ ∑",
    }
    assert type(scalars["a.yes"]) is bool and type(scalars["a.u8"]) is int
    assert metadata["b.i32"].tolist() == [1, -2, 3] and metadata["b.i32"].dtype == np.int32
    assert metadata["b.none"].tolist() == [] and metadata["b.yes"].tolist() == [True, False]
    assert metadata["b.texts"] == ["", "a", "∑"]
    assert len(metadata) == len(small().entries) and "missing" not in metadata


def test_tensors_are_views_with_rows_first(write):
    with open_gguf(write(small())) as model:
        first, second = model.tensors["first"], model.tensors["second.weight"]
        assert (first.shape, first.type, first.nbytes) == ((2, 3), "F32", 24)
        assert (second.shape, second.type, second.row_bytes) == ((1, 32), "Q4_1", 20)
        assert model.raw("first").view(np.float32).tolist() == [[0, 1, 2], [3, 4, 5]]
        view = model.raw("second.weight")
        assert view.shape == (1, 20) and not view.flags.owndata and not view.flags.writeable
        with pytest.raises(FormatError, match="no tensor 'third'"):
            model.raw("third")
    assert view.tolist() == [list(range(20))]
    with pytest.raises(FormatError, match="is closed"):
        model.raw("first")


def test_layouts_are_those_of_the_gguf_package():
    sizes = {t.value: (t.name, *size) for t, size in gguf.GGML_QUANT_SIZES.items()}
    assert {number: sizes[number] for number in GGML_TYPES} == GGML_TYPES
    assert {number: sizes[number] for number in INTEGER_TYPES} == INTEGER_TYPES
    known = {number for number in sizes if number not in GGML_TYPES | INTEGER_TYPES}
    assert known <= UNSUPPORTED_TYPES.keys()
    assert all(sizes[number][0] == UNSUPPORTED_TYPES[number] for number in known)


def test_names_of_file_types_are_those_of_the_gguf_package():
    theirs = {one.value: one.name for one in gguf.LlamaFileType if one.name != "GUESSED"}
    names = {n: name.removeprefix("MOSTLY_").removeprefix("ALL_") for n, name in theirs.items()}
    assert {number: file_type_name(number) for number in names} == names
    assert file_type_name(1024) == file_type_name(None) == file_type_name(True) == ""


def test_every_type_that_is_read_has_a_layout_of_the_same_size():
    ours = {layout.ggml_type: layout for layout in LAYOUTS.values() if layout.ggml_type is not None}
    assert {
        number: (layout.name, layout.block or 1, layout.block_bytes)
        for number, layout in ours.items()
    } == {number: size for number, size in GGML_TYPES.items() if size[0] not in ("NVFP4", "Q1_0")}


@pytest.mark.parametrize("stacked", [False, True])
def test_nvfp4_is_read_in_a_layout_of_ours(tmp_path, stacked):
    """As the gguf package dequantises it, times the scale of the matrix or of each of a stack."""
    rng, path = np.random.default_rng(3), tmp_path / "m.gguf"
    shape, scale = ((3, 5, 4, 36), [0.5, 3, 0.7]) if stacked else ((15, 4, 36), [1.7])
    raw = rng.integers(0, 256, shape, np.uint8)
    raw[..., :4] &= 0x7F
    raw[..., 0] = np.resize([0, 1, 0x7F, 0x7E, 8], raw.shape[:-1])
    writer = gguf.GGUFWriter(path, "llama")
    kind = gguf.GGMLQuantizationType.NVFP4
    writer.add_tensor("x.weight", raw.reshape(*shape[:-2], -1), raw_dtype=kind)
    writer.add_tensor("x.scale", np.float32(scale))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = open_checkpoint(path).tensor("x.weight")
    layout = LAYOUTS[found.type]
    assert (layout.name, found.shape) == ("e2m1b16", (*shape[:-2], 256))
    plain = gguf.quants.dequantize(raw.reshape(15, -1), kind).astype(np.float64)
    expected = plain.reshape(len(scale), -1) * np.float32(scale).astype(np.float64)[:, None]
    weight = Weight.from_bytes(layout, found.make(0, 15), (15, 256))
    rows = embedding_rows(weight, np.arange(15))
    assert np.abs(rows - expected.reshape(15, -1)).max() <= 2.0**-23 * np.abs(expected).max()
    assert np.array_equal(found.make(4, 9), found.make(0, 15)[4:9])


def test_q1_0_is_signs_under_scales(tmp_path):
    rng, path = np.random.default_rng(3), tmp_path / "m.gguf"
    raw = rng.integers(0, 256, (5, 2, 18), np.uint8)
    scale = rng.standard_normal((5, 2)).astype("<f2")
    raw[..., :2] = scale[..., None].view(np.uint8)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("x.weight", raw.reshape(5, -1), raw_dtype=gguf.GGMLQuantizationType.Q1_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = open_checkpoint(path).tensor("x.weight")
    weight = Weight.from_bytes(LAYOUTS[found.type], found.make(0, 5), (5, 256))
    rows = embedding_rows(weight, np.arange(5)).reshape(5, 2, 128)
    for (row, block, at), value in np.ndenumerate(rows):
        bit = raw[row, block, 2 + at // 8] >> (at % 8) & 1
        assert value == (1 if bit else -1) * np.float32(scale[row, block])


def shared_number(tmp_path, number, each, nbytes):
    """A file with tensors [3, 256] of a type number, first and last, in blocks of some size."""
    rng, path = np.random.default_rng(5), tmp_path / "m.gguf"
    raw = rng.integers(0, 60, (3, 256 // each * nbytes), np.uint8)
    size = 32 * -(-raw.nbytes // 32)
    plain = np.ones(8, "<f4").tobytes()
    lines = [tensor("a.weight", [256, 3], number, 0), tensor("b.weight", [8], 0, size),
             tensor("c.weight", [256, 3], number, size + 32)]  # fmt: skip
    data = raw.tobytes().ljust(size, b"\0") + plain + raw.tobytes()
    path.write_bytes(bytes(File([text("general.architecture", "llama")], lines, data)))
    return open_checkpoint(path), raw.reshape(3, -1, nbytes)


def test_a_number_of_two_publishers_is_told_by_the_tensors_span(tmp_path):
    checkpoint, _ = shared_number(tmp_path, 40, 64, 36)
    assert [checkpoint.tensor(f"{n}.weight").type for n in "ac"] == ["e2m1b16"] * 2
    checkpoint, raw = shared_number(tmp_path, 40, 32, 6)
    found = [checkpoint.tensor(f"{n}.weight") for n in "ac"]
    assert [one.type for one in found] == ["i4b32"] * 2
    weight = Weight.from_bytes(LAYOUTS["i4b32"], found[1].make(0, 3), (3, 256))
    rows = embedding_rows(weight, np.arange(3)).reshape(3, 8, 32)
    bits = np.unpackbits(raw[..., 2:], axis=2, bitorder="little").astype(np.float32)
    scale = np.ascontiguousarray(raw[..., :2]).view("<f2").astype(np.float32)
    assert np.array_equal(rows, (2 * bits - 1) * scale)
    assert shared_number(tmp_path, 41, 128, 18)[0].tensor("a.weight").type == "i4b32"


@pytest.mark.parametrize(("number", "each", "nbytes"), [(40, 32, 14), (41, 256, 98), (41, 256, 24)])
def test_a_span_that_no_type_of_the_number_has_is_refused(number, each, nbytes, tmp_path):
    with pytest.raises(UnsupportedError, match=r"takes \d+ bytes, which is no"):
        shared_number(tmp_path, number, each, nbytes)


@pytest.mark.parametrize("alignment", [None, 8, 64])
def test_files_of_the_gguf_package_are_read(tmp_path, alignment):
    path, random = tmp_path / "written.gguf", np.random.default_rng(1)
    writer = gguf.GGUFWriter(path, "llama")
    if alignment:
        writer.add_custom_alignment(alignment)
    writer.add_array("words", ["one", "", "Ġzwei"])
    writer.add_array("counts", [1, 2, 3])
    writer.add_float64("eps", 1e-5)
    tensors = {}
    for number, (name, _, block) in GGML_TYPES.items():
        kind = gguf.GGMLQuantizationType(number)
        raw = random.integers(0, 256, (3, 2 * block), dtype=np.uint8)
        tensors[f"t.{name}"] = raw
        if name in ("F32", "F16"):
            raw = raw.view(np.dtype(f"f{block}"))
        writer.add_tensor(f"t.{name}", raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with open_gguf(path) as model:
        assert model.metadata["words"] == ["one", "", "Ġzwei"]
        assert model.metadata["counts"].tolist() == [1, 2, 3] and model.metadata["eps"] == 1e-5
        assert {f"t.{tensor.type}" for tensor in model.tensors.values()} == tensors.keys()
        for name, raw in tensors.items():
            assert model.raw(name).tobytes() == raw.tobytes()
            assert model.tensors[name].shape[0] == 3


def test_version_2_reads_like_version_3(write):
    file = small()
    file.version = 2
    assert open_gguf(write(file)).tensors.keys() == {"first", "second.weight"}


def test_a_file_without_tensors_is_a_file(write):
    assert open_gguf(write(File([text("general.architecture", "llama")]))).tensors == {}


@pytest.mark.parametrize(
    ("version", "message"),
    [(1, "version 1"), (4, "version 4"), (3 << 24, "big-endian"), (0, "big-endian|version 0")],
)
def test_other_versions_are_refused_by_name(write, version, message):
    with pytest.raises(UnsupportedError, match=message):
        open_gguf(write(File(version=version)))


def test_what_is_not_a_gguf_file_is_refused(write, tmp_path):
    assert "not a GGUF file: it starts with b'PK" in refusal(write(b"PK\3\4" + bytes(100)))
    assert "empty" in refusal(write(b""))
    assert "not a regular file" in refusal(tmp_path)
    refusal(tmp_path / "absent.gguf", ModelNotFoundError)


def test_every_truncation_is_refused(write):
    whole = bytes(small())
    for length in range(1, len(whole)):
        assert "byte" in refusal(write(whole[:length], f"{length}.gguf"))


F32, Q4_1 = 0, 3
ONE = [tensor("a", [4], F32, 0)]
BROKEN = {
    "tensors do not fit": File(tensor_count=1 << 60),
    "metadata entries do not fit": File(entry_count=(1 << 64) - 1),
    "strings of metadata 'a' do not fit": File(
        [string("a") + struct.pack("<IIQ", 9, 8, (1 << 64) - 1)], data=bytes(99)
    ),
    "metadata 'a' needs 147573952589676412920 bytes": File(
        [string("a") + struct.pack("<IIQ", 9, 10, (1 << 64) - 1)], data=bytes(99)
    ),
    "metadata 'a', string 1": File([texts("a", ["x", "y"])[:-9] + struct.pack("<Q", 1 << 63)]),
    "metadata 'a' appears twice": File([text("a", "x"), scalar("a", "I", 1)]),
    "metadata 'a' has the unknown type 13": File([string("a") + struct.pack("<IQ", 13, 0)]),
    "metadata 'a' is not valid UTF-8": File([text("a", b"\xff")]),
    "metadata entry 0 is not valid UTF-8": File([text(b"\xff", "a")]),
    "name of metadata entry 1 has 0 bytes": File([text("a", "x"), text("", "x")]),
    "neither 0 nor 1": File([string("a") + struct.pack("<IB", 7, 2)]),
    "alignment is 24, not a power of two": File([scalar("general.alignment", "I", 24)]),
    "alignment is 0, not a power of two": File([scalar("general.alignment", "I", 0)]),
    "alignment is 'x'": File([text("general.alignment", "x")]),
    "tensor 'a' appears twice": File(tensors=[*ONE, tensor("a", [4], F32, 32)], data=bytes(64)),
    "name of tensor 0 is not valid UTF-8": File(tensors=[tensor(b"\xff", [4], F32, 0)]),
    "'a' has 0 axes": File(tensors=[tensor("a", [], F32, 0)], data=bytes(64)),
    "'a' has 5 axes": File(tensors=[tensor("a", [1] * 5, F32, 0)], data=bytes(64)),
    "'a' has 4294967295 axes": File(
        tensors=[string("a") + struct.pack("<IQQQ", (1 << 32) - 1, 1, 1, 1)]
    ),
    "'a' has an axis of length 0": File(tensors=[tensor("a", [4, 0], F32, 0)]),
    "rows of 33 are not whole Q4_1 blocks": File(tensors=[tensor("a", [33], Q4_1, 0)]),
    "offset 4 is not a multiple of 32": File(tensors=[tensor("a", [4], F32, 4)], data=bytes(64)),
    "unknown type number 999": File(tensors=[tensor("a", [4], 999, 0)], data=bytes(64)),
    "tensor 'a' ends at byte": File(tensors=ONE, data=bytes(15)),
    "'a' ends at byte": File(tensors=[tensor("a", [1 << 63, 1 << 63], F32, 0)], data=bytes(64)),
    "'b' ends at byte": File(tensors=[tensor("b", [4], F32, (1 << 64) - 32)], data=bytes(64)),
    "'a' and 'b' overlap": File(
        tensors=[tensor("b", [4], F32, 32), tensor("a", [9], F32, 0)], data=bytes(64)
    ),
}


@pytest.mark.parametrize("message", BROKEN)
def test_inconsistent_files_are_refused_with_the_place(write, message):
    assert message in refusal(write(BROKEN[message]))


def test_unsupported_things_are_named_with_what_is_supported(write):
    kinds = File(tensors=[tensor("blk.0.x", [256], 15, 0)], data=bytes(292))
    message = refusal(write(kinds), UnsupportedError)
    assert "'blk.0.x' has type Q8_K" in message and "Q4_K" in message
    nested = File([string("a") + struct.pack("<IIQ", 9, 9, 1)])
    assert "array of arrays" in refusal(write(nested), UnsupportedError)


def test_invalid_utf8_in_an_array_is_found_on_access(write):
    metadata = open_gguf(write(File([texts("tokens", ["a", b"\xff\xfe"])]))).metadata
    assert metadata.byte_strings("tokens") == [b"a", b"\xff\xfe"]
    with pytest.raises(FormatError, match="'tokens': element 1 is not valid UTF-8"):
        metadata["tokens"]


def test_mutated_files_raise_only_our_errors(tmp_path):
    seeds = [bytes(small()), bytes(parts(1)[0]), bytes(small().header())]
    pieces = [string("a"), scalar("general.alignment", "I", 1), numbers("n", "Q", [1, 2])]
    pieces += [tensor("first", [3, 2], 0, 0), texts("t", ["a", "b"]), b"\xff" * 8]

    def read(path: Path) -> None:
        with open_gguf(path) as model:
            for key in model.metadata:
                model.metadata[key]
            assert all(model.raw(name).size == t.nbytes for name, t in model.tensors.items())

    with memory_limit(64):
        counts = Counter(outcomes(seeds, tmp_path / "mutated.gguf", read, pieces))
    # The mutations must neither be harmless nor always die at the first field.
    assert min(counts["read"], counts["FormatError"], counts["UnsupportedError"]) > 20, counts


class Oracle(gguf.GGUFReader):
    """The gguf package's reader with arrays in one piece: it needs 19 s for Gemma's otherwise."""

    def _get_field_parts(self, orig_offs, raw_type):
        if raw_type != gguf.GGUFValueType.ARRAY:
            return super()._get_field_parts(orig_offs, raw_type)
        kind, count = (
            int(self._get(orig_offs, np.uint32)[0]),
            int(self._get(orig_offs + 4, "u8")[0]),
        )
        types, start = [gguf.GGUFValueType.ARRAY, gguf.GGUFValueType(kind)], orig_offs + 12
        if kind != gguf.GGUFValueType.STRING:
            values = self._get(start, self.gguf_scalar_to_np[types[1]], count)
            return 12 + values.nbytes, [values], [0], types
        data, words = memoryview(self.data)[start:], []
        position = 0
        for _ in range(count):
            length = int.from_bytes(data[position : position + 8], "little")
            words.append(bytes(data[position + 8 : position + 8 + length]))
            position += 8 + length
        return 12 + position, [words], [0], types


@pytest.mark.parametrize("model_path", ["smollm2_path", "gemma3_path"])
def test_real_models_agree_with_the_gguf_package(model_path, request):
    path = request.getfixturevalue(model_path)
    model = open_gguf(path)
    oracle = Oracle(path)
    arrays = [field for field in oracle.fields.values() if len(field.types) == 2]
    texts = sum(len(f.parts[-1]) for f in arrays if f.types[-1] == gguf.GGUFValueType.STRING)
    assert calls(open_gguf, path) < 2 * texts + 20_000
    assert list(model.tensors) == [tensor.name for tensor in oracle.tensors]
    for expected in oracle.tensors:
        found = model.tensors[expected.name]
        assert found.type == expected.tensor_type.name
        assert found.shape == tuple(int(n) for n in reversed(expected.shape))
        assert (found.offset, found.nbytes) == (expected.data_offset, expected.n_bytes)
        assert model.raw(expected.name).tobytes() == expected.data.tobytes()
    fields = {key: field for key, field in oracle.fields.items() if not key.startswith("GGUF.")}
    assert list(model.metadata) == list(fields)
    for key, field in fields.items():
        if field.types[-1] == gguf.GGUFValueType.STRING and len(field.types) == 2:
            assert model.metadata.byte_strings(key) == field.parts[-1]
        elif len(field.types) == 2:
            assert model.metadata[key].tolist() == field.parts[-1].tolist()
        else:
            assert model.metadata[key] == field.contents()
