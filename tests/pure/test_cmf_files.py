"""CMF files: opened and verified, or refused by name; hostile ones in little time and memory."""

from __future__ import annotations

import json
import struct
from collections import Counter
from itertools import cycle

import numpy as np
import pytest
from cmf_files import ARCH, MIXED, cmf_bytes, header_of, masks_section, tensors_of, values_of
from fuzzing import memory_limit, outcomes

from cortiq.errors import FormatError, UnsupportedError
from cortiq.formats.checkpoint import open_checkpoint
from cortiq.formats.cmf.directory import Entry, pack_directory, read_envelope
from cortiq.formats.cmf.dtypes import BY_NAME
from cortiq.formats.cmf.encode import encode
from cortiq.formats.cmf.masks import read_sparse_index
from cortiq.formats.cmf.reader import open_cmf
from cortiq.formats.cmf.writer import TrailingSections, file_parts

SECTIONS = TrailingSections(b'{"version": "1.0"}', masks_section())
SKILL = {"id": "chess", "layers": [0], "quality": None}


def write(path, data):
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    return path


def refusal(path, kind=FormatError, strict=True):
    with pytest.raises(kind) as caught:
        open_cmf(path, strict)
    assert str(path.name) in str(caught.value)
    return str(caught.value)


@pytest.fixture
def whole(tmp_path):
    return write(tmp_path / "m.cmf", cmf_bytes(sections=SECTIONS, skills=[SKILL]))


def test_a_file_says_what_was_written(whole):
    with open_cmf(whole) as file:
        assert not list(file.problems())
        assert bytes(file.vocabulary) == SECTIONS.vocabulary
        assert file.header.arch.hidden_size == ARCH["hidden_size"]
        assert file.header.skills[0].id == "chess" and file.header.skills[0].quality is None
        for name, dtype, shape, data in tensors_of(values_of()):
            part, entry = file.entries[name]
            assert (entry.dtype.name, entry.shape, bytes(part.payload(entry))) == (
                dtype, shape, data,
            )  # fmt: skip
            first = part.envelope.place("data")[0] + entry.offset
            assert first % (4096 if entry.nbytes >= 1 << 14 else 64) == 0
        (mask,) = file.masks.masks
        assert mask.record.name == "task" and mask.neuron_row(0)[0] == 0xF7
        assert mask.is_active(0) and mask.experts is None


def test_the_graph_gets_every_tensor(whole):
    checkpoint = open_checkpoint(whole)
    assert checkpoint.architecture == "llama" and checkpoint.eos_token_ids == (2, 3)
    assert checkpoint.chat_template == "{{ messages }}"
    assert "1 skills and 1 task masks" in " ".join(checkpoint.notes)
    assert set(checkpoint.tensor_names) == set(values_of())


