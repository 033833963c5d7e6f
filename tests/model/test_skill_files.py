"""Skills of fine-tuned folders, applied, and switched in mid-text on a published model."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import transformers
from checkpoints import case, draw_weights
from click.testing import CliRunner
from masked import loaded_plugins

import cortiq
from cortiq.errors import FormatError, UnsupportedError
from cortiq.model.source import open_source
from cortiq.numerics.contract import F32
from cortiq.numerics.weights import weight_values
from cortiq.options import LoadOptions
from cortiq_skills.applying import apply_skill
from cortiq_skills.commands import skill as command
from cortiq_skills.donors import weights_of
from cortiq_skills.files import read_skill, write_skill
from cortiq_skills.record import SkillRecord, TaskSkill
from cortiq_skills.switching import PlannedSwitches, generate_switching

IDS = [3, 7, 11, 50, 9, 2]
SIZES = {"hidden_size": 48, "intermediate_size": 64}


@pytest.fixture(scope="module", autouse=True)
def plugin():
    with loaded_plugins(skills="cortiq_skills"):
        yield


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A model, and one whose feed-forward parts and one q were trained further."""
    folder = tmp_path_factory.mktemp("models")
    torch.manual_seed(5)
    config = case("llama", "LlamaConfig", SIZES).build()
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    draw_weights(model)
    model.save_pretrained(folder / "base")
    with torch.no_grad():
        for layer in model.model.layers:
            for part in (layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj):
                part.weight += 0.3 * torch.randn_like(part.weight) * part.weight.std()
        model.model.layers[0].self_attn.q_proj.weight *= 1.5
    model.save_pretrained(folder / "tuned")
    return folder


def run(*arguments):
    done = CliRunner().invoke(command, [*map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def digests(path, adapter=None, **options):
    given = [] if adapter is None else [f"x={adapter}"]
    with cortiq.load(path, backend="cpu", adapters=given, **options) as model:
        chosen = None if adapter is None else "x"
        made = model.generate(IDS, max_tokens=3, ignore_eos=True, temperature=0, adapter=chosen)
        return made.step_digests


@pytest.mark.parametrize("layout", ["w8", "w16", "f32"])
def test_an_exported_skill_makes_the_base_the_specialist(layout, folders, tmp_path):
    base, tuned = folders / "base", folders / "tuned"
    run("export", base, tuned, tmp_path / "s.skill")
    made = read_skill(tmp_path / "s.skill")
    assert len(made.weights) == 7 and made.record.base
    want = digests(tuned, weight_format=layout)
    assert digests(base, tmp_path / "s.skill", weight_format=layout) == want
    applied = apply_skill(str(base), tmp_path / "s.skill", tmp_path / "out").path
    assert digests(applied, weight_format=layout) == want != digests(base, weight_format=layout)
    model = transformers.AutoModelForCausalLM.from_pretrained(applied)
    other = transformers.AutoModelForCausalLM.from_pretrained(tuned)
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one.float(), two.float())


def test_a_bound_skill_is_for_its_model_only(folders, tmp_path):
    base, tuned = folders / "base", folders / "tuned"
    run("export", base, tuned, tmp_path / "s.skill")
    with pytest.raises(FormatError, match="bound to the model"):
        digests(tuned, tmp_path / "s.skill")
    with pytest.raises(FormatError, match="bound to the model"):
        apply_skill(str(tuned), tmp_path / "s.skill", tmp_path / "no")
    run("apply", tuned, tmp_path / "s.skill", tmp_path / "forced", "--force")
    assert digests(tmp_path / "forced") == digests(tuned)
    name = "model.layers.0.mlp.down_proj.weight"
    change = TaskSkill(SkillRecord("d"), {("delta", name): np.ones((48, 64), F32)})
    write_skill(tmp_path / "d.skill", change)
    with pytest.raises(UnsupportedError, match="holds changes"):
        apply_skill(str(base), tmp_path / "d.skill", tmp_path / "no")


def test_commands_add_list_and_route(folders, tmp_path):
    base, tuned = folders / "base", folders / "tuned"
    assert "6 matrices of layers 0,1" in run("add", base, tuned, tmp_path / "a.skill")
    shown = run("list", tmp_path / "a.skill")
    assert "routable" in shown and "0,1" in shown and "patent" in shown
    assert run("add", base, tuned, tmp_path / "b.skill", "--layers", "1", "--tensors", "all")
    assert read_skill(tmp_path / "b.skill").layers == [1]
    names = ("one", "two")
    texts = {
        "one": ["aaaa bbb", "aaa bbbb", "aabb", "ab aab"],
        "two": ["9 87", "8 77 6", "97", "5"],
    }
    model = "synthetic:tiny-llama?seed=1"
    donor = "synthetic:tiny-llama?seed=2"
    for name in names:
        prompts = tmp_path / f"{name}.txt"
        prompts.write_text("\n".join(texts[name]))
        run("add", model, donor, tmp_path / f"{name}.skill", "--prompts", prompts, "--rank", "1")
        chosen = read_skill(tmp_path / f"{name}.skill").selection
        assert chosen.layer == 2 and chosen.basis.shape == (1, 64) and len(chosen.holdout) == 1
    files = [tmp_path / f"{name}.skill" for name in names]
    for name in names:
        found = run("route", model, *files, "-p", texts[name][0], "--ood", tmp_path / "ood")
        assert f"\n{name}, " in found
    far = run("route", model, *files, "-p", "ZZZ???", "--ood", tmp_path / "ood")
    if "novel" in far.splitlines()[-1]:
        lines = (tmp_path / "ood/buffer.jsonl").read_text().splitlines()
        assert json.loads(lines[-1])["text"] == "ZZZ???"


@pytest.mark.slow
def test_a_skill_switched_in_mid_text_on_gemma(gemma3_path, tmp_path):
    """A minute: Gemma 3 270M is loaded in w8, and three texts are computed twice."""
    name, options = str(gemma3_path), {"weight_format": "w8", "context": 256}
    source = open_source(name, LoadOptions(**options))
    tensors = {}
    random = np.random.default_rng(1)
    for weight in weights_of(source.program, "ffn", "9-13"):
        values = weight_values(source.weights[weight], weight)
        noise = random.normal(size=values.shape).astype(F32)
        tensors["replace", weight] = values + F32(0.5) * values.std() * noise
    write_skill(tmp_path / "s.skill", TaskSkill(SkillRecord("s"), tensors))
    plan = PlannedSwitches({6: "s", 14: None})
    with cortiq.load(
        name, backend="cpu", adapters=[f"s={tmp_path / 's.skill'}"], **options
    ) as model:
        ids = model.tokenizer.encode("The capital of France is", add_bos=True)
        made = generate_switching(model, ids, plan, max_tokens=20, ignore_eos=True)

        def written(prompt, count, adapter=None):
            given = {"max_tokens": count, "ignore_eos": True, "temperature": 0, "adapter": adapter}
            return list(model.generate(prompt, **given).token_ids)

        want = written(ids, 6)
        want += written([*ids, *want], 8, "s")
        want += written([*ids, *want], 6)
        assert list(made.token_ids) == want
        assert want != written(ids, 20)
