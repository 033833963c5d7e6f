"""Conversion to CMF and back: bits, families, shards, signatures, interruptions."""

from __future__ import annotations

import json
import re
import shutil
import struct
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from converted import assert_same_weights, opened, write_model
from safetensors.numpy import save

import cortiq
from cortiq.cli.main import cli
from cortiq.convert.cmf_arch import arch_of, check_arch
from cortiq.convert.cmf_plan import DELICATE, _parts, is_matrix
from cortiq.convert.requant import requantise
from cortiq.convert.run import Calibration, convert_model
from cortiq.errors import FormatError, RequestError, UnsupportedError
from cortiq.formats.cmf.reader import open_cmf
from cortiq.formats.cmf.writer import TrailingSections, file_parts
from cortiq.models.config import config_from_json
from cortiq.models.synthetic_configs import CONFIGS, MINI
from cortiq.models.weight_rules import delicate_names, matrix_names
from cortiq.numerics.layouts import Weight
from cortiq.numerics.weights import weight_values
from tests.fuzz.small_folder import byte_level_json

FAMILIES = {
    "qwen2": "qwen2", "qwen3": "qwen3", "gemma2": "gemma2", "qwen2_moe": "qwen2_moe",
    "qwen3_moe": "qwen3_moe", "lfm2_moe": "lfm2_moe", "qwen3_5_text": "qwen3_5",
    "qwen3_5_moe_text": "qwen3_5_moe", "gemma": "gemma", "gemma3_text": "gemma3", "lfm2": "lfm2",
}  # fmt: skip
"""Families by the `model_type` of a small configuration."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder of Llama whose rotary embedding CMF can describe."""
    path = tmp_path_factory.mktemp("source") / "model"
    write_model("folder", path)
    config = json.loads((path / "config.json").read_text())
    config.pop("rope_scaling")
    (path / "config.json").write_text(json.dumps(config))
    return path


@pytest.fixture(scope="module")
def gguf_model(tmp_path_factory):
    path = Path(write_model("gguf", tmp_path_factory.mktemp("gguf") / "model"))
    key = b"llama.rope.scaling.factor" + struct.pack("<I", 6)
    for file in path.glob("*.gguf"):  # a factor of 1 is none
        data = file.read_bytes().replace(key + struct.pack("<f", 2), key + struct.pack("<f", 1))
        assert key in data
        file.write_bytes(data)
    return str(path)


def test_floats_go_there_and_back_without_a_bit_changed(folder, tmp_path):
    made = convert_model(str(folder), tmp_path / "m.cmf", "f32", tensors=["*=f32"])
    assert_same_weights(opened(folder, weight_format="w16"), opened(made.path, weight_format="w16"))
    back = convert_model(str(made.path), tmp_path / "back", "keep")
    assert_same_weights(opened(folder, weight_format="w16"), opened(back.path, weight_format="w16"))
    one, other = opened(folder), opened(made.path)
    assert one.program.graphs == other.program.graphs
    assert one.tokenizer.encode("a test: 12 words") == other.tokenizer.encode("a test: 12 words")
    assert one.tokenizer.eos_ids == other.tokenizer.eos_ids


def test_pairs_of_rows_of_gguf_files_are_put_apart(gguf_model, tmp_path, monkeypatch):
    """The graph of the new file turns halves of a head, that of the old one neighbours."""
    with pytest.raises(UnsupportedError, match="of the kind 'llama'"):
        convert_model(gguf_model, tmp_path / "m.cmf", "w8")
    monkeypatch.setattr("cortiq.convert.cmf_container.tokenizer_json", lambda checkpoint: b"")
    made = convert_model(gguf_model, tmp_path / "m.cmf", "f32", tensors=["*=f32"])
    old, new = opened(gguf_model, weight_format="f32"), opened(made.path, weight_format="f32")
    name = "model.layers.0.self_attn.q_proj.weight"
    before, after = (weight_values(s.weights[name], name) for s in (old, new))
    heads = before.reshape(4, -1, before.shape[1])
    apart = np.concatenate([heads[:, 0::2], heads[:, 1::2]], axis=1)
    assert np.array_equal(after, apart.reshape(after.shape))
    name = "model.layers.0.self_attn.v_proj.weight"
    assert np.array_equal(*(weight_values(s.weights[name], name) for s in (old, new)))


