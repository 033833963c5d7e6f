"""EAGLE-3 heads: the formula, every kind of file, and that they change no token."""

from __future__ import annotations

import numpy as np
import pytest
from click.testing import CliRunner
from eagle_heads import SCORED, TAPS, head_rows, head_tensors, tokens_of, write_head
from engines import backends
from rounds import forward, speculated
from test_drafters import COUNT, PROMPT, SAMPLINGS, asking

import cortiq
from cortiq.backend import Argmax, CompileOptions
from cortiq.cli.main import cli
from cortiq.engine.drafters.heads import HeadDrafter
from cortiq.engine.drafting import Task
from cortiq.errors import FormatError, RequestError, UnsupportedError
from cortiq.formats.checkpoint import open_checkpoint
from cortiq.models import load_program
from cortiq.models.head_names import split_heads_option
from cortiq.models.synthetic import open_synthetic
from cortiq_reference.backend import ReferenceBackend
from cortiq_reference.ideal import dequantise, evaluate

IDS = [(11 * i + 5) % 300 for i in range(21)]
HEADS = HeadDrafter("eagle3")


def loaded(path, layout="w16", name="tiny-llama"):
    checkpoint = open_synthetic(f"synthetic:{name}?format={layout}")
    drafters = {"eagle3": open_checkpoint(path)}
    return load_program(checkpoint, drafters=drafters, weight_format=layout)


def chained(model, tensors, count, before):
    """Drafts by the formula, and whether each leads clearly."""
    names = [f"layers.{n - 1}.out" for n in TAPS]
    values = evaluate(model.program, model.weights, IDS[:-1], names)
    taps = np.concatenate([values[n] for n in names], axis=-1)
    fused = taps @ tensors["fc.weight"].astype(np.float64).T
    table = dequantise(model.weights["model.embed_tokens.weight"])
    text, found, clear, scored = list(IDS), [], [], []
    for _ in range(count):
        outputs, scores = head_rows(tensors, text[1:], fused, table, before)
        fused = np.concatenate([fused, outputs[-1:]])  # an output stands in for the rows of taps
        best = np.sort(scores[-1])
        clear.append(best[-1] - best[-2] > 0.005 * np.abs(best).max())
        found.append(int(tokens_of(tensors)[scores[-1].argmax()]))
        text.append(found[-1])
        scored.append(scores)
    return found, clear, scored[0], fused


def proposal(executable, ids, count):
    state = executable.open(80)
    task = Task(tuple(ids), 80, lambda text: Argmax(), executable, lambda: state)
    forward(executable, state, 0, ids[:-1], [None] * (len(ids) - 1))
    drafted = list(HEADS.open(task).propose(ids, count).ids)
    assert state.length("eagle3") == len(ids) - 1
    return drafted


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("form", ["authors", "speculators", "gguf"])
def test_a_head_is_the_formula_in_float64(tmp_path, form, before):
    tensors = head_tensors(scored=SCORED, table=form == "speculators")
    path = write_head(tmp_path / "head", tensors, form, norm_before_residual=before)
    model = loaded(path, "f32")
    drafts, clear, scores, fused = chained(model, tensors, 4, before)
    entry, rows = model.program.graphs["eagle3"], len(IDS) - 1
    given = {"recalled": fused[:rows].reshape(rows, *entry.values["recalled"].shape)}
    ours = evaluate(model.program, model.weights, IDS[1:], ["logits"], "eagle3", given)["logits"]
    tokens = tokens_of(tensors)
    assert np.abs(ours[:, tokens] - scores).max() < 1e-5 * np.abs(scores).max()
    left = np.setdiff1d(np.arange(320), tokens)
    assert left.size and (ours[:, left] == -(2.0**40)).all()
    executable = ReferenceBackend().compile(model.program, model.weights, CompileOptions())
    drafted = proposal(executable, IDS, 4)
    assert clear[0] and sum(clear) > 2
    first = next((i for i, sure in enumerate(clear) if not sure), len(clear))
    assert drafted[:first] == drafts[:first]


@pytest.fixture(scope="module", params=backends())
def executable(request, tmp_path_factory):
    path = write_head(tmp_path_factory.mktemp("heads") / "head", head_tensors())
    model = loaded(path)
    options = CompileOptions(threads=1, extra={"poison": True})
    return backends()[request.param]().compile(model.program, model.weights, options)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_heads_change_nothing_at_any_depth(executable, sampling):
    how = asking(SAMPLINGS[sampling])
    plain = speculated(executable, PROMPT, how, HEADS, lambda i: 0, COUNT)
    trace = speculated(executable, PROMPT, how, HEADS, lambda i: 1 + i % 5, COUNT)
    assert trace.ids == plain.ids
    assert trace.drafted > COUNT


def test_drafts_are_the_same_on_every_backend(tmp_path):
    model = loaded(write_head(tmp_path / "head", head_tensors()))
    options = CompileOptions(threads=1)
    made = [
        proposal(make().compile(model.program, model.weights, options), IDS, 6)
        for make in backends().values()
    ]
    assert len(made) > 1 and len(made[0]) == 6
    assert all(drafts == made[0] for drafts in made)


