"""Skills that are baked: which neurons stay, what is trained, and the model that has the result."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from checkpoints import case, draw_weights
from click.testing import CliRunner
from masked import loaded_plugins

import cortiq
from cortiq.errors import RequestError, UnsupportedError
from cortiq.numerics.contract import F32
from cortiq_skills.baking import BakeOptions, bake, keep_flags, text_windows
from cortiq_skills.commands import skill as command
from cortiq_skills.files import read_skill, write_skill
from cortiq_skills.record import SkillRecord

SIZES = {"hidden_size": 48, "intermediate_size": 64}
SMALL = BakeOptions(steps_a=60, steps_b=60, chunk=16, held=12, windows=16, align=8, aggression=400,
                    polished=1)  # fmt: skip
TEXT = [int(i) for i in 3 + (np.arange(600) * 7) % 11]
IDS = TEXT[:6]


def logits_with(alive: int, width: int, seed: int) -> np.ndarray:
    values = -1 - np.random.default_rng(seed).random(width)
    values[np.random.default_rng(seed + 1).permutation(width)[:alive]] += 5
    return values


def test_open_neurons_are_filled_up_to_whole_multiples():
    row = logits_with(40, 96, 0)
    (kept,) = keep_flags([row], 32, False)
    assert kept.sum() == 64 and kept[row > 0].all()
    closed = np.flatnonzero(row <= 0)
    best = closed[np.argsort(-row[closed])[:24]]
    assert set(np.flatnonzero(kept)) == set(np.flatnonzero(row > 0)) | set(best)
    rows = [logits_with(10, 96, 2), logits_with(70, 96, 3)]
    assert [int(k.sum()) for k in keep_flags(rows, 32, True)] == [96, 96]
    near = [logits_with(47, 48, 4)]
    assert [int(keep_flags(near, align, False)[0].sum()) for align in (32, 1)] == [48, 47]
    assert int(keep_flags([logits_with(0, 96, 5)], 32, False)[0].sum()) == 32


def test_windows_are_consecutive_and_enough():
    options = BakeOptions(chunk=4, held=12, windows=14)
    found = text_windows([list(range(60)), list(range(200, 300))], options)
    assert len(found) == 26 and found[0] == [0, 1, 2, 3] and found[14][0] == 200
    for short in ([list(range(40))], [list(range(93))]):
        with pytest.raises(RequestError, match="24 windows"):
            text_windows(short, options)
    with pytest.raises(RequestError, match="12 of them"):
        text_windows([list(range(200))], BakeOptions(chunk=4, held=20, windows=6))


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(5)
    config = case("llama", "LlamaConfig", SIZES).build()
    made = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    draw_weights(made)
    return made


@pytest.fixture(scope="module")
def baked(model):
    """Two seconds: a small model takes 120 steps and five evaluations."""
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    seen = []
    made = bake(model, [TEXT], SkillRecord("task"), SMALL, lambda *args: seen.append(args))
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())
    assert [(phase, step) for phase, step, _ in seen] == [(p, s) for p in "AB" for s in (30, 60)]
    return made


def test_the_penalty_closes_neurons_and_training_loses_less(baked):
    base, masked, polished = baked.perplexities
    kept = [int(flags.sum()) for flags in baked.keep.values()]
    assert all(n % 8 == 0 for n in kept) and sum(kept) < 64 * len(kept)
    assert polished <= masked and np.isfinite([base, masked, polished]).all()
    for (_, name), values in baked.skill.tensors.items():
        flags = baked.keep[int(name.split(".")[2])]
        closed = values[:, ~flags] if "down_proj" in name else values[~flags]
        assert not closed.any()


def test_gates_learn_which_neurons_a_text_needs(model, baked):
    """The chosen ones lose less than as many others."""

    def perplexity(keep):
        handles = [
            layer.mlp.down_proj.register_forward_pre_hook(
                lambda module, given, flags=flags: (given[0] * torch.tensor(flags).float(),)
            )
            for layer, flags in zip(model.model.layers, keep, strict=True)
        ]
        with torch.no_grad():
            windows = text_windows([TEXT], SMALL)[: SMALL.held]
            losses = [model(torch.tensor([w]), labels=torch.tensor([w])).loss for w in windows]
        for handle in handles:
            handle.remove()
        return float(torch.exp(torch.stack(losses).mean()))

    chosen = list(baked.keep.values())
    random, others = np.random.default_rng(3), []
    for _ in range(5):
        others.append(perplexity([random.permutation(flags) for flags in chosen]))
    found = perplexity(chosen)
    assert found == pytest.approx(baked.perplexities[1], rel=1e-4)
    assert found < min(others)


def test_a_baked_skill_by_request_is_the_trained_model(model, baked, tmp_path):
    write_skill(tmp_path / "s.skill", baked.skill)
    model.save_pretrained(tmp_path / "base")
    options = {"backend": "cpu", "weight_format": "w16", "adapters": [f"s={tmp_path / 's.skill'}"]}
    trained = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base").double()
    state = trained.state_dict()
    for (_, name), values in baked.skill.tensors.items():
        state[name].copy_(torch.tensor(values))
    with torch.no_grad():
        want = trained(torch.tensor([IDS])).logits[0, -1].argmax()
    given = {"max_tokens": 1, "temperature": 0, "ignore_eos": True}
    plugin = loaded_plugins(skills="cortiq_skills")
    with plugin, cortiq.load(tmp_path / "base", **options) as loaded:
        made = loaded.generate(IDS, adapter="s", **given)
        assert made.token_ids == (int(want),)
        assert made.step_digests != loaded.generate(IDS, **given).step_digests


def test_the_command_bakes_a_folder(model, tmp_path, monkeypatch):
    model.save_pretrained(tmp_path / "base")
    (tmp_path / "text").write_text("unused")
    given = SimpleNamespace(tokenizer=SimpleNamespace(encode=lambda *_, **__: TEXT), close=int)
    monkeypatch.setattr("cortiq.model.source.open_source", lambda *_: given)
    options = ["--chunk", "16", "--steps-a", "30", "--steps-b", "0", "--aggression", "400"]
    files = [str(tmp_path / name) for name in ("base", "s.skill", "text")]
    arguments = ["bake", *files[:2], "--text", files[2], *options]
    done = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert done.exit_code == 0 and "of neurons closed; perplexity" in done.output
    assert all("mlp" in name for name in read_skill(tmp_path / "s.skill").weights)


def test_sparse_enough_gates_are_preferred(model):
    few = BakeOptions(**{**vars(SMALL), "steps_a": 30, "steps_b": 0, "target_sparsity": 0.9})
    made = bake(model, [TEXT], SkillRecord("few"), few)
    assert made.perplexities[1] == made.perplexities[2]
    assert all(values.dtype == F32 for values in made.skill.tensors.values())


def test_models_of_another_form_are_refused():
    with pytest.raises(UnsupportedError, match="gated feed-forward"):
        bake(torch.nn.Linear(2, 2), [TEXT], SkillRecord("x"), SMALL)
