"""DSpark drafters: the formulas, both kinds of files, and that they change no token."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from click.testing import CliRunner
from dspark_float64 import (
    STREAMS,
    chained,
    latent_block,
    latent_tensors,
    sigmoid,
    stream_block,
    stream_tensors,
    write_latent,
    write_streams,
)
from engines import TOKENIZER, WAYS, backends
from rounds import forward, speculated
from test_drafters import COUNT, PROMPT, SAMPLINGS, asking

import cortiq
from cortiq.backend import Argmax, CompileOptions, Draw
from cortiq.cli.main import cli
from cortiq.engine.drafters.markov_blocks import LEAST_SURVIVAL, MarkovBlockDrafter
from cortiq.engine.drafting import FixedDepth, Speculation, Task
from cortiq.engine.engine import Engine
from cortiq.engine.request import make_request
from cortiq.errors import FormatError, RequestError, UnsupportedError
from cortiq.formats.checkpoint import open_checkpoint
from cortiq.ir.heads import (
    CONFIDENCE,
    LAST_CONTEXT,
    LAST_ROW,
    LISTED,
    PLACE,
    REDUCED,
)
from cortiq.model.fingerprint import model_facts
from cortiq.models import load_program
from cortiq.models.head_names import split_heads_option
from cortiq.models.synthetic import open_synthetic
from cortiq.numerics import sampling
from cortiq.numerics.sampling import Sampling
from cortiq.options import GenerateOptions
from cortiq_reference.backend import ReferenceBackend
from cortiq_reference.ideal import dequantise, evaluate

IDS = [(11 * i + 5) % 290 for i in range(21)]
DSPARK = MarkovBlockDrafter()
KINDS = ("latent", "streams")
MATRICES = {
    "latent": ("markov_head.markov_w1.weight", "markov_head.markov_w2.weight"),
    "streams": ("mtp.1.markov_head.markov_w1.weight", "mtp.1.markov_head.markov_w2.weight"),
}
CHANCE = "mtp.1.confidence_head.proj.weight"


def made(kind):
    return latent_tensors() if kind == "latent" else stream_tensors()


def loaded(kind, folder, tensors, layout="w16", **changes):
    if kind == "latent":
        write_latent(folder, tensors, **changes)
        trunk = open_synthetic(f"synthetic:tiny-llama?format={layout}")
        drafters = {"dspark": open_checkpoint(folder)}
        return load_program(trunk, drafters=drafters, weight_format=layout)
    write_streams(folder, tensors, **changes)
    return load_program(open_checkpoint(folder), heads="auto", weight_format=layout)


def values(model, ids):
    """What the trunk left of these ids: the tapped rows, and keys and values by slot."""
    stored, streams = {}, len(model.program.trunk.values["layers.0.out"].shape) > 1
    names = model.program.facts["block_drafter"].source.split(",")
    found = evaluate(model.program, model.weights, ids, names, stored=stored)
    rows = [found[name].mean(axis=1) if streams else found[name] for name in names]
    return np.concatenate(rows, axis=-1), stored


def block_inputs(model, before):
    size = model.program.facts["block_drafter"].size
    given = {
        PLACE: before + np.arange(size)[:, None], LAST_ROW: np.full(size, size - 1),
        LAST_CONTEXT: np.full(size, before - 1),
    }  # fmt: skip
    if LISTED in model.program.graphs["dspark"].inputs:
        first = max(0, before - STREAMS["sliding_window"])
        keys = first + np.arange(STREAMS["sliding_window"])
        given[LISTED] = np.broadcast_to(keys, (size, 1, len(keys)))
    return given


def proposal(executable, ids, count, state=None, want=None):
    state = state or executable.open(80)
    task = Task(tuple(ids), 80, lambda text: want or Argmax(), executable, lambda: state)
    start = state.length()
    forward(executable, state, start, ids[start:-1], [None] * (len(ids) - 1 - start))
    drafted = list(DSPARK.open(task).propose(ids, count).ids)
    assert [state.length(e) for e in ("dspark", "dspark.markov")] == [0, 0]
    return drafted


@pytest.mark.parametrize("rows", [21, 5])  # beyond a window, and not yet
@pytest.mark.parametrize("kind", KINDS)
def test_a_block_is_the_formula_in_float64(tmp_path, kind, rows):
    tensors = made(kind)
    if kind == "streams":
        tensors[CHANCE] *= 0
        tensors[CHANCE][0, -16:] = 8  # far from even: nearly sure, nearly hopeless
    model = loaded(kind, tmp_path / "dspark", tensors, "f32")
    ids, head = IDS[:rows], model.program.facts["block_drafter"]
    taps, stored = values(model, ids[:-1])
    weights = {n: dequantise(w) for n, w in model.weights.items() if "experts" not in n}
    table = weights["model.embed_tokens.weight"]
    output = weights.get("lm_head.weight", table)
    if kind == "latent":
        normed = latent_block(tensors, taps, ids[-1], table)
    else:
        reduced, normed = stream_block(tensors, taps, ids[-1], table)
    scores = normed @ output.T
    given, tokens = block_inputs(model, rows - 1), [ids[-1], *[head.mask_token] * (head.size - 1)]
    wants = ["logits", REDUCED]
    ours = evaluate(model.program, model.weights, tokens, wants, "dspark", given, stored)
    assert np.abs(ours["logits"] - scores).max() < 1e-5 * np.abs(scores).max()
    before, after = (tensors[name] for name in MATRICES[kind])
    drafts, leads = chained(scores, ids[-1], before, after)
    if kind == "streams":
        assert np.abs(ours[REDUCED] - reduced).max() < 1e-5 * np.abs(reduced).max()
        text = [ids[-1], *drafts[:-1]]
        chances = sigmoid(np.concatenate([reduced, before[text]], axis=-1) @ tensors[CHANCE][0])
        given = {"scores": scores, REDUCED: reduced}
        wants = [CONFIDENCE, "logits"]
        ours = evaluate(model.program, model.weights, text, wants, "dspark.markov", given)
        assert np.abs(ours[CONFIDENCE][:, 0] - chances).max() < 1e-6
        kept = 1 + int(np.argmin(np.append(np.cumprod(chances)[1:] >= LEAST_SURVIVAL, False)))
        drafts, leads = drafts[:kept], leads[:kept]
    executable = ReferenceBackend().compile(model.program, model.weights, CompileOptions())
    clear = next((i for i, lead in enumerate(leads) if lead < 0.003), len(leads))
    drafted = proposal(executable, ids, head.size)
    assert clear and drafted[:clear] == drafts[:clear]
    assert len(drafted) == len(drafts)


def test_a_sampled_draft_is_drawn_with_the_numbers_of_its_position(tmp_path):
    tensors, how = made("latent"), Sampling(temperature=20.0, seed=5)
    model = loaded("latent", tmp_path / "dspark", tensors, "f32")
    _, stored = values(model, IDS[:-1])
    tokens, given = [IDS[-1], *[319] * 6], block_inputs(model, len(IDS) - 1)
    found = evaluate(model.program, model.weights, tokens, ["logits"], "dspark", given, stored)
    before, after = (tensors[name] for name in MATRICES["latent"])
    text = list(IDS)
    for row in found["logits"]:
        biased = (row + after @ before[text[-1]]).astype(np.float32)
        text.append(sampling.draw(biased, how, text, len(text), 0))
    executable = ReferenceBackend().compile(model.program, model.weights, CompileOptions())
    assert proposal(executable, IDS, 7, want=Draw(how)) == text[len(IDS) :]


@cache
def random_model(kind):
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        model = loaded(kind, Path(folder) / "dspark", made(kind))
        for weight in model.weights.values():
            weight.parts.items()  # read while the file is there
        return model


def compiled(model, backend):
    options = CompileOptions(threads=1, extra={"poison": True})
    return backends()[backend]().compile(model.program, model.weights, options)


FAST = list(backends())[-1]


@pytest.fixture(scope="module", params=KINDS)
def executable(request):
    return compiled(random_model(request.param), FAST)


@pytest.mark.parametrize("name", SAMPLINGS)
def test_blocks_change_nothing_at_any_depth(executable, name):
    how = asking(SAMPLINGS[name])
    plain = speculated(executable, PROMPT, how, DSPARK, lambda i: 0, COUNT)
    trace = speculated(executable, PROMPT, how, DSPARK, lambda i: 1 + i % 9, COUNT)
    assert trace.ids == plain.ids
    assert trace.drafted > COUNT


def test_chunks_of_context_change_no_draft(executable):
    whole = proposal(executable, IDS, 5)
    state = executable.open(80)
    for stop in (4, 9, 10, 21):
        drafted = proposal(executable, IDS[:stop], 5, state)
    assert drafted == whole and drafted


def test_fewer_drafts_are_the_first_of_all_since_a_block_is_whole(executable):
    for start in range(2, 9):
        whole = proposal(executable, IDS[start:], 5)
        assert proposal(executable, IDS[start:], 2) == whole[:2]


@pytest.mark.parametrize("kind", KINDS)
def test_drafts_are_the_same_on_every_backend(kind):
    drafts = [proposal(compiled(random_model(kind), b), IDS, 6) for b in backends()]
    assert len(drafts) > 1 and drafts[0]
    assert all(drafted == drafts[0] for drafted in drafts)


def taught(kind, text):
    """Tensors whose Markov tables draft the token that followed the one before in a text."""
    tensors = made(kind)
    before, after = (tensors[name] for name in MATRICES[kind])
    rng = np.random.default_rng(3)
    before[:] = rng.choice([-1.0, 1.0], before.shape)
    after[:] = 0
    for first, second in dict(pairwise(text)).items():
        after[second] += before[first] * 100 / before.shape[1]
    if kind == "streams":
        tensors[CHANCE] *= 0  # as likely as not
    return tensors


@pytest.mark.parametrize("name", SAMPLINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_drafter_that_drafts_well_changes_nothing_either(tmp_path, kind, name):
    how = asking(SAMPLINGS[name])
    bare = compiled(random_model(kind), FAST)
    plain = speculated(bare, PROMPT, how, DSPARK, lambda i: 0, COUNT).ids
    model = loaded(kind, tmp_path / "dspark", taught(kind, [*PROMPT, *plain]))
    trace = speculated(compiled(model, FAST), PROMPT, how, DSPARK, lambda i: 4, COUNT)
    assert trace.ids == plain
    assert trace.accepted > COUNT // 3


def run(executable, drafter, way):
    """Four sequences of other lengths, drafted for together; their ids and the batches by entry."""
    options = GenerateOptions(max_tokens=13, **{"seed": 0, **WAYS[way]})
    speculation = Speculation(drafter, lambda tokens: FixedDepth(3)) if drafter else None
    with Engine(executable, TOKENIZER) as engine:
        ids = [np.random.default_rng(i).integers(0, 250, 3 + 4 * i).tolist() for i in range(4)]
        asked = [make_request(i, options, executable.program, ()) for i in ids]
        several = [engine.submit(one, speculation=speculation) for one in asked]
        engine.run()
        assert not any(one.stats.drafts.error for one in several)
        return [one.ids for one in several]


@pytest.mark.parametrize("way", WAYS)
def test_sequences_that_are_drafted_for_together_have_the_plain_tokens(executable, way):
    assert run(executable, DSPARK, way) == run(executable, None, way)


def test_a_program_with_a_drafter_has_the_fingerprint_of_one_without(tmp_path):
    with_drafter = loaded("streams", tmp_path / "dspark", made("streams"))
    plain = load_program(open_checkpoint(tmp_path / "dspark"), weight_format="w16")
    assert list(plain.program.graphs) == ["trunk"] != list(with_drafter.program.graphs)
    facts = [model_facts(one.program, "hash") for one in (plain, with_drafter)]
    assert facts[0] == facts[1]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"hidden_size": 32}, "its hidden_size is 32, the model's 64"),
        ({"vocab_size": 100}, "its vocab_size is 100, the model's 320"),
        ({"target_num_hidden_layers": 93}, "its target_num_hidden_layers is 93, the model's 3"),
        ({"draft_vocab_size": 10}, "its draft_vocab_size is 10, the model's 320"),
        ({"target_layer_ids": [0, 3]}, r"taps the layers \(0, 3\) of 3"),
        ({"target_layer_ids": [2, 0]}, r"taps the layers \(2, 0\) of 3"),
        ({"num_target_layers": 5}, "num_target_layers is 5, target_layer_ids has 2"),
        ({"mask_token_id": 320}, "its mask token is 320"),
        ({"block_size": 65}, "blocks of 65 rows"),
        ({"q_lora_rank": None}, "q_lora_rank = None"),
        ({"markov_head_type": "gated"}, "markov_head_type"),
        ({"mla_use_output_gate": True}, "mla_use_output_gate"),
        ({"num_hidden_layers": 3}, r"layers.2.input_layernorm.weight \[64\] is missing"),
        ({"markov_rank": 16}, r"markov_w1.weight is \[320, 32\], should be \[320, 16\]"),
        ({"num_hidden_layers": 1}, "layers.1.input_layernorm.weight is not used"),
        ({"model_type": "qwen3"}, "a DSpark drafter of the model_type 'qwen3'"),
        ({"rope_parameters": {"factor": "x"}}, "the rope parameter factor is 'x'"),
    ],
)  # fmt: skip
def test_a_drafter_of_another_model_is_an_error(tmp_path, changes, sentence):
    with pytest.raises((FormatError, UnsupportedError), match=sentence) as said:
        loaded("latent", tmp_path / "dspark", made("latent"), **changes)
    assert str(tmp_path) in str(said.value.where)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"dspark_target_layer_ids": [0, 3]}, r"taps the layers \(0, 3\) of 3"),
        ({"dspark_target_layer_ids": []}, r"taps the layers \(\) of 3"),
        ({"dspark_block_size": 65}, "dspark_block_size is 65, not between 1 and 64"),
        ({"dspark_noise_token_id": 300}, "dspark_noise_token_id is 300"),
        ({"dspark_markov_rank": 0}, "dspark_markov_rank is 0"),
        ({"dspark_markov_rank": 8}, r"markov_w1.weight is \[300, 16\], should be \[300, 8\]"),
    ],
)
def test_what_a_folder_says_of_its_drafter_must_fit(tmp_path, changes, sentence):
    with pytest.raises(FormatError, match=sentence) as said:
        loaded("streams", tmp_path / "dspark", made("streams"), **changes)
    assert str(tmp_path) in str(said.value.where)


@pytest.mark.parametrize(
    "name", ["mtp.0.main_proj.weight", "mtp.1.hc_head_fn", "mtp.1.attn.attn_sink", CHANCE]
)
def test_a_missing_tensor_of_the_models_own_drafter_is_named(tmp_path, name):
    tensors = made("streams")
    del tensors[name]
    with pytest.raises(FormatError, match=rf"{name} \[.*\] is missing"):
        loaded("streams", tmp_path / "dspark", tensors)
    model = load_program(open_checkpoint(tmp_path / "dspark"))
    assert list(model.program.graphs) == ["trunk"]  # which does not need it


def test_the_command_line_drafts_with_either(tmp_path):
    write_latent(tmp_path / "latent")
    write_streams(tmp_path / "streams")
    pairs = {
        "synthetic:tiny-llama": f"dspark:{tmp_path / 'latent'}",
        str(tmp_path / "streams"): "dspark",
    }
    for model, draft in pairs.items():
        words = ["generate", model, "--ids", "5,6,7", "-n", "12", "-b", "cpu"]
        plain = CliRunner().invoke(cli, words)
        more = ["--draft", draft, "--draft-depth", "4", "--stats"]
        drafted = CliRunner().invoke(cli, [*words, *more])
        assert (plain.exit_code, drafted.exit_code) == (0, 0), drafted.stderr
        assert drafted.stdout == plain.stdout and "drafted by dspark+lookup" in drafted.stderr


def test_what_was_loaded_and_what_is_asked_for_must_be_one(tmp_path):
    write_latent(tmp_path / "latent")
    write_streams(tmp_path / "streams")
    path, how = f"dspark:{tmp_path / 'latent'}", {"backend": "cpu", "threads": 1}
    with cortiq.load("synthetic:tiny-llama", heads=path, **how) as model:
        for draft in ("dspark", "auto", path):
            answer = model.generate("text", draft=draft, draft_depth=2, max_tokens=8)
            assert "dspark+lookup" in answer.stats.drafts.drafters
        wrong = {
            "dspark:/else": "with the block drafter .*latent, not /else",
            "dflash:/else": "with the block drafter dspark, not dflash",
            "dspark:": "takes an argument",
        }
        for draft, sentence in wrong.items():
            with pytest.raises(RequestError, match=sentence):
                model.generate("text", draft=draft)
    model = cortiq.load(str(tmp_path / "streams"), heads="dspark", **how)
    with model, pytest.raises(RequestError, match="loaded without the block drafter /else"):
        model.generate([1, 2], draft="dspark:/else")
    write_streams(tmp_path / "streams", dspark_block_size=0)
    with pytest.raises(RequestError, match="the model has no drafter 'dspark'"):
        cortiq.load(str(tmp_path / "streams"), heads="dspark", **how)


def test_options_name_drafters_and_files():
    assert split_heads_option("dspark") == ("dspark", {})
    assert split_heads_option("auto,dspark:a,b") == ("auto", {"dspark": "a,b"})
    for both in ("dspark,dflash:x", "dspark:x,dflash:y"):
        with pytest.raises(RequestError, match="one block drafter"):
            split_heads_option(both)