def test_a_head_without_a_matrix_of_its_own_scores_with_the_models(tmp_path):
    tensors = head_tensors(scored=320)
    del tensors["lm_head.weight"]
    path = write_head(tmp_path / "head", tensors, draft_vocab_size=None)
    model = loaded(path, "f32")
    table, head = (
        dequantise(model.weights[next(iter(node.weights.values()))])
        for node in model.program.trunk.nodes
        if node.name in ("embed", "logits")
    )
    fused = np.random.default_rng(5).standard_normal((9, 64))
    _, scores = head_rows(tensors | {"lm_head.weight": head}, IDS[:9], fused, table)
    given = {"recalled": fused.reshape(9, *model.program.graphs["eagle3"].values["recalled"].shape)}
    ours = evaluate(model.program, model.weights, IDS[:9], ["logits"], "eagle3", given)["logits"]
    assert np.abs(ours - scores).max() < 1e-5 * np.abs(scores).max()


IDS_KEY = "eagle_aux_hidden_state_layer_ids"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"vocab_size": 100}, "its vocab_size is 100, the model's 320"),
        ({"target_hidden_size": 32}, "its target_hidden_size is 32, the model's 64"),
        ({IDS_KEY: [0, 1, 4]}, r"taps the layers \(0, 1, 4\) of 3"),
        ({IDS_KEY: [1, 2]}, r"fc.weight is \[64, 192\], should be \[64, 128\]"),
        ({"num_hidden_layers": 2}, "a head of 2 layers"),
        ({"draft_vocab_size": 201}, r"d2t is F32 \[200\], should be integers \[201\]"),
        ({"norm_before_fc": True}, "norm_before_fc = True"),
        ({"eagle_config": {"use_mtp_layernorm": True}}, "eagle_config has"),
        ({"attention_bias": True}, "lacks layers.0.self_attn.q_proj.bias"),
        ({"rope_theta": "x"}, "the rope parameter rope_theta is 'x'"),
    ],
)
def test_a_head_of_another_model_is_an_error(tmp_path, changes, sentence):
    path = write_head(tmp_path / "head", head_tensors(), **changes)
    with pytest.raises((FormatError, UnsupportedError), match=sentence) as said:
        loaded(path)
    assert str(tmp_path) in str(said.value.where)


def changed(tensors, name, value):
    others = {n: t for n, t in tensors.items() if n != name}
    return others if value is None else {**others, name: value}


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("d2t", None, "lacks d2t: it scores 200 of 320 tokens"),
        ("d2t", np.zeros(SCORED, int) + 300, "d2t does not name 200 of the 320 tokens"),
        ("d2t", -np.arange(SCORED), "d2t does not name 200 of the 320 tokens"),
        ("midlayer.self_attn.q_norm.weight", np.ones(4, np.float32), "tensors that no EAGLE-3"),
        ("lm_head.weight", None, "lacks lm_head.weight"),
        ("midlayer.hidden_norm.weight", None, "lacks layers.0.hidden_norm.weight"),
    ],
)
def test_tensors_that_do_not_fit_are_named(tmp_path, name, value, sentence):
    path = write_head(tmp_path / "head", changed(head_tensors(), name, value))
    with pytest.raises(FormatError, match=sentence):
        loaded(path)


def test_the_command_line_drafts_with_a_folder(tmp_path):
    path = write_head(tmp_path / "head", head_tensors())
    words = ["generate", "synthetic:tiny-llama", "--ids", "5,6,7", "-n", "12", "-b", "cpu"]
    plain = CliRunner().invoke(cli, words)
    more = ["--draft", f"eagle3:{path}", "--draft-depth", "4", "--stats"]
    made = CliRunner().invoke(cli, [*words, *more])
    assert (plain.exit_code, made.exit_code) == (0, 0), made.stderr
    assert made.stdout == plain.stdout and "drafted by eagle3+lookup" in made.stderr


def test_what_was_loaded_and_what_is_asked_for_must_be_one(tmp_path):
    path = f"eagle3:{write_head(tmp_path / 'head', head_tensors())}"
    how = {"backend": "cpu", "threads": 1}
    with cortiq.load("synthetic:tiny-llama", heads=path, **how) as model:
        made = model.generate("text", draft="auto", draft_depth=2)
        assert "eagle3+lookup" in made.stats.drafts.drafters
        with pytest.raises(RequestError, match="draft head eagle3, not mtp"):
            model.generate("text", draft="mtp")
        with pytest.raises(RequestError, match=r"with the head .*, not /else"):
            model.generate("text", draft="eagle3:/else")
    with pytest.raises(RequestError, match="one draft head, not with mtp and eagle3"):
        cortiq.load("synthetic:tiny-llama", heads=f"mtp,{path}", **how)


def test_options_name_heads_and_files():
    assert split_heads_option("eagle3:a,b") == ("off", {"eagle3": "a,b"})
    both = {"eagle3": "/dflash/x", "dflash": "/eagle3"}
    assert split_heads_option("eagle3:/dflash/x,dflash:/eagle3") == ("off", both)
    assert split_heads_option("mtp:raw,dflash:x") == ("mtp:raw", {"dflash": "x"})