@pytest.mark.parametrize("recipe", ["w4", "w8", "q4tp", "q2tp", "vbit_ro", "q1s", "q8_2f"])
def test_every_recipe_opens_verifies_and_says_what_it_is(recipe, folder, tmp_path):
    made = convert_model(str(folder), tmp_path / "m.cmf", recipe)
    with open_cmf(made.path) as file:
        assert not list(file.problems())
        said = file.header.raw["cortiq"]["sha256"]
        assert set(said) == set(file.entries) and "0" * 64 not in said.values()
    source = opened(made.path)
    assert source.program.weights


@pytest.mark.parametrize("recipe", ["w4", "q4_block", "q4tp", "vbit_ro"])
def test_codes_are_chosen_on_a_text_from_a_folder_and_from_a_file(recipe, folder, tmp_path):
    text = tmp_path / "text"
    text.write_text("the quick brown fox jumps over it, and so on. " * 20)
    file = convert_model(str(folder), tmp_path / "f.cmf", "f32", tensors=["*=f32"]).path
    found = []
    for number, source in enumerate((folder, file)):
        for calibration in (None, Calibration(text)):
            out = tmp_path / f"{number}{calibration is None}.cmf"
            made = convert_model(str(source), out, recipe, calibration=calibration)
            with open_cmf(made.path) as held:
                assert not list(held.problems())
                found.append({n: bytes(part.payload(e)) for n, (part, e) in held.entries.items()})
    plain, fed, recoded, fed_again = found
    assert plain == recoded and fed == fed_again
    differing = {name for name in plain if plain[name] != fed[name]}
    assert differing and all("_proj" in name for name in differing)


def test_a_text_that_decides_no_code_is_refused(folder, tmp_path):
    text = tmp_path / "text"
    text.write_text("the quick brown fox jumps over it, and so on. " * 20)
    given = {"calibration": Calibration(text)}
    for recipe, tensors in (("w8", ()), ("q1t", ()), ("w4", ["*=q8_row"])):
        with pytest.raises(RequestError, match=f"no matrix gets codes .*{recipe}"):
            convert_model(str(folder), tmp_path / "m.cmf", recipe, tensors=tensors, **given)
    assert not (tmp_path / "m.cmf").exists()


