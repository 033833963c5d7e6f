"""Block drafts from tapped layers: the formula, and that they change nothing."""

from __future__ import annotations

import numpy as np
import pytest
from block_drafters import BLOCK, TAPS, block_logits, write_drafter
from click.testing import CliRunner
from engines import backends
from rounds import forward, speculated
from test_drafters import COUNT, PROMPT, SAMPLINGS, asking

import cortiq
from cortiq.backend import Argmax, Batch, CompileOptions, Named, Row, Status
from cortiq.cli.main import cli
from cortiq.engine.drafters.blocks import BlockDrafter
from cortiq.engine.drafting import Task
from cortiq.errors import FormatError, GraphError, RequestError
from cortiq.formats.checkpoint import open_checkpoint
from cortiq.models import load_program
from cortiq.models.synthetic import open_synthetic
from cortiq_reference.ideal import dequantise, evaluate

IDS = [(11 * i + 5) % 300 for i in range(21)]
LOGITS = Named("logits")


@pytest.fixture(scope="module")
def drafter(tmp_path_factory):
    folder = tmp_path_factory.mktemp("drafter") / "block"
    return folder, write_drafter(folder)


def loaded(folder, name="tiny-llama", layout="w16"):
    checkpoint = open_synthetic(f"synthetic:{name}?format={layout}")
    return load_program(
        checkpoint, drafters={"dflash": open_checkpoint(folder)}, weight_format=layout
    )


@pytest.fixture(scope="module", params=backends())
def executable(request, drafter):
    model = loaded(drafter[0])
    options = CompileOptions(threads=1, extra={"poison": True})
    return backends()[request.param]().compile(model.program, model.weights, options)


def proposal(executable, ids, count, state=None):
    state = state or executable.open(80)
    task = Task(tuple(ids), 80, lambda text: Argmax(), executable, lambda: state)
    start = state.length()
    forward(executable, state, start, ids[start:-1], [None] * (len(ids) - 1 - start))
    return BlockDrafter().open(task).propose(ids, count), state


def test_a_block_is_the_formula_in_float64(drafter, executable, monkeypatch):
    folder, tensors = drafter
    model = loaded(folder, layout="f32")
    names = [f"layers.{n}.out" for n in TAPS]
    values = evaluate(model.program, model.weights, IDS[:-1], names)
    table = dequantise(model.weights["model.embed_tokens.weight"])
    taps = np.concatenate([values[n] for n in names], axis=-1)
    expected = block_logits(tensors, taps, IDS[-1], 5, table, table)
    # The same graph in float64: context rows and the block as rows of one entry.
    rows = len(IDS) - 1
    flags = np.array([[1.0]] * rows + [[0.0]] * 6)
    last = np.array([*range(rows), *[rows + 5] * 6])
    given = {"last": last, "context": flags}
    for i, n in enumerate(names):
        kept = np.concatenate([values[n], np.zeros((6, 64))])
        shape = model.program.graphs["dflash"].values[f"recalled.{i}"].shape
        given[f"recalled.{i}"] = kept.reshape(-1, *shape)
    mask = model.program.facts["block_drafter"].mask_token
    tokens = [*IDS, *[mask] * 5]
    ours = evaluate(model.program, model.weights, tokens, ["logits"], "dflash", given)["logits"]
    assert np.abs(ours[-5:] - expected).max() < 1e-5 * np.abs(expected).max()
    draft, state = proposal(executable, IDS, 5)
    sure = np.sort(expected, axis=-1)
    clear = sure[:, -1] - sure[:, -2] > 0.05 * np.abs(expected).max()
    assert clear.any()
    assert (np.array(draft.ids)[clear] == expected.argmax(axis=-1)[clear]).all()
    assert state.length("dflash") == rows


def test_chunks_of_context_change_no_draft(executable):
    whole, _ = proposal(executable, IDS, 6)
    state = executable.open(80)
    for stop in (4, 9, 10, 21):
        draft, _ = proposal(executable, IDS[:stop], 6, state)
    assert draft == whole


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_blocks_change_nothing_at_any_depth(executable, sampling):
    how = asking(SAMPLINGS[sampling])
    plain = speculated(executable, PROMPT, how, BlockDrafter(), lambda i: 0, COUNT)
    trace = speculated(executable, PROMPT, how, BlockDrafter(), lambda i: 1 + i % 9, COUNT)
    assert trace.ids == plain.ids
    assert trace.drafted > COUNT
    assert max(proposed for proposed, _ in trace.rounds) == BLOCK - 1


def test_a_block_that_is_not_whole_is_declined(executable):
    state = executable.open(30)
    rows = [Row(state, i, t) for i, t in enumerate(IDS[:3])]
    executable.forward(Batch(rows)).result()
    given = {"last": np.array(5, np.int32), "context": np.ones(1, np.float32)}
    result = executable.forward(Batch([Row(state, 0, 3, (), given)], "dflash")).result()
    assert result.outcomes[state].status is Status.DECLINED
    assert "row 0 sees keys up to 5: the batch ends before 1" in result.outcomes[state].reason


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"hidden_size": 32}, "its hidden_size is 32, the model's 64"),
        ({"vocab_size": 100}, "its vocab_size is 100, the model's 320"),
        ({"dflash_config": {"mask_token_id": 5, "target_layer_ids": [0, 3]}}, "taps the layers"),
        ({"dflash_config": {"target_layer_ids": [0, 2]}}, "its mask token is -1"),
        ({"num_hidden_layers": 3}, "lacks layers.2.input_layernorm.weight"),
        ({"intermediate_size": 48}, "should be"),
        ({"dflash_config": {"mask_token_id": 5, "target_layer_ids": 1}}, "taps the layers 1 of 3"),
        ({"block_size": 1}, "block_size is 1: a block holds the last token"),
        (
            {"num_attention_heads": 3},
            "block: dflash.layers.0.attend: Attend.kv_heads is 2, Attend.heads is 3",
        ),
        ({"rope_theta": "x"}, "block: config: the rope parameter rope_theta is 'x'"),
    ],
)
def test_a_drafter_of_another_model_is_an_error(tmp_path, changes, sentence):
    write_drafter(tmp_path / "block", **changes)
    with pytest.raises((FormatError, GraphError), match=sentence) as said:
        loaded(tmp_path / "block")
    assert str(tmp_path) in str(said.value.where)


def test_the_command_line_drafts_with_a_folder(drafter):
    words = ["generate", "synthetic:tiny-llama", "--ids", "5,6,7", "-n", "12", "-b", "cpu"]
    plain = CliRunner().invoke(cli, words)
    more = ["--draft", f"dflash:{drafter[0]}", "--draft-depth", "4", "--stats"]
    made = CliRunner().invoke(cli, [*words, *more])
    assert (plain.exit_code, made.exit_code) == (0, 0), made.stderr
    assert made.stdout == plain.stdout and "drafted by dflash+lookup" in made.stderr


def test_what_was_loaded_and_what_is_asked_for_must_be_one(drafter):
    path = f"dflash:{drafter[0]}"
    wrong = {
        path: {
            "mtp": "loaded without a draft head",
            "dflash:/else": f"block drafter {drafter[0]}, not /else",
        },
        "mtp": {path: "loaded without a block drafter", "mimo": "draft head mtp, not mimo"},
        "mimo": {"mtp": "draft head mimo, not mtp"},
    }
    for heads, asked in wrong.items():
        with cortiq.load("synthetic:tiny-llama", backend="cpu", threads=1, heads=heads) as model:
            for draft, sentence in asked.items():
                with pytest.raises(RequestError, match=sentence):
                    model.generate("text", draft=draft)