def test_flipped_bytes_are_found_where_they_are(whole):
    data = whole.read_bytes()
    with open_cmf(whole) as file:
        part, entry = file.entries["model.layers.0.mlp.up_proj.weight"]
        at = part.envelope.place("data")[0] + entry.offset
    changed = write(whole.with_name("c.cmf"), data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    with open_cmf(changed) as file:
        (problem,) = file.problems()
    assert "mlp.up_proj.weight" in problem
    text = data.replace(b'"arch_name":"llama"', b'"arch_name":"lamma"')
    with open_cmf(write(changed, text)) as file:
        (problem,) = file.problems()
    assert "the header differs" in problem
    text = data.replace(b'{"version": "1.0"}', b'{"version": "1.1"}')
    with open_cmf(write(changed, text)) as file:
        (problem,) = file.problems()
    assert "the vocabulary differs" in problem


def put(data, at, form, *numbers):
    return data[:at] + struct.pack(form, *numbers) + data[at + struct.calcsize(form) :]


def directory_at(data):
    return struct.unpack_from("<Q", data, 0x20)[0]


@pytest.mark.parametrize(
    ("change", "match", "kind"),
    [
        (lambda d: b"", "empty", FormatError),
        (lambda d: b"CMF\2" + d[4:], "no CMF file", FormatError),
        (lambda d: d[:100], "less than an envelope", FormatError),
        (lambda d: put(d, 4, "<I", 1), "CMF version 1", UnsupportedError),
        (lambda d: put(d, 12, "<I", 1 | 1 << 7), "bits 7", UnsupportedError),
        (lambda d: d[: len(d) // 2], "ends at", FormatError),
        (lambda d: put(d, 0x18, "<Q", 0), "has no header", FormatError),
        (lambda d: put(d, 0x20, "<Q", 2**64 - 8), "has its directory at", FormatError),
        (lambda d: put(d, 0x30, "<Q", 4160), "no multiple of 4096", FormatError),
        (lambda d: d.replace(b'"version":2', b'"version":3'), "the file is CMF 2", FormatError),
        (lambda d: d.replace(b'"quant_type"', b'"quant_tips"'), "quant_type", FormatError),
        (lambda d: d.replace(b"FullAttention", b"HalfAttention"), "of the type", FormatError),
        (lambda d: d.replace(b'"num_layers":1', b'"num_layers":2'), "1 layer types", FormatError),
        (lambda d: put(d, directory_at(d), "<Q", 2**64 - 1), "cannot hold", FormatError),
        (lambda d: put(d, directory_at(d) + 16, "<I", 2**32 - 1), "name lies outside", FormatError),
        (lambda d: put(d, directory_at(d) + 22, "<B", 5), "encoding 5", UnsupportedError),
        (lambda d: put(d, directory_at(d) + 22, "<B", 40), "encoding 40", UnsupportedError),
        (lambda d: put(d, directory_at(d) + 23, "<B", 7), "7 axes", FormatError),
        (lambda d: put(d, directory_at(d) + 24, "<I", 0), "axes of the sizes", FormatError),
        (lambda d: put(d, directory_at(d) + 44, "<I", 1), "axes of the sizes", FormatError),
        (lambda d: put(d, directory_at(d) + 48, "<Q", 8), "lies at 8", FormatError),
        (lambda d: put(d, directory_at(d) + 48, "<Q", 2**63), "lies at", FormatError),
        (lambda d: put(d, directory_at(d) + 56, "<Q", 1), "takes", FormatError),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(change, match, kind, whole):
    assert match in refusal(write(whole.with_name("c.cmf"), change(whole.read_bytes())), kind)


def test_names_used_twice_and_overlaps_are_refused(tmp_path):
    tensors = tensors_of(values_of(), ("f16",))
    with pytest.raises(FormatError, match="two tensors have this name"):
        b"".join(file_parts(header_of(), [*tensors, tensors[0]]))
    data = cmf_bytes(("f16",))
    first = directory_at(data) + 16
    overlapping = put(data, first + 56 + 32, "<Q", 0)
    path = write(tmp_path / "c.cmf", overlapping)
    assert "overlap" in refusal(path)
    with open_cmf(path, strict=False) as file:
        assert len(file.entries) == len(tensors)


def test_a_directory_takes_no_number_that_does_not_fit():
    entry = Entry("n" * 70000, BY_NAME["f16"], (4, 4), 0, 32, 0)
    with pytest.raises(FormatError, match="65,535"):
        pack_directory([entry])
    for shape in ((1 << 32, 1), (), (1,) * 7, (0, 3)):
        with pytest.raises(FormatError, match="one to six sizes"):
            pack_directory([Entry("n", BY_NAME["f16"], shape, 0, 32, 0)])


def test_sections_may_overlap_and_bytes_may_follow(tmp_path):
    """A file that a tensor was appended to: its data reach over the sections before it."""
    data = cmf_bytes(sections=SECTIONS)
    first, length = struct.unpack_from("<QQ", data, 0x30)
    longer = put(data, 0x38, "<Q", len(data) - first)
    with open_cmf(write(tmp_path / "m.cmf", longer + b"tail")) as file:
        assert bytes(file.vocabulary) == SECTIONS.vocabulary
        assert file.parts[0].envelope.place("data")[1] > length


def test_masks_of_another_shape_are_refused(tmp_path):
    for change, match in (
        (masks_section(layers=2), "its bits take"), (b"\1\0\0\0", "has 4 bytes"),
        (masks_section()[:60], "ends before"), (put(masks_section(), 0, "<I", 2), "describes 1"),
    ):  # fmt: skip
        path = write(tmp_path / "c.cmf", cmf_bytes(sections=TrailingSections(masks=change)))
        assert match in refusal(path)


def test_masks_have_rows_for_every_pass(tmp_path):
    arch = ARCH | {"num_loops": 3}
    sections = TrailingSections(masks=masks_section(loops=3))
    with open_cmf(write(tmp_path / "m.cmf", cmf_bytes(sections=sections, arch=arch))) as file:
        (mask,) = file.masks.masks
        assert mask.neuron_row(0, 0)[0] == 0xF7 and mask.neuron_row(0, 2)[0] == 0xFF
        assert file.parts[0].envelope.features == 1 | 2 | 4 | 32
    sections = TrailingSections(masks=masks_section())
    with open_cmf(write(tmp_path / "m.cmf", cmf_bytes(sections=sections, arch=arch))) as file:
        assert file.masks.masks[0].neuron_row(0, 2)[0] == 0xF7


def test_a_sparse_index_is_read_to_its_end():
    entry = struct.pack("<4I", 1, 0, 2, 1) + struct.pack("<HHB", 3, 4, 1) + bytes(3)
    data = np.frombuffer(struct.pack("<II", 2, 0) + 2 * entry, np.uint8)
    assert read_sparse_index(data, "x") == 2
    for cut in (4, 20, len(data) - 4):
        with pytest.raises(FormatError, match=r"ends|has 4 bytes"):
            read_sparse_index(data[:cut], "x")


def test_a_skill_alone_is_read_and_not_run(tmp_path):
    record = SKILL | {"base_dir_hash": "0" * 16, "base_arch": "llama"}
    path = write(tmp_path / "s.cmf", cmf_bytes(skills=[record]))
    with open_cmf(path) as file:
        assert file.is_skill and file.parts[0].envelope.features & 64
    with pytest.raises(UnsupportedError, match="is the skill 'chess' alone"):
        open_checkpoint(path)


@pytest.mark.parametrize(
    ("arch", "name", "match"),
    [
        ({"num_loops": 2}, "", "passed 2 times"), ({"hidden_act": "situ"}, "", "'situ'"),
        ({"mla": {"kv_lora_rank": 1, "qk_rope_head_dim": 1, "qk_nope_head_dim": 1,
                  "v_head_dim": 1}}, "", "latent attention"),
        ({"g3n": {}}, "", "Gemma 3n"), ({"embed_multiplier": 2.0}, "", "embeddings times 2"),
        ({"logit_multiplier": 0.5}, "", "factor of its logits"),
        ({}, "model.layers.0.kda_attn.q_proj.weight", "Kimi Delta"),
        ({}, "model.layers.0.mlp.gate_proj.tube1.weight", "tubes"),
    ],
)  # fmt: skip
def test_parts_that_no_family_reads_are_named(arch, name, match, tmp_path):
    tensors = tensors_of(values_of(), ("f16",))
    if name:
        tensors.append((name, "f16", (2, 2), bytes(8)))
    data = b"".join(file_parts(header_of(arch=ARCH | arch), tensors))
    with pytest.raises(UnsupportedError, match=match):
        open_checkpoint(write(tmp_path / "m.cmf", data))


def test_shards_are_one_model(tmp_path):
    tensors, count = tensors_of(values_of()), 3
    for number in range(count):
        header = header_of(shard={"no": number + 1, "count": count})
        data = b"".join(file_parts(header, tensors[number::count]))
        write(tmp_path / f"m-{number + 1:05}-of-{count:05}.cmf", data)
    first = tmp_path / "m-00001-of-00003.cmf"
    with open_cmf(first) as file:
        assert set(file.entries) == {tensor[0] for tensor in tensors}
        assert not list(file.problems())
    assert open_checkpoint(tmp_path).model_hash()
    second = tmp_path / "m-00002-of-00003.cmf"
    assert "open part 1" in refusal(second)
    kept = second.read_bytes()
    second.unlink()
    assert "1 of 3 parts are missing" in refusal(first)
    write(second, (tmp_path / "m-00003-of-00003.cmf").read_bytes())
    with pytest.raises(FormatError, match="does not say that it is part 2"):
        open_cmf(first)
    again = b"".join(file_parts(header_of(shard={"no": 2, "count": 3}), tensors[0::3]))
    write(second, again)
    with pytest.raises(FormatError, match="is also in another part"):
        open_cmf(first)
    write(second, kept)
    assert "is part 1 of 3" in refusal(write(tmp_path / "other.cmf", first.read_bytes()))


def test_a_header_of_other_types_is_refused_by_its_field(tmp_path):
    for field, value in (
        ("hidden_size", "64"), ("hidden_size", -1), ("rms_norm_eps", float("nan")),
        ("layer_types", {"a": 1}), ("yarn", {"factor": 2.0}), ("moe", 3),
        ("tie_word_embeddings", 1),
    ):  # fmt: skip
        path = write(tmp_path / "m.cmf", cmf_bytes(arch=ARCH | {field: value}))
        assert f"arch.{field}" in refusal(path)
    assert "is not an object" not in refusal(write(path, cmf_bytes(arch=[])))


def test_envelopes_are_read_without_looking_at_the_rest():
    with pytest.raises(FormatError, match="no CMF file"):
        read_envelope(b"GGUF" + bytes(124), 128, "x")


def read(path, strict=True):
    """Open a file, decode every tensor and look at every mask, as running it would."""
    with open_cmf(path, strict) as file:
        for name, (_, entry) in file.entries.items():
            if entry.dtype.decodes:
                tensor = file.tensor(name)
                rows = getattr(tensor, "make", None)
                made = tensor.raw if rows is None else rows(0, tensor.height)
                assert made.nbytes <= 1 << 24
        for mask in file.masks.masks:
            mask.neuron_row(0)
        list(file.problems())
    open_checkpoint(path, strict)


PIECES = [
    b"CMF\x01", b"\x00" * 8, b"\xff" * 8, b"\x05\x00\x00\x00", b'"num_layers":', b"null", b"[]",
    json.dumps(SKILL).encode(), b"skill.chess.", *(bytes([n, 2]) for n in range(18)),
]  # fmt: skip


def small_file():
    """A file of a tensor in each encoding, little beside its header and directory."""
    values = np.random.default_rng(0).standard_normal((2, 32)).astype(np.float32)
    tensors = [(f"t.{dtype}", dtype, (2, 32), encode(dtype, values)) for dtype in MIXED]
    return b"".join(file_parts(header_of(skills=[SKILL]), tensors, SECTIONS))


def test_mutated_files_are_refused_by_name_in_little_memory(tmp_path):
    seeds, turns = [small_file(), small_file(), cmf_bytes(sections=SECTIONS)], cycle((True, False))
    with memory_limit(192):
        found = Counter(
            outcomes(seeds, tmp_path / "m.cmf", lambda path: read(path, next(turns)), PIECES)
        )
    assert min(found["FormatError"], found["read"]) > 50 and found["UnsupportedError"], found
