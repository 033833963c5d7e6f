"""Skills in place of a model's matrices: bits of the model that has them, and changes mid-text."""

from __future__ import annotations

import json

import numpy as np
import pytest
from installed import backends
from masked import loaded_plugins

import cortiq
from cortiq.errors import FormatError, RequestError, UnsupportedError
from cortiq.formats.safetensors_writer import write_safetensors
from cortiq.model.load import model_of
from cortiq.model.source import open_source
from cortiq.numerics.contract import F32
from cortiq.numerics.weights import in_layout, weight_values
from cortiq.options import LoadOptions
from cortiq.plugins.selection import find_backend
from cortiq_skills.donors import blend, blend_weights, graft, layer_numbers, weights_of
from cortiq_skills.features import default_layer, layer_value, text_features
from cortiq_skills.files import read_skill, write_skill
from cortiq_skills.record import SkillRecord, SkillSelection, TaskSkill
from cortiq_skills.switching import Hysteresis, PlannedSwitches, Swarm, generate_switching

BASE, DONOR = "synthetic:tiny-llama?seed=1", "synthetic:tiny-llama?seed=2"
PROMPT = [5, 9, 2, 71, 33, 8, 4, 19, 60, 7, 1, 3]
OPTIONS = {"context": 64, "keep_weights": False}
DOWN = "model.layers.{}.mlp.down_proj.weight".format


@pytest.fixture(scope="module", autouse=True)
def plugin():
    with loaded_plugins(skills="cortiq_skills"):
        yield


def opened_source(name, layout="f32"):
    return open_source(f"{name}&format={layout}", LoadOptions(context=64))


@pytest.fixture(scope="module")
def skills():
    """Skills of every kind."""
    base, donor = opened_source(BASE), opened_source(DONOR)
    random = np.random.default_rng(4)
    shape = base.program.weights[DOWN(1)].shape
    factors = [random.normal(size=s).astype(F32) / 4 for s in ((3, shape[1]), (shape[0], 3))]
    low = {(kind, DOWN(1)): values for kind, values in zip("ab", factors, strict=True)}
    change = random.normal(size=shape).astype(F32) / 20
    return {
        "ffn": graft(base, donor, SkillRecord("ffn"), layers="0-1").skill,
        "attn": graft(base, donor, SkillRecord("attn"), family="attn").skill,
        "delta": TaskSkill(SkillRecord("delta"), {("delta", DOWN(0)): change}),
        "low": TaskSkill(SkillRecord("low"), low),
    }


@pytest.fixture(scope="module")
def files(skills, tmp_path_factory):
    folder = tmp_path_factory.mktemp("skills")
    for name, one in skills.items():
        write_skill(folder / f"{name}.skill", one)
    return {name: folder / f"{name}.skill" for name in skills}


def opened(backend="reference", layout="w8", files=(), **options):
    given = [f"{name}={path}" for name, path in dict(files).items()]
    return cortiq.load(f"{BASE}&format={layout}", backend=backend, adapters=given,
                       **OPTIONS, **options)  # fmt: skip


def digests(model, adapter=None, prompt=PROMPT):
    made = model.generate(prompt, max_tokens=4, ignore_eos=True, temperature=0, adapter=adapter)
    return made.step_digests


def assembled(skill, layout):
    """Return the base with a skill's matrices as if its files had them."""
    options = LoadOptions(context=64)
    source = open_source(f"{BASE}&format={layout}", options)
    weights = dict(source.weights)
    for (kind, name), values in skill.tensors.items():
        if kind == "delta":
            values = (weight_values(weights[name], name).astype(np.float64) + values).astype(F32)
        weights[name] = in_layout(values, weights[name].layout.name, name)
    source.weights = weights
    return model_of("assembled", source, find_backend("reference"), options)


@pytest.mark.parametrize("layout", ["w8", "w16", "f32", "w4"])
@pytest.mark.parametrize("name", ["ffn", "attn", "delta"])
def test_a_skill_by_request_has_the_bits_of_a_model_with_its_matrices(name, layout, skills, files):
    with opened(layout=layout, files={name: files[name]}) as model:
        found, plain = digests(model, name), digests(model)
    with assembled(skills[name], layout) as oracle:
        assert found == digests(oracle) != plain
    with opened(layout=layout) as model:
        assert digests(model) == plain


