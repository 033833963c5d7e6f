"""Draft heads of GGUF files: `blk.N.nextn.*` after the trunk's blocks, as llama.cpp writes them."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

pytest.importorskip("transformers")
pytest.importorskip("gguf")

import checkpoints
import numpy as np
import safetensors.torch
import torch
from families_experts import DEEPSEEK_V3, GLM4_MOE
from families_hybrid import NEMOTRON_FILES, QWEN3_5, QWEN3_5_MOE, QWEN3_NEXT
from families_mixed import MIMO
from family_harness import distance
from gguf_files import write_gguf
from head_folders import FILES, QWEN, Folder

import cortiq
from cortiq.backend import Batch, CompileOptions, Named, Row
from cortiq.errors import CortiqError
from cortiq.formats.checkpoint import open_checkpoint
from cortiq.ir import primitives_of
from cortiq.model.source import open_sidecar
from cortiq.models import load_program
from cortiq_cpu.backend import CpuBackend
from cortiq_reference.ideal import evaluate

WRITERS = {
    "Qwen3_5TextConfig": QWEN3_5, "Qwen3_5MoeTextConfig": QWEN3_5_MOE,
    "Qwen3NextConfig": QWEN3_NEXT, "Glm4MoeConfig": GLM4_MOE, "DeepseekV3Config": DEEPSEEK_V3,
    "MiMoV2FlashConfig": MIMO,
}  # fmt: skip
JOINTS = {"fc": "eh_proj", "pre_fc_norm_embedding": "enorm", "pre_fc_norm_hidden": "hnorm",
          "norm": "shared_head.norm"}  # fmt: skip
"""llama.cpp's converter calls Qwen's tensors so before it looks them up."""


def moved(name, trunk):
    """A module's tensor as one of a layer after the trunk's."""
    if match := re.fullmatch(r"(?:model\.)?mtp\.layers\.(\d+)\.(.+)", name):
        return f"model.layers.{trunk + int(match[1])}.{match[2]}"
    if match := re.fullmatch(r"mtp\.(\w+)\.weight", name):
        return f"model.layers.{trunk}.{JOINTS[match[1]]}.weight"
    return name


class Written:
    """A folder with a head, and the same as GGUF files."""

    def __init__(self, name, folder):
        self.source, (self.how,) = Folder(name, folder / "hf"), WRITERS[name].gguf
        self.folder, self.trunk = folder, self.source.trunk
        self.drafts = len(self.source.layers)
        self.converted = folder / "converted"
        self.converted.mkdir()
        tensors = {moved(n, self.trunk): t for n, t in self.source.tensors.items()}
        safetensors.torch.save_file(tensors, self.converted / "model.safetensors")
        config = json.loads((self.source.folder / "config.json").read_text())
        config["num_hidden_layers"] += self.drafts
        for key in ("layer_types", "mlp_layer_types"):
            if config.get(key):  # the draft layers of MiMo V2 have a window
                more = "sliding_attention" if key == "layer_types" else "dense"
                config[key] = [*config[key], *[more] * self.drafts]
        (self.converted / "config.json").write_text(json.dumps(config))

    def write(self, path, change=None):
        """A file of everything; `change` edits metadata and tensors."""

        def edit(values, tensors):
            values["block_count"] = self.trunk + self.drafts
            values["nextn_predict_layers"] = self.drafts
            if change:
                change(values, tensors)

        write_gguf(path, self.converted, replace(self.how, extra=lambda config: {}), edit)
        return path

    def of_head(self, name):
        return (match := re.match(r"blk\.(\d+)\.", name)) and int(match[1]) >= self.trunk


@pytest.fixture(scope="module", params=WRITERS)
def written(request, tmp_path_factory):
    if request.param not in FILES:
        options = FILES["Qwen3NextConfig"][0] | {"intermediate_size": 64}
        FILES[request.param] = options, *QWEN, "chain", "hidden"
    return Written(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def whole(written):
    return written.write(written.folder / "whole.gguf")


def opened(path, heads="auto", layout="f32"):
    checkpoint = open_checkpoint(path)
    side = open_sidecar(checkpoint, heads)
    return load_program(checkpoint, heads=heads, weight_format=layout, sidecar=side)


def hidden_rows(loaded, ids):
    """Record every module's inputs, in float64."""
    head = loaded.program.facts["draft_head"]
    return evaluate(loaded.program, loaded.weights, ids, [head.source])[head.source]