@pytest.mark.parametrize("kind", FAMILIES)
def test_headers_describe_the_graphs_of_families(kind):
    """What is read of the header builds the same graph; one size changed, and it is refused."""
    module = import_module(f"cortiq.models.{FAMILIES[kind]}")
    tiny = {"gemma3_text": CONFIGS["tiny-gemma3"], "lfm2": CONFIGS["tiny-lfm2"]}
    given = {"gemma": MINI["gemma2"], **tiny, **MINI}[kind]
    given = {k: v for k, v in given.items() if kind != "gemma" or k in module.Config.__annotations__
             or not k.startswith(("query", "sliding"))}  # fmt: skip
    config = config_from_json(module.Config, module.KEYS, given | {"model_type": kind}, where="x")
    program = module.build(config, config.max_position_embeddings)
    shapes = {}
    for name, spec in program.weights.items():
        weight = Weight.from_floats(np.zeros((int(np.prod(spec.shape[:-1])), 1), np.float32))
        for own, _, shape in _parts(FAMILIES[kind], name, spec.shape, weight):
            shapes[own] = shape
    _names_tell_what_graphs_do(program, FAMILIES[kind])
    arch = arch_of(FAMILIES[kind], config)
    check_arch(arch, shapes, FAMILIES[kind], config)
    with pytest.raises(UnsupportedError):
        check_arch(arch | {"rope_theta": 12345.0}, shapes, FAMILIES[kind], config)


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("tiny-gemma3", {"rope_theta": 5e5, "rope_local_base_freq": 2e4}),
        ("tiny-lfm2", {"block_auto_adjust_ff_dim": True, "block_multiple_of": 32,
                       "conv_bias": True}),
    ],
)  # fmt: skip
def test_a_file_holds_what_the_folder_does(name, more, tmp_path):
    """Through a file and back: the same weights, graphs and tokens."""
    kind, given = CONFIGS[name]["model_type"], {**CONFIGS[name], **more}
    module = import_module(f"cortiq.models.{FAMILIES[kind]}")
    config = config_from_json(module.Config, module.KEYS, given, where="x")
    rng, tensors = np.random.default_rng(0), {}
    for weight, spec in module.build(config, config.max_position_embeddings).weights.items():
        shape = (spec.shape[0], 1, *spec.shape[1:]) if weight.endswith("conv.conv.weight") else None
        tensors[weight] = 0.1 * rng.standard_normal(shape or spec.shape).astype(np.float32)
    source = tmp_path / "source"
    source.mkdir()
    (source / "config.json").write_text(json.dumps(given))
    (source / "model.safetensors").write_bytes(save(tensors))
    (source / "tokenizer.json").write_bytes(byte_level_json())
    made = convert_model(str(source), tmp_path / "m.cmf", "f32", tensors=["*=f32"])
    back = convert_model(str(made.path), tmp_path / "back", "keep")
    models = [opened(path, weight_format="w16") for path in (source, made.path, back.path)]
    for model in models[1:]:
        assert_same_weights(models[0], model)
        assert model.program.graphs == models[0].program.graphs
    ids = []
    for path in (source, made.path):
        with cortiq.load(str(path), backend="reference") as model:
            ids.append(model.generate([5, 9, 200, 17, 33], max_tokens=4, ignore_eos=True).digest)
    assert ids[0] == ids[1]
    _mixed_by_graph_and_by_names(source, made.path, tmp_path)


def _mixed_by_graph_and_by_names(folder, file, tmp_path):
    """Of four layers, w4-mixed gives values of attention and the last two eight bits."""
    for number, path in enumerate((folder, file)):
        asked = ["*.layers.3.self_attn.q_proj.*=vbit"]
        made = convert_model(str(path), tmp_path / f"{number}.cmf", "w4-mixed", tensors=asked)
        with open_cmf(made.path) as held:
            for name, (_, entry) in held.entries.items():
                if name.endswith("_proj.weight"):
                    fine = ".v_proj." in name or re.search(r"\.[23]\.", name)
                    wanted = "q8_row" if fine else "q4_tiled"
                    wanted = "vbit" if ".3.self_attn.q_proj." in name else wanted
                    assert entry.dtype.name == wanted, name


def _names_tell_what_graphs_do(program, family):
    """Matrices and delicate ones are those of the graph, by the format's names alone."""
    matrices, delicate = matrix_names(program), delicate_names(program)
    for name, spec in program.weights.items():
        weight = Weight.from_floats(np.zeros((int(np.prod(spec.shape[:-1])), 1), np.float32))
        for own, _, shape in _parts(family, name, spec.shape, weight):
            assert is_matrix(own, shape) == (name in matrices), own
            if name in matrices:
                assert bool(DELICATE.fullmatch(own)) == (name in delicate), own