@pytest.mark.parametrize("backend", backends())
def test_skills_share_a_batch_on_every_backend(backend, files):
    names = ["ffn", None, "low", "attn", "delta", "ffn"]
    with opened(backend, files=files) as model:
        made = model.generate_many([PROMPT] * len(names), max_tokens=3, ignore_eos=True,
                                   temperature=0, adapters=names)  # fmt: skip
        assert any("patent" in note for note in model.notes)
    with opened() as model:
        for name, path in files.items():
            model.load_adapter(name, path)
        for name, one in zip(names, made, strict=True):
            assert one.step_digests == digests(model, name)[:3]


def test_scales_go_from_the_model_to_the_skill(files):
    with opened(layout="f32", files={"one": f"{files['ffn']}:1", "none": f"{files['ffn']}:0",
                                     "half": f"{files['delta']}:0.5"}) as model:  # fmt: skip
        assert digests(model, "none") == digests(model) != digests(model, "one")
        assert digests(model, "half") not in (digests(model), digests(model, "one"))


DAMAGED_RECORDS = [
    {"id": None}, {"base": 7}, {"name": ["a"]}, {"quality": None}, {"provenance": 1.5},
    {"selection": {"layer": 1.5}}, {"selection": {"layer": True}}, {"selection": {"err_std": "x"}},
    {"selection": {"err_mean": float("nan")}}, {"selection": {"err_std": -1}},
]  # fmt: skip


@pytest.mark.parametrize("record", DAMAGED_RECORDS, ids=str)
def test_records_of_other_types_are_refused(record, tmp_path):
    arrays = {f"phi.{name}": np.ones((1, 4), np.float16) for name in ("basis", "holdout")}
    chosen = {"metric": "mse", "layer": 1, **record.pop("selection", {})}
    said = json.dumps({"id": "a", "selection": chosen, **record})
    for mean in (np.ones(4, np.float16), np.ones(0, np.float16)):
        vectors = {**arrays, "phi.mean": mean}
        write_safetensors(tmp_path / "a.skill", vectors, {"cortiq.skill": "1", "record": said})
        with pytest.raises(FormatError, match="record that is none"):
            read_skill(tmp_path / "a.skill")


def test_files_keep_a_skill_and_damaged_ones_are_refused(skills, files, tmp_path):
    chosen = SkillSelection("mse", 1, np.arange(64, dtype=F32), np.eye(2, 64, dtype=F32), 0.5, 0.25,
                            np.ones((3, 64), F32))  # fmt: skip
    record = SkillRecord("x-1", "a name", "sql", quality={"ppl": 3.5}, provenance={"n": [1]})
    one = TaskSkill(record, skills["low"].tensors, chosen)
    write_skill(tmp_path / "a.skill", one)
    read = read_skill(tmp_path / "a.skill")
    assert read.record == record and read.tensors.keys() == one.tensors.keys()
    assert all(np.array_equal(read.tensors[k], v) for k, v in one.tensors.items())
    for part in ("mean", "basis", "holdout"):
        assert np.array_equal(getattr(read.selection, part), getattr(chosen, part))
    assert (read.selection.err_mean, read.selection.layer) == (0.5, 1) and read.layers == [1]
    write_skill(tmp_path / "b.skill", read)
    assert (tmp_path / "a.skill").read_bytes() == (tmp_path / "b.skill").read_bytes()
    whole = files["low"].read_bytes()
    damaged = {
        "truncated": whole[:-5],
        "is no skill": whole.replace(b"cortiq.skill", b"cortiq.skull"),
        "which no skill has": whole.replace(b'"a:model', b'"c:model'),
        "has a record that is none": whole.replace(b'\\"name\\"', b'\\"nome\\"'),
        "not finite": whole[:-4] + np.array([np.inf], "<f4").tobytes(),
    }
    for says, content in damaged.items():
        (tmp_path / "d.skill").write_bytes(content)
        with pytest.raises(FormatError, match=says):
            read_skill(tmp_path / "d.skill")
    with pytest.raises(RequestError, match="letters, digits"):
        SkillRecord("a b")


