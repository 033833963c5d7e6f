"""Conversion: what is written loads to the bits of a conversion at load; nothing is half-made."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
from click.testing import CliRunner
from converted import KINDS, assert_same_weights, opened, write_model

from cortiq.cli.main import cli
from cortiq.convert.run import convert_model
from cortiq.convert.work_folder import WorkFolder
from cortiq.errors import CortiqError, FormatError, RequestError, UnsupportedError
from cortiq.formats import own_layout
from cortiq.formats.checkpoint import open_checkpoint
from cortiq.models.weight_rules import matrix_names
from cortiq.numerics.dequantise import dequantise_codes
from cortiq.numerics.layouts import LAYOUTS, decode
from cortiq.numerics.weights import weight_values
from tests.fuzz.files import adapter_files
from tests.fuzz.packed_folders import expert_files


@pytest.fixture(scope="module", params=KINDS)
def model(request, tmp_path_factory):
    return write_model(request.param, tmp_path_factory.mktemp(request.param) / "model")


@pytest.fixture(scope="module")
def gguf_model(tmp_path_factory):
    return write_model("gguf", tmp_path_factory.mktemp("gguf") / "model")


@pytest.mark.parametrize("recipe", ["w4", "w4-5", "w8", "w8b256", "w16"])
def test_a_converted_model_is_the_one_that_is_converted_at_load(model, recipe, tmp_path):
    made = convert_model(model, tmp_path / "out", recipe)
    here, there = opened(model, weight_format=recipe), opened(made.path)
    assert_same_weights(here, there)
    assert there.tokenizer.encode("a b 1") == here.tokenizer.encode("a b 1")
    assert there.tokenizer.chat_template() == here.tokenizer.chat_template()
    assert there.eos_ids == here.eos_ids and there.program.context == here.program.context
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_kept_codes_are_the_files(model, tmp_path):
    made = convert_model(model, tmp_path / "out", "keep")
    assert_same_weights(opened(model), opened(made.path))


def test_patterns_go_before_the_recipe_and_the_last_counts(gguf_model, tmp_path):
    patterns = ["*_proj.weight=w8", "blk.0.ffn_down.weight=w16"]
    made = convert_model(gguf_model, tmp_path / "out", "w4", tensors=patterns)
    layouts = {n: s.layout for n, s in opened(made.path).program.weights.items()}
    assert layouts["model.layers.0.self_attn.q_proj.weight"] == "w8"
    assert layouts["model.layers.0.mlp.down_proj.weight"] == "w16"
    assert layouts["model.embed_tokens.weight"] == "w8"  # the recipe's, for tables
    with pytest.raises(RequestError, match="nothing_like"):
        convert_model(gguf_model, tmp_path / "other", tensors=["*nothing_like*=w8"])
    for bad in ("a=q9", "w8", "=w8"):
        with pytest.raises(RequestError, match="PATTERN=FORMAT"):
            convert_model(gguf_model, tmp_path / "other", tensors=[bad])
    with pytest.raises(RequestError, match="w4-all"):
        convert_model(gguf_model, tmp_path / "other", "w5")


def test_check_names_what_is_damaged(gguf_model, tmp_path):
    out = convert_model(gguf_model, tmp_path / "out", "w4").path

    def checked():
        return CliRunner().invoke(cli, ["inspect", str(out), "--check"])

    assert "hashes are right" in checked().output
    file = out / own_layout.WEIGHTS_FILE
    data = file.read_bytes()
    for at, name in ((len(data) - 1, "tensor"), (len(data) // 2, "tensor")):
        spoiled = bytearray(data)
        spoiled[at] ^= 1
        file.write_bytes(spoiled)
        assert name in str(checked().exception)
    file.write_bytes(data)
    header = out / own_layout.GGUF_HEADER
    header.write_bytes(header.read_bytes() + b"\0")
    assert own_layout.GGUF_HEADER in str(checked().exception)


class Stopped(KeyboardInterrupt):
    """The user's."""


def stop_after(writes, monkeypatch):
    """Interrupt a conversion at its n-th write."""
    count, write = iter(range(1000)), WorkFolder.write

    def counted(self, at, data):
        if next(count) >= writes:
            raise Stopped
        write(self, at, data)

    monkeypatch.setattr(WorkFolder, "write", counted)


@pytest.mark.parametrize("suffix", ["", ".gguf"])
def test_an_interrupted_conversion_is_no_model_and_goes_on(suffix, gguf_model, tmp_path):
    whole = convert_model(gguf_model, tmp_path / f"whole{suffix}", "w4")
    out, patch = tmp_path / f"out{suffix}", pytest.MonkeyPatch()
    with patch.context() as scope, pytest.raises(Stopped):
        stop_after(7, scope)
        convert_model(gguf_model, out, "w4")
    assert not out.exists()
    (left,) = (p for p in tmp_path.iterdir() if p.name.startswith("."))
    with pytest.raises(CortiqError):
        open_checkpoint(left)
    weights = left / "weights.part"
    spoiled = bytearray(weights.read_bytes())
    done = json.loads((left / "journal").read_text().splitlines()[0])[0]
    spoiled[next(i for i in range(len(spoiled)) if spoiled[i])] ^= 1  # of the first that is there
    weights.write_bytes(spoiled)
    again = convert_model(gguf_model, out, "w4")
    assert done and 0 < again.resumed < 7
    files = [(p if p.is_file() else p / "model.safetensors") for p in (out, whole.path)]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert not left.exists()