def test_a_file_of_a_family_that_is_not_run_is_recoded(folder, tmp_path):
    """Kimi's layers passed twice: no graph, and yet copied, sharded, requantised, verified."""
    first = convert_model(str(folder), tmp_path / "a.cmf", "q4_tiled")
    with open_cmf(first.path) as file:
        tensors = [
            (name, entry.dtype.name, entry.shape, part.payload(entry).tobytes())
            for name, (part, entry) in file.entries.items()
        ]
        header = json.loads(json.dumps(file.header.raw))
        sections = TrailingSections(bytes(file.vocabulary), index=struct.pack("<II", 0, 0))
    header["arch"]["num_loops"] = 2
    header |= {"unknown": [1], "provenance": "by hand"}
    tensors.append(("model.layers.0.kda_attn.q_proj.weight", "q4_tiled", (2, 32), bytes(36)))
    left = ("skill.x.model.layers.0.mlp.up_proj.weight", "model.mtp.eh_proj.weight")
    tensors += [(name, "f16", (2, 32), bytes(128)) for name in left]
    tensors.append(("blob", "u8", (3,), b"abc"))
    odd = tmp_path / "odd.cmf"
    odd.write_bytes(b"".join(file_parts(header, tensors, sections)))
    with pytest.raises(UnsupportedError, match="Kimi Delta"):
        opened(odd)
    parts = convert_model(str(odd), tmp_path / "p.cmf", "keep", shard_bytes=4000)
    assert len(parts.files) > 2
    made, changed = requantise(str(parts.path), tmp_path / "b.cmf", "q4tp")
    assert changed == 7
    copy = convert_model(str(odd), tmp_path / "copy.cmf", "keep")
    with open_cmf(copy.path) as new:
        assert not list(new.problems()) and new.header.raw["unknown"] == [1]
        assert new.header.raw["provenance"]["source"] == "by hand"
        assert new.parts[0].envelope.place("index")[1] == 8
        for name, dtype, shape, data in tensors:
            part, entry = new.entries[name]
            assert (entry.dtype.name, entry.shape) == (dtype, shape)
            assert bytes(part.payload(entry)) == data
    eight = convert_model(str(odd), tmp_path / "w8.cmf", "w8")
    with open_cmf(eight.path) as new:
        kinds = {name: entry.dtype.name for name, (_, entry) in new.entries.items()}
    assert {kinds[name] for name in left} == {"f16"} and kinds["blob"] == "u8"
    assert kinds["model.layers.0.kda_attn.q_proj.weight"] == "q8_row"
    with open_cmf(parts.path) as new, open_cmf(made.path) as requantised:
        assert not list(new.problems()) and not list(requantised.problems())
        assert requantised.entries["model.layers.0.kda_attn.q_proj.weight"][1].dtype.name == "q4tp"
    with pytest.raises(RequestError, match="is not merged"):
        convert_model(str(odd), tmp_path / "c.cmf", "keep", lora=["adapter"])


def test_what_a_header_cannot_say_is_refused_before_anything_is_written(tmp_path):
    model = write_model("folder", tmp_path / "model")
    with pytest.raises(UnsupportedError, match="rotary embedding of the type 'linear'"):
        convert_model(model, tmp_path / "m.cmf", "w8")
    assert not (tmp_path / "m.cmf").exists()


def test_shards_hold_the_same_tensors(folder, tmp_path):
    whole = convert_model(str(folder), tmp_path / "whole.cmf", "w8")
    parts = convert_model(str(folder), tmp_path / "m.cmf", "w8", shard_bytes=8000)
    assert len(parts.files) > 2 and parts.path == parts.files[0]
    assert_same_weights(opened(whole.path), opened(parts.path))
    with open_cmf(parts.path) as file:
        assert not list(file.problems())
    one = convert_model(str(parts.path), tmp_path / "one.cmf", "keep")
    assert_same_weights(opened(whole.path), opened(one.path))