@pytest.mark.parametrize(
    ("tensors", "record", "error", "says"),
    [
        ({("replace", "model.nowhere.weight"): (2, 2)}, {}, FormatError, "does not have"),
        ({("replace", DOWN(0)): (2, 2)}, {}, FormatError, r"as \[2, 2\], and the model takes"),
        ({("a", DOWN(0)): (2, 96)}, {}, FormatError, "one matrix, or both factors"),
        ({("replace", "model.norm.weight"): (1, 64)}, {}, UnsupportedError, "no overlay"),
        ({("delta", DOWN(0)): (64, 96)}, {"base": "0" * 64}, FormatError, "bound to the model 000"),
    ],
)
def test_skills_of_another_model_are_refused(tensors, record, error, says, tmp_path):
    made = {key: np.ones(shape, F32) for key, shape in tensors.items()}
    write_skill(tmp_path / "s.skill", TaskSkill(SkillRecord("s", **record), made))
    with pytest.raises(error, match=says):
        opened(files={"s": tmp_path / "s.skill"})


def test_formats_that_only_files_have_are_refused(skills, files):
    with pytest.raises(UnsupportedError, match="is in Q8_0, to which"):
        opened(layout="Q8_0", files={"ffn": files["ffn"]})
    with opened(layout="Q8_0", files={"low": files["low"]}) as model:
        assert digests(model, "low") != digests(model)


def test_grafts_take_what_was_asked_for():
    base, donor = opened_source(BASE), opened_source(DONOR)
    assert len(weights_of(base.program, "ffn", "all")) == 9
    assert len(weights_of(base.program, "attn", "1,2")) == 8
    assert len(weights_of(base.program, "all", "2-2")) == 7
    with pytest.raises(RequestError, match="no matrix of the donor differs"):
        graft(base, base, SkillRecord("x"))
    name = DOWN(0)
    changes = {}
    for n in weights_of(base.program, "ffn", "all"):
        b, d = (weight_values(s.weights[n], n).astype(np.float64) for s in (base, donor))
        changes[n] = np.linalg.norm(d - b) / np.linalg.norm(b)
    limit = sorted(changes.values())[4]
    made = graft(base, donor, SkillRecord("x"), min_delta=limit * (1 + 1e-9))
    assert set(made.skill.weights) == {n for n, c in changes.items() if c > limit * (1 + 1e-9)}
    assert made.skipped.keys() | set(made.skill.weights) == changes.keys() and name in changes
    for text in ("3-1", "a", "7", "0,9"):
        with pytest.raises(RequestError):
            layer_numbers(text, 3)


def test_a_file_is_its_tensors_and_little_more(skills, tmp_path):
    for name, skill in skills.items():
        write_skill(tmp_path / f"{name}.skill", skill)
        held = sum(tensor.nbytes for tensor in skill.tensors.values())
        assert 0 < (tmp_path / f"{name}.skill").stat().st_size - held < 4096


def test_a_blend_is_the_weighted_sum_in_order(skills):
    base = opened_source(BASE)
    made = blend(base, [(skills["ffn"], 3.0), (skills["delta"], 1.0)], SkillRecord("b"))
    name = DOWN(0)
    own = weight_values(base.weights[name], name)
    other = (own.astype(np.float64) + skills["delta"].tensors["delta", name]).astype(F32)
    want = F32(0.75) * skills["ffn"].tensors["replace", name] + F32(0.25) * other
    assert made.tensors["replace", name].tobytes() == want.tobytes()
    assert set(made.weights) == set(skills["ffn"].weights) | set(skills["delta"].weights)
    alone = blend(base, [(skills["ffn"], 1.0)], SkillRecord("c"))
    assert all(np.array_equal(alone.tensors[k], v) for k, v in skills["ffn"].tensors.items())
    (first, w1), (second, w2) = blend_weights([("a", 0.9), ("b", 0.1), ("c", 0.3)])
    assert (first, second) == ("b", "c") and w1 + w2 == pytest.approx(1)
    assert w1 / w2 == pytest.approx(np.exp(0.2 / 0.4))
    with pytest.raises(RequestError, match="positive"):
        blend(base, [(skills["ffn"], 0.0)], SkillRecord("d"))


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_features_are_means_of_rows_however_they_are_cut(backend):
    with opened(backend) as model:
        layer = default_layer(model.program)
        assert layer == 2 and layer_value(model.program, layer) == "layers.2.out"
        found = text_features(model.executable, PROMPT * 3, layer)
        with pytest.raises(RequestError, match="none of the model's 3"):
            text_features(model.executable, PROMPT, 9)
    with opened("reference") as model:
        again = text_features(model.executable, PROMPT * 3, layer)
    assert found.tobytes() == again.tobytes() and found.shape == (64,)