@pytest.mark.parametrize("module", ["own_container", "gguf_container"])
def test_a_start_that_stops_before_the_last_renaming_is_finished_by_the_next(
    module, gguf_model, tmp_path
):
    out, patch = tmp_path / f"out{'.gguf' * (module[0] == 'g')}", pytest.MonkeyPatch()

    def stops(source, to):
        raise Stopped

    with patch.context() as scope, pytest.raises(Stopped):
        scope.setattr(f"cortiq.convert.{module}.publish", stops)
        convert_model(gguf_model, out, "w4")
    assert not out.exists()
    again = convert_model(gguf_model, out, "w4")
    assert again.resumed == len(open_checkpoint(out).tensor_names)
    assert_same_weights(opened(again.path), opened(convert_model(
        gguf_model, tmp_path / f"whole{out.suffix}", "w4").path))  # fmt: skip
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([out.name, f"whole{out.suffix}"])


def test_another_recipe_begins_afresh_and_nothing_is_written_over(gguf_model, tmp_path):
    out, patch = tmp_path / "out", pytest.MonkeyPatch()
    with patch.context() as scope, pytest.raises(Stopped):
        stop_after(5, scope)
        convert_model(gguf_model, out, "w8")
    assert convert_model(gguf_model, out, "w4").resumed == 0
    assert_same_weights(opened(gguf_model, weight_format="w4"), opened(out))
    with pytest.raises(RequestError, match="is there already"):
        convert_model(gguf_model, out, "w4")


@pytest.mark.parametrize("recipe", ["w4", "w4-5", "Q4_0", "Q5_1", "Q8_0", "BF16", "keep"])
def test_gguf_files_are_read_by_the_library_of_the_format(recipe, gguf_model, tmp_path):
    made = convert_model(gguf_model, tmp_path / "out.gguf", recipe)
    reader = gguf.GGUFReader(made.path)
    before = gguf.GGUFReader(next(Path(gguf_model).glob("*.gguf")))
    old = {tensor.name: tensor for tensor in before.tensors}
    assert set(old) == {tensor.name for tensor in reader.tensors}
    with open_checkpoint_closing(made.path) as mine:
        for tensor in reader.tensors:
            values = gguf.dequantize(tensor.data, tensor.tensor_type)
            source = gguf.dequantize(old[tensor.name].data, old[tensor.name].tensor_type)
            assert np.abs(values - source).max() <= 0.15 * np.abs(source).max()
            assert mine.info(tensor.name).type == tensor.tensor_type.name
    ours = {"general.file_type", "general.quantization_version", "general.alignment"}
    for key, field in before.fields.items():
        if not key.startswith("GGUF.") and key not in ours:
            assert np.array_equal(field.contents(), reader.fields[key].contents())
    assert opened(made.path).tokenizer.encode("a b 1")


def open_checkpoint_closing(path):
    from contextlib import closing

    return closing(open_checkpoint(path))


def test_a_folder_of_ours_from_gguf_goes_back_to_gguf(gguf_model, tmp_path):
    ours = convert_model(gguf_model, tmp_path / "ours", "w8")
    back = convert_model(str(ours.path), tmp_path / "back.gguf", "F32")
    here, there = opened(ours.path), opened(back.path)
    for name, weight in there.weights.items():
        own = here.weights[name]
        values = (
            weight_values(own, name)
            if own.layout.kind == "float"
            else dequantise_codes(decode(own))
        )
        assert there.weights[name].layout.kind in ("float", "parts")
        assert weight.shape == values.shape


def test_a_model_of_a_folder_is_not_written_to_gguf(tmp_path):
    folder = write_model("folder", tmp_path / "model")
    with pytest.raises(UnsupportedError, match=r"no GGUF metadata"):
        convert_model(folder, tmp_path / "out.gguf")
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_a_disk_without_room_is_said_before_anything_is_written(gguf_model, tmp_path, monkeypatch):
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr("cortiq.convert.work_folder.shutil.disk_usage", lambda path: usage)
    with pytest.raises(CortiqError, match="1000 are free"):
        convert_model(gguf_model, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_synthetic_model_has_nothing_to_convert(tmp_path):
    with pytest.raises(RequestError, match="made by a formula"):
        convert_model("synthetic:tiny-llama", tmp_path / "out")


def test_sizes_of_blocks_are_those_of_the_layouts():
    for name, (elements, size) in own_layout.BLOCKS.items():
        if name in LAYOUTS:  # NVFP4 and Q1_0 are read in another layout
            assert (LAYOUTS[name].block, LAYOUTS[name].block_bytes) == (elements, size)
    for name, block in own_layout.ROWS.items():
        assert LAYOUTS[name].kind == "parts" and LAYOUTS[name].block == block
    known = {*own_layout.FLOATS, *own_layout.BLOCKS, *own_layout.ROWS}
    assert {layout.name for layout in LAYOUTS.values()} <= known


def described_file(path, change):
    """Rewrite the description of a folder of ours."""
    file = path / own_layout.WEIGHTS_FILE
    data = file.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    said = json.loads(header["__metadata__"]["cortiq"])
    change(said)
    header["__metadata__"]["cortiq"] = json.dumps(said)
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size :])


