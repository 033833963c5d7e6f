"""Dory: names of its files, blocks listed one by one, rows of every pass."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers")

from checkpoints import write
from families_looped import DORY
from family_harness import changed, distance, logits_of
from safetensors.numpy import load_file, save_file

from cortiq.errors import FormatError
from cortiq.formats.checkpoint import open_checkpoint
from cortiq.models import load_program

RENAMED = {
    "published": [
        ("layers.N.self_attn.", "layers.A.mixer."), ("layers.N.mlp.", "layers.M.mixer."),
        ("layers.N.lambda_1", "layers.A.attn_alpha"), ("layers.N.lambda_2", "layers.M.mlp_alpha"),
    ],
    "of transformers' modules": [
        ("backbone.embeddings.", "model.embed_tokens."),
        ("backbone.layers.N.self_attn.g_proj", "model.layers.N.self_attn.gate_proj"),
        ("backbone.", "model."),
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return write(DORY.case("switched"), tmp_path_factory.mktemp("dory"))


@pytest.mark.parametrize("form", RENAMED)
def test_names_of_every_form_are_read(form, written, tmp_path):
    tensors = {}
    for name, values in load_file(written.folder / "model.safetensors").items():
        layer = next((n for n in range(3) if f"layers.{n}." in name), 0)
        for old, new in RENAMED[form]:
            blocks = (
                new.replace("N", str(layer))
                .replace("A", str(2 * layer))
                .replace("M", str(2 * layer + 1))
            )
            if (found := old.replace("N", str(layer))) in name:
                name = name.replace(found, blocks)
                break
        tensors[name] = values
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((written.folder / "config.json").read_bytes())
    assert distance(logits_of(open_checkpoint(tmp_path), written.tokens), written.logits) < 1e-5


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"n_input_layers": 1}, "no pairs"), ({"n_output_layers": 4}, "are not 3"),
     ({"initializer_range": 0.0}, "is 0"), ({"n_recurrent_loops": 0}, "n_recurrent_loops"),
     ({"n_recurrent_loops": 4000}, "passed 4000 times"),
     ({"layer_types": ["mlp", "full_attention"] * 3}, "no pairs")],
)  # fmt: skip
def test_parts_that_do_not_add_up_are_refused(changes, words, written):
    with pytest.raises(FormatError, match=words):
        load_program(changed(open_checkpoint(written.folder), changes))


def test_every_pass_keeps_rows_of_its_own(written):
    program = load_program(open_checkpoint(written.folder)).program
    slots = {name for node in program.trunk.nodes for name in node.slots.values()}
    assert len(slots) == program.facts["layers"] == 3 * 2 + 1