def generated(model, prompt, count, adapter=None):
    given = {"max_tokens": count, "ignore_eos": True, "temperature": 0, "adapter": adapter}
    return model.generate(prompt, **given)


def tokens(model, prompt, count, adapter=None):
    return list(generated(model, prompt, count, adapter).token_ids)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_a_switch_mid_text_is_the_model_before_it_and_the_skill_after(backend, files):
    plan = PlannedSwitches({3: "ffn", 6: None, 8: "low"})
    with opened(backend, files=files) as model:
        made = generate_switching(model, PROMPT, plan, max_tokens=10, ignore_eos=True)
        want, logits = [], []
        for name, count in ((None, 3), ("ffn", 3), (None, 2), ("low", 2)):
            part = generated(model, [*PROMPT, *want], count, name)
            want, logits = [*want, *part.token_ids], [*logits, *part.step_digests]
        assert list(made.token_ids) == want and list(made.step_digests) == logits
        assert made.switches == ((3, None, "ffn"), (6, "ffn", None), (8, None, "low"))
        assert made.active == (None,) * 3 + ("ffn",) * 3 + (None,) * 2 + ("low",) * 2
        plain = generate_switching(
            model, PROMPT, PlannedSwitches({}), max_tokens=10, ignore_eos=True
        )
        assert list(plain.token_ids) == tokens(model, PROMPT, 10) and not plain.switches
        first = generate_switching(model, PROMPT, PlannedSwitches({0: "ffn"}), max_tokens=4,
                                   ignore_eos=True)  # fmt: skip
        assert list(first.token_ids) == tokens(model, PROMPT, 4, "ffn")


def test_keeping_rows_is_another_text_that_all_backends_agree_on(files):
    plan, found = PlannedSwitches({3: "ffn"}), set()
    for backend in ("reference", "cpu"):
        with opened(backend, files=files) as model:
            made = generate_switching(model, PROMPT, plan, max_tokens=9, mode="keep",
                                      ignore_eos=True)  # fmt: skip
            assert list(made.token_ids[:4]) == tokens(model, PROMPT, 4)
            assert made.active[3] is None and made.active[4] == "ffn"
            found.add((made.token_ids, made.step_digests))
    assert len(found) == 1
    with opened(files=files) as model:
        for wrong in ({"mode": "wipe"}, {"max_tokens": 0}):
            with pytest.raises(RequestError, match="takes a prompt"):
                generate_switching(model, PROMPT, plan, **wrong)
        with pytest.raises(RequestError, match="no adapter named 'x'"):
            generate_switching(model, PROMPT, PlannedSwitches({0: "x"}), max_tokens=1)


def test_running_features_choose_a_skill_while_text_is_written(files):
    with opened(files=files) as model:
        row = text_features(model.executable, [*PROMPT, *tokens(model, PROMPT, 8)], 2)
        near = SkillSelection("mse", 2, row, np.zeros((0, 64), F32))
        far = SkillSelection("mse", 2, -row, np.zeros((0, 64), F32))
        swarm = Swarm({"attn": far, "ffn": near}, Hysteresis(on=1.5, off=9.0))
        made = generate_switching(model, PROMPT, swarm, max_tokens=12, ignore_eos=True)
        assert made.switches == ((8, None, "ffn"),) and swarm.last["ffn"] < swarm.last["attn"]
        start = [*PROMPT, *made.token_ids[:8]]
        assert list(made.token_ids[:8]) == tokens(model, PROMPT, 8)
        assert made.step_digests[8:] == generated(model, start, 4, "ffn").step_digests