def test_the_head_of_a_file_is_what_transformers_makes_of_it(written, whole):
    loaded, source = opened(whole), written.source
    head = loaded.program.facts["draft_head"]
    assert (head.style, head.source) == (source.style, source.source)
    assert len(head.entries) == written.drafts
    ids = np.random.default_rng(3).integers(0, 96, 20)
    hidden = hidden_rows(loaded, ids)
    for k, entry in enumerate(head.entries):
        rows = len(ids) - 1 - k
        graph = primitives_of(loaded.program).graphs[entry]
        given = {"recalled": hidden[:rows].reshape(-1, *graph.values["recalled"].shape)}
        wants = ["logits", f"{entry}.out", head.output(k)]
        ours = evaluate(loaded.program, loaded.weights, ids[k + 1 :], wants, entry, given)
        with torch.no_grad():
            out, logits = source.module(k, ids[k + 1 :], hidden[:rows])
        assert distance(ours[f"{entry}.out"], out) < 1e-5
        assert distance(ours["logits"], logits) < 1e-5
        if head.style == "cascade":
            hidden = ours[head.output(k)]


def bits_of(loaded, ids):
    """Logits of every module on the CPU backend, each given the same hidden rows."""
    options = CompileOptions(threads=1)
    executable = CpuBackend().compile(loaded.program, loaded.weights, options)
    state, found = executable.open(40), []
    for entry in loaded.program.facts["draft_head"].entries:
        shape = loaded.program.graphs[entry].values["recalled"].shape
        rows = np.random.default_rng(8).normal(size=(len(ids), *shape)).astype(np.float32)
        wants = (Named("logits"), Named(f"{entry}.out"))
        batch = [Row(state, i, t, wants, {"recalled": rows[i]}) for i, t in enumerate(ids)]
        result = executable.forward(Batch(batch, entry)).result()
        found += [row[want].tobytes() for row in result.rows for want in wants]
    executable.close()
    return found


@pytest.mark.parametrize("layout", ["w16", "f32"])
def test_folder_and_file_have_the_same_bits(written, whole, layout):
    ids = [(11 * i + 5) % 96 for i in range(12)]
    folder = opened(written.source.folder, layout=layout)
    assert bits_of(folder, ids) == bits_of(opened(whole, layout=layout), ids)


def test_the_trunk_is_the_same_without_a_head(written, whole):
    bare, headed = opened(whole, "off"), opened(whole)
    ids = [5, 17, 40, 3, 88]
    one, two = (evaluate(p.program, p.weights, ids, ["logits"])["logits"] for p in (bare, headed))
    assert (one == two).all()
    assert set(bare.program.graphs) == {"trunk"} and bare.program.facts["layers"] == written.trunk


def test_a_file_beside_the_model_is_the_head_inside_it(written, whole, tmp_path):
    """llama.cpp writes a head by itself with the model's table, head and last norm."""

    def bare(values, tensors):
        values["block_count"] = written.trunk
        del values["nextn_predict_layers"]
        for name in [n for n in tensors if written.of_head(n)]:
            del tensors[name]

    def alone(values, tensors):
        for name in [n for n in tensors if n.startswith("blk.") and not written.of_head(n)]:
            del tensors[name]

    main = written.write(tmp_path / "model.gguf", bare)
    assert set(opened(main).program.graphs) == {"trunk"}
    written.write(tmp_path / "model.mtp.gguf", alone)
    assert opened(main).program == opened(whole).program
    assert opened(main, "off").program == opened(whole, "off").program

    def foreign(values, tensors):
        alone(values, tensors)
        values["block_count"] += 1

    written.write(tmp_path / "model.mtp.gguf", foreign)
    with pytest.raises(CortiqError, match=r"its num_hidden_layers is 3, the model's 2"):
        opened(main)


def test_a_stack_with_fused_projections_has_the_same_bits(tmp_path):
    """MiMo V2.5 holds q, k and v of a layer as one tensor, in its draft layers too."""
    mimo = Written("MiMoV2FlashConfig", tmp_path)

    def fused(values, tensors):
        for layer in range(5):
            parts = [tensors.pop(f"blk.{layer}.attn_{part}.weight") for part in "qkv"]
            tensors[f"blk.{layer}.attn_qkv.weight"] = np.concatenate(parts)

    ids = [(11 * i + 5) % 96 for i in range(12)]
    apart = opened(mimo.write(tmp_path / "apart.gguf"), layout="w16")
    assert bits_of(apart, ids) == bits_of(
        opened(mimo.write(tmp_path / "fused.gguf", fused), layout="w16"), ids
    )


def removed(name):
    return lambda values, tensors: tensors.pop(name)


def narrow(values, tensors):
    tensors["blk.2.nextn.eh_proj.weight"] = tensors["blk.2.nextn.eh_proj.weight"][:, :48]