def test_requant_changes_what_it_names_and_copies_the_rest(folder, tmp_path):
    first = convert_model(str(folder), tmp_path / "a.cmf", "q4_tiled")
    made, changed = requantise(str(first.path), tmp_path / "b.cmf", "q4tp")
    with open_cmf(first.path) as old, open_cmf(made.path) as new:
        assert list(old.entries) == list(new.entries) and not list(new.problems())
        kinds = [(old.entries[n][1].dtype.name, new.entries[n][1].dtype.name) for n in old.entries]
        assert kinds.count(("q4_tiled", "q4tp")) == changed == 6
        assert {a for a, b in kinds if a == b} == {"q8_row", "f32"}
        for name, (part, entry) in old.entries.items():
            if entry.dtype.name != "q4_tiled":
                other, theirs = new.entries[name]
                assert bytes(part.payload(entry)) == bytes(other.payload(theirs))
    with pytest.raises(RequestError, match="no matrix for q4tp"):
        requantise(str(made.path), tmp_path / "c.cmf", "q4tp")


@pytest.fixture
def key(tmp_path):
    serialization = pytest.importorskip("cryptography.hazmat.primitives.serialization")
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    private, files = Ed25519PrivateKey.generate(), (tmp_path / "key.pem", tmp_path / "key.hex")
    files[0].write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )  # fmt: skip
    files[1].write_text(private.public_key().public_bytes_raw().hex())
    return files


def run(*arguments):
    made = CliRunner().invoke(cli, list(map(str, arguments)), catch_exceptions=True)
    error = "" if made.exception is None else str(made.exception)
    return made.exit_code, f"{made.output}{error}"


def test_signatures_hold_for_the_key_that_is_asked_for(folder, key, tmp_path):
    out = tmp_path / "m.cmf"
    code, _ = run("convert", folder, out, "--format", "w8", "--sign-with", key[0])
    assert code == 0 and out.with_name("m.cmf.sig").is_file()
    code, text = run("verify", out, "--key", key[1])
    assert code == 0 and "intact" in text and "SHA256:" in text
    other = tmp_path / "other.hex"
    other.write_text("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a")
    assert "another key" in run("verify", out, "--key", other)[1]
    fields = json.loads(out.with_name("m.cmf.sig").read_text())
    out.with_name("m.cmf.sig").write_text(json.dumps(fields | {"sig": "0" * 128}))
    assert "is not valid" in run("verify", out)[1]
    out.with_name("m.cmf.sig").unlink()
    code, text = run("verify", out, "--key", key[1])
    assert code == 1 and "not signed by the key" in text
    assert run("verify", out)[0] == 0


def test_verify_names_the_tensor_that_is_damaged(folder, tmp_path):
    made = convert_model(str(folder), tmp_path / "m.cmf", "w8")
    with open_cmf(made.path) as file:
        part, entry = file.entries["model.norm.weight"]
        at = part.envelope.place("data")[0] + entry.offset
    data = bytearray(made.path.read_bytes())
    data[at] ^= 1
    copy = tmp_path / "c.cmf"
    copy.write_bytes(data)
    code, text = run("verify", copy)
    assert code == 1 and "tensor 'model.norm.weight' differs from its hash" in text
    assert "a CMF file is checked by itself" in run("verify", copy, folder)[1]


def test_an_interrupted_conversion_leaves_no_file_and_goes_on(folder, tmp_path, monkeypatch):
    from cortiq.convert.work_folder import WorkFolder

    whole = convert_model(str(folder), tmp_path / "whole.cmf", "w4").path.read_bytes()
    out, write, left = tmp_path / "m.cmf", WorkFolder.write, [7]

    def stops(self, at, data):
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        write(self, at, data)

    monkeypatch.setattr(WorkFolder, "write", stops)
    with pytest.raises(KeyboardInterrupt):
        convert_model(str(folder), out, "w4")
    assert not out.exists()
    monkeypatch.undo()
    made = convert_model(str(folder), out, "w4")
    assert made.resumed and out.read_bytes() == whole


def test_a_damaged_file_is_not_converted(folder, tmp_path):
    made = convert_model(str(folder), tmp_path / "m.cmf", "w8")
    copy = Path(shutil.copy(made.path, tmp_path / "c.cmf"))
    copy.write_bytes(copy.read_bytes()[:-200])
    with pytest.raises(FormatError, match="ends at"):
        convert_model(str(copy), tmp_path / "d.cmf", "keep")