@pytest.mark.parametrize(("change", "match"), [
    (lambda s: s.update(version=2), "version 2"),
    (lambda s: s.update(contract=99), "version 99 of the contract"),
    (lambda s: s.update(contract="1"), "version 1"),
    (lambda s: s.pop("tensors"), "lists neither"),
    (lambda s: s.update(files={"../x": "0" * 64}), "lists neither"),
    (lambda s: s["tensors"].popitem(), "does not have"),
    (lambda s: next(iter(s["tensors"].values())).update(layout="Q9_K"), "Q9_K"),
    (lambda s: next(iter(s["tensors"].values())).update(layout="NVFP4"), "."),
    (lambda s: next(iter(s["tensors"].values())).update(shape=[1 << 50, 32]), "the shape"),
    (lambda s: next(iter(s["tensors"].values())).update(shape=[7, 32]), "should be"),
    (lambda s: next(iter(s["tensors"].values())).update(sha256={}), "no hash"),
])  # fmt: skip
def test_a_description_that_does_not_fit_is_refused(change, match, gguf_model, tmp_path):
    out = convert_model(gguf_model, tmp_path / "out", "w8").path
    described_file(out, change)
    with pytest.raises((FormatError, UnsupportedError), match=match):
        opened(out)


def test_the_command_prints_the_path_and_bytes_by_layout(gguf_model, tmp_path):
    command = ["convert", gguf_model, str(tmp_path / "out"), "--tensor", "*ffn_down*=w16"]
    done = CliRunner().invoke(cli, command)
    assert done.exit_code == 0, done.output
    assert done.stdout.strip() == str(tmp_path / "out")
    assert " in Q4_1" in done.stderr and " in w16" in done.stderr


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-mixtral"])
def test_w4_gives_tables_heads_and_routers_eight_bits(name):
    source = opened(f"synthetic:{name}?format=w4")
    layouts = {n: s.layout for n, s in source.program.weights.items()}
    fine = {n for n, layout in layouts.items() if layout == "w8"}
    routers = {f"model.layers.{i}.block_sparse_moe.gate.weight" for i in range(9)} & set(layouts)
    assert bool(routers) == (name == "tiny-mixtral")
    whole = {n for n, s in source.program.weights.items() if s.shape[-1] % 32}
    tables = {"model.embed_tokens.weight", "lm_head.weight"} & set(layouts)
    assert fine == tables | routers | (whole & matrix_names(source.program))
    assert {layouts[n] for n in matrix_names(source.program) - fine} <= {"Q4_K", "Q4_1"}


@pytest.mark.parametrize("recipe", ["w4", "w8"])
def test_experts_that_lie_apart_are_views_of_the_file_and_rows_of_one_stack(recipe, tmp_path):
    source = tmp_path / "model"
    source.mkdir()
    for name, data in expert_files().items():
        (source / name).write_bytes(data)
    made = opened(convert_model(str(source), tmp_path / "out", recipe).path)
    meant = opened(source, weight_format=recipe)
    name = "model.layers.0.block_sparse_moe.experts.w2.weight"
    stack, whole = made.weights[name], meant.weights[name]
    assert stack.shape == (64, 64)
    for start, stop in ((0, 1), (31, 33), (32, 64), (5, 5), (64, 64)):
        for part, expected in whole.rows(start, stop).parts.items():
            found = stack.rows(start, stop).parts[part]
            assert np.array_equal(found, expected)
            assert start == 31 or not found.size or not found.flags.owndata
    assert stack.nbytes == whole.nbytes


def test_adapters_are_merged_before_and_named_in_the_new_folder(tmp_path):
    source = tmp_path / "model"
    source.mkdir()
    for name, data in adapter_files().items():
        (source / name).write_bytes(data)
    command = ["convert", str(source), str(tmp_path / "out"), "--format", "w8", "--lora"]
    done = CliRunner().invoke(cli, [*command, f"{source}:0.5"])
    assert done.exit_code == 0, done.output
    made = opened(tmp_path / "out")
    merged = opened(source, weight_format="w8", lora=(f"{source}:0.5",))
    assert_same_weights(made, merged)
    plain = opened(source, weight_format="w8")
    changed = {
        name for name, weight in made.weights.items()
        if weight.layout.name == "w8"
        and not np.array_equal(weight.parts["codes"], plain.weights[name].parts["codes"])
    }  # fmt: skip
    assert changed == {"model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight"}
    rule = open_checkpoint(tmp_path / "out").own.description.rule
    assert [scale for _, scale in rule["adapters"]] == [0.5]