def too_many(values, tensors):
    values["nextn_predict_layers"] = values["block_count"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (removed("blk.2.nextn.hnorm.weight"), r"blk\.2\.nextn\.hnorm\.weight \[48\] is missing"),
        (removed("blk.2.attn_norm.weight"), r"like no layer.*blk\.2\.attn_norm\.weight \[48\]"),
        (narrow, r"blk\.2\.nextn\.eh_proj\.weight is \[48, 48\], should be \[48, 96\]"),
        (too_many, r"has \d layers, of which \d draft"),
    ],
    ids=["joint", "block", "shape", "count"],
)  # fmt: skip
def test_what_a_head_lacks_is_said_by_its_name_in_the_file(change, words, written, tmp_path):
    with pytest.raises(CortiqError) as raised:
        opened(written.write(tmp_path / "model.gguf", change))
    assert re.search(words, str(raised.value), re.DOTALL)


@pytest.fixture(scope="module")
def glm(tmp_path_factory):
    return Written("Glm4MoeConfig", tmp_path_factory.mktemp("glm"))


OWN = {"blk.2.nextn.embed_tokens.weight": "token_embd.weight",
       "blk.2.nextn.shared_head_head.weight": "output.weight"}  # fmt: skip


def test_a_copy_of_the_trunk_s_table_or_head_is_not_kept_twice(glm, tmp_path):
    plain = opened(glm.write(tmp_path / "plain.gguf"))

    def copies(values, tensors):
        tensors |= {name: tensors[trunk] for name, trunk in OWN.items()}

    assert opened(glm.write(tmp_path / "copies.gguf", copies)).program == plain.program


def test_a_module_s_own_table_and_head_are_used(glm, tmp_path):
    drawn = torch.Generator().manual_seed(9)
    own = {name: torch.randn(96, 48, generator=drawn) for name in OWN}
    path = glm.write(
        tmp_path / "own.gguf",
        lambda values, tensors: tensors.update({n: t.numpy() for n, t in own.items()}),
    )
    loaded, ids = opened(path), np.arange(10)
    hidden = hidden_rows(loaded, ids)[:-1]
    graph = primitives_of(loaded.program).graphs["mtp"]
    given = {"recalled": hidden.reshape(-1, *graph.values["recalled"].shape)}
    ours = evaluate(loaded.program, loaded.weights, ids[1:], ["logits"], "mtp", given)["logits"]
    model = glm.source.model
    kept = model.model.embed_tokens.weight.data, model.lm_head.weight.data
    table, head = (t.double() for t in own.values())
    model.model.embed_tokens.weight.data, model.lm_head.weight.data = table, head
    try:
        _, logits = glm.source.module(0, ids[1:], hidden)
    finally:
        model.model.embed_tokens.weight.data, model.lm_head.weight.data = kept
    assert distance(ours, logits) < 1e-5


def test_a_file_whose_layers_are_one_mixer_each_is_read_without_its_head(tmp_path):
    """llama.cpp writes Nemotron H's head as one block that attends and has experts."""
    family = next(f for f in NEMOTRON_FILES if f.title.endswith("moe"))
    model = checkpoints.write(family.case("wide"), tmp_path / "hf")

    def change(values, tensors):
        values |= {"block_count": 5, "nextn_predict_layers": 1}
        values["attention.head_count_kv"].append(max(values["attention.head_count_kv"]))
        values["feed_forward_length"].append(max(values["feed_forward_length"]))
        width = len(tensors["output_norm.weight"])
        tensors["blk.4.nextn.eh_proj.weight"] = np.ones((width, 2 * width), np.float32)
        tensors["blk.4.attn_norm.weight"] = tensors["blk.1.attn_norm.weight"]

    write_gguf(tmp_path / "model.gguf", model.folder, family.gguf[0], change)
    for heads in ("off", "auto"):
        loaded = opened(tmp_path / "model.gguf", heads)
        logits = evaluate(loaded.program, loaded.weights, model.tokens, ["logits"])["logits"]
        assert distance(logits, model.logits) < 1e-5 and set(loaded.program.graphs) == {"trunk"}
    with pytest.raises(CortiqError, match="of one mixer each") as raised:
        opened(tmp_path / "model.gguf", "mtp")
    assert "blk.4.nextn.eh_proj.weight" in str(raised.value)


def test_a_file_s_head_drafts_and_changes_no_token(glm, tmp_path):
    path = glm.write(tmp_path / "model.gguf")
    with cortiq.load(path, backend="cpu", threads=1, heads="auto") as model:
        plain = model.generate([5, 9, 11, 80, 7], max_tokens=16)
        drafted = model.generate([5, 9, 11, 80, 7], max_tokens=16, draft="mtp", draft_depth=3)
    assert drafted.token_ids == plain.token_ids
    assert plain.stats.drafts.drafted == 0 < drafted.stats.drafts.drafted
