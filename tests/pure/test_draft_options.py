"""`draft` and `draft_depth` of a generation, masks, and the hook `cortiq_drafters`."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest
from scripted import scripted_model

import cortiq
from cortiq.cli.show_generation import drafting_lines
from cortiq.engine.drafters.kinds import DrafterKind, find_kinds, speculation
from cortiq.engine.drafters.scripted import ScriptedDrafter
from cortiq.engine.drafting import FixedDepth, Speculation
from cortiq.engine.engine import Engine
from cortiq.engine.request import make_request
from cortiq.errors import ModelNotFoundError, OptionError, RequestError
from cortiq.model.drafter_factory import DrafterFactory
from cortiq.numerics.masks import mask_of
from cortiq.options import GenerateOptions
from cortiq.plugins import load_plugins

PROMPT = "to be or not to be, to be or not "
GREEDY = {"seed": 0}
SAMPLED = {"temperature": 0.9, "seed": 4, "repetition_penalty": 1.1}


@pytest.fixture(scope="module", params=["tiny-llama", "tiny-lfm2", "tiny-mimo"])
def model(request):
    with cortiq.load(f"synthetic:{request.param}", backend="cpu", threads=1) as opened:
        yield opened


def prompt_for(model):
    size = model.program.trunk.values["logits"].shape[0]
    return [3, 7, 9, 11, 3, 7, 9] if size < 256 else PROMPT


@pytest.mark.parametrize("options", [{}, SAMPLED])
@pytest.mark.parametrize("depth", [None, 1, 5])
def test_no_drafter_changes_a_token(model, options, depth):
    told = {"max_tokens": 40, "ignore_eos": True, **options}
    plain = model.generate(prompt_for(model), **told)
    for draft in ("lookup", "auto", f"model:{model.name}"):
        made = model.generate(prompt_for(model), draft=draft, draft_depth=depth, **told)
        assert (made.token_ids, made.digest, made.text) == (
            plain.token_ids, plain.digest, plain.text,
        )  # fmt: skip
        assert made.fingerprint == plain.fingerprint
    drafted = made.stats.drafts
    assert drafted.accepted == drafted.drafters["model+lookup"].accepted > 0
    assert "model+lookup" in "".join(drafting_lines(drafted.as_dict()))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"draft": "nothing"}, "there is no drafter 'nothing'"),
        ({"draft": "model"}, "the drafter model takes an argument"),
        ({"draft": "model:"}, "the drafter model takes an argument"),
        ({"draft": "lookup:4"}, "the drafter lookup takes no argument"),
        ({"draft_depth": 4}, "a draft depth without a drafter"),
        ({"draft": "model:synthetic:tiny-mimo"}, "the draft model has 64 tokens, the model 320"),
    ],
)
def test_a_drafter_that_cannot_be_is_a_sentence(options, sentence):
    with (
        cortiq.load("synthetic:tiny-llama", backend="cpu", threads=1) as opened,
        pytest.raises(RequestError, match=sentence),
    ):
        opened.generate("text", **options)


def test_depth_is_checked_and_a_missing_draft_model_named():
    with cortiq.load("synthetic:tiny-llama", backend="cpu", threads=1) as opened:
        for depth in (0, 65, 2.5):
            with pytest.raises(OptionError, match="draft_depth must be an integer"):
                opened.generate("text", draft="lookup", draft_depth=depth)
        with pytest.raises(ModelNotFoundError, match="nowhere"):
            opened.generate("text", draft="model:nowhere")


def test_models_whose_ids_stand_for_other_texts_don_t_draft_for_each_other(monkeypatch):
    from cortiq.tokenizer.tokenizer import Tokenizer

    with cortiq.load("synthetic:tiny-llama", backend="cpu", threads=1) as opened:
        monkeypatch.setattr(
            opened.tokenizer, "token_bytes", lambda i: b"?" if i == 65 else bytes([i % 256])
        )
        monkeypatch.setattr(Tokenizer, "token_bytes", lambda self, i: bytes([i % 256]))
        with pytest.raises(RequestError, match="the draft model's token 65 is b'A', the model's"):
            opened.generate("text", draft="model:synthetic:tiny-llama?seed=3")


def even_then_odd(ids):
    """A grammar: the ids' parity alternates, but for multiples of 10, which may stand anywhere."""
    wanted = 1 - ids[-1] % 2
    return mask_of([i for i in range(64) if i % 2 == wanted or i % 10 == 0], 64)


@pytest.mark.parametrize("options", [{}, SAMPLED])
def test_masks_hold_for_drafted_rows_with_their_own_history(options):
    with cortiq.load("synthetic:tiny-mimo", backend="cpu", threads=1) as opened:
        told = {"max_tokens": 60, "masks": even_then_odd, **options}
        plain = opened.generate([3, 4, 3, 4, 3, 4], **told)
        assert opened.generate([3, 4, 3, 4, 3, 4], max_tokens=60).token_ids != plain.token_ids
        before = 4
        for token in plain.token_ids:
            assert (token - before) % 2 or token % 10 == 0
            before = token
        for draft in ("lookup", "model:synthetic:tiny-mimo", "model:synthetic:tiny-mimo?seed=2"):
            made = opened.generate([3, 4, 3, 4, 3, 4], draft=draft, draft_depth=4, **told)
            assert made.token_ids == plain.token_ids and made.digest == plain.digest
            assert made.stats.drafts.drafted > 0 or draft == "lookup"


def test_masks_are_never_asked_about_ids_they_excluded():
    """A grammar has no state for a text it forbids."""

    def strict(ids):
        for before, token in pairwise(ids[2:]):
            assert (token - before) % 2, ids
        wanted = 1 - ids[-1] % 2
        return mask_of(range(wanted, 64, 2), 64)

    with cortiq.load("synthetic:tiny-mimo", backend="cpu", threads=1) as opened:
        options = GenerateOptions(max_tokens=30, seed=0)
        request = make_request([5, 5, 4], options, opened.program, (), masks=strict)
        drafter = ScriptedDrafter(lambda ids, count: [ids[-1] + 1, ids[-1], 3, 3][:count])
        with Engine(opened.executable, opened.tokenizer) as engine:
            sequence = engine.submit(
                request, speculation=Speculation(drafter, lambda tokens: FixedDepth(4))
            )
            engine.run()
        assert sequence.error is None and sequence.generated == 30


def test_a_mask_that_allows_nothing_is_an_error_that_says_so():
    with (
        cortiq.load("synthetic:tiny-mimo", backend="cpu", threads=1) as opened,
        pytest.raises(cortiq.CortiqError, match="a mask that allows none of the 64 tokens"),
    ):
        opened.generate([1], masks=lambda ids: bytes(8))
    with pytest.raises(RequestError, match="cannot hold the embeddings or masks"):
        scripted_model("abc").generate("ab", masks=lambda ids: None).receipt()


@pytest.mark.parametrize("asynchronous", [True, False])
def test_masks_see_every_token_before_they_are_asked_for_the_next(asynchronous):
    seen = []

    def watching(ids):
        seen.append(list(ids))

    model = scripted_model("hello", asynchronous=asynchronous)
    made = model.generate("ab", masks=watching)
    text = [*b"ab", *made.token_ids]
    assert seen == [text[: 2 + i] for i in range(len(made.token_ids))]


def test_masks_that_raise_end_their_own_sequence_only():
    def broken(ids):
        if len(ids) == 5:
            raise ValueError("no such state")
        return mask_of(range(64), 64)

    with cortiq.load("synthetic:tiny-mimo", backend="cpu", threads=1) as opened:
        options = GenerateOptions(max_tokens=9, seed=0, ignore_eos=True)
        good = make_request([5, 6, 4], options, opened.program, ())
        alone = opened.generate([5, 6, 4], max_tokens=9, ignore_eos=True).token_ids
        with Engine(opened.executable, opened.tokenizer) as engine:
            bad = engine.submit(replace(good, masks=broken))
            fine = engine.submit(good)
            engine.run()
        assert type(bad.error) is ValueError and bad.generated == 2
        assert fine.error is None and tuple(fine.output.token_ids) == alone
        with pytest.raises(ValueError, match="no such state"):
            opened.generate([5, 6, 4], max_tokens=9, masks=broken)
        assert opened.generate([5, 6, 4], max_tokens=9, ignore_eos=True).token_ids == alone


@pytest.mark.parametrize("seed", range(3))
def test_walls_of_any_length_change_no_token(model, seed):
    """Policies decide by clocks; here the clock is a die."""
    dice, now = random.Random(seed), [0.0]

    def clock():
        now[0] += dice.choice([0.0, 1e-6, 0.01, 5.0])
        return now[0]

    ids = model.ids(prompt_for(model))
    for draft in ("lookup", f"model:{model.name}"):
        for options in (GREEDY, SAMPLED):
            told = {"max_tokens": 50, "ignore_eos": True, **options}
            chosen = model.usual.options(told)
            request = make_request(ids, chosen, model.program, ())
            found = find_kinds(draft)
            with Engine(model.executable, model.tokenizer, clock=clock) as engine:
                drafted = speculation(found, None, DrafterFactory(model))
                sequence = engine.submit(request, speculation=drafted, record=True)
                engine.run()
            plain = model.generate(ids, **told)
            assert tuple(sequence.output.token_ids) == plain.token_ids
            assert sequence.output.digest.hex() == plain.digest
            policy = found[draft][0].policies(None)(len(ids))
            for round_ in sequence.rounds:
                if round_.room > 1 and round_.generated:  # not of the prompt's own step
                    assert policy.choose(round_.generated, round_.room) == round_.asked
                policy.record(round_)


def test_one_draft_model_serves_several_sequences(model):
    """Each has a sequence of its own on it; one is cancelled, one ends early."""
    told = [{"max_tokens": n, "ignore_eos": True, "seed": n} for n in (5, 30, 24, 18)]
    prompts = [[3, 7, 9], [11, 12, 13, 14, 15], [1], [40, 2, 40, 2]]
    alone = [model.generate(p, **t).token_ids for p, t in zip(prompts, told, strict=True)]
    drafted = speculation(find_kinds(f"model:{model.name}"), 3, DrafterFactory(model))
    with Engine(model.executable, model.tokenizer) as engine:
        made = [
            engine.submit(
                make_request(p, GenerateOptions(**t), model.program, ()), speculation=drafted
            )
            for p, t in zip(prompts, told, strict=True)
        ]
        for _ in range(4):
            engine.step()
        made[3].cancel()
        engine.run()
    assert [tuple(s.output.token_ids) for s in made[:3]] == alone[:3]
    assert tuple(made[3].output.token_ids) == alone[3][: made[3].generated]
    assert all(s.error is None and not s.stats.drafts.error for s in made)
    assert made[1].stats.drafts.accepted > 10


PLUGIN = """
from cortiq.engine.drafters.kinds import DrafterKind
from cortiq.hookspecs import hookimpl

@hookimpl
def cortiq_drafters():
    return {returned}
"""


@pytest.mark.parametrize(
    ("returned", "sentence"),
    [
        ("[1]", "cortiq_drafters returned an object of type int, not DrafterKinds"),
        ("[DrafterKind('lookup', '', None)]", "brings the drafter 'lookup', which cortiq has"),
        ("[DrafterKind('off', '', None)]", "brings the drafter 'off', which cortiq has itself"),
        ("[DrafterKind('a b', '', None)]", "'a b' cannot be the name of a drafter"),
        ("None", "cortiq_drafters returned None; it returns a list"),
    ],
)
def test_a_plugin_that_brings_no_drafter_is_a_sentence(tmp_path, returned, sentence):
    file = tmp_path / "broken.py"
    file.write_text(PLUGIN.format(returned=returned))
    plugins = load_plugins(entry_points=[], files=[file])
    assert sentence in plugins.problems[0].sentence
    assert not plugins.drafters


def test_a_plugin_s_drafter_is_found_by_its_name(tmp_path):
    file = tmp_path / "good.py"
    file.write_text(PLUGIN.format(returned="[DrafterKind('mine', 'a test', None, 'N')]"))
    found = load_plugins(entry_points=[], files=[file]).drafters
    kind = DrafterKind("mine", "a test", None, "N")
    assert find_kinds("mine:3", found) == {"mine:3": (kind, "3")}


def test_stats_of_the_command_line_name_the_drafter(capsys):
    from cortiq.cli.main import main as command_line

    arguments = ["generate", "synthetic:tiny-llama", "-p", PROMPT, "-n", "20", "--stats"]
    more = ["--draft", "lookup", "--draft-depth", "3", "--threads", "1", "--ignore-eos"]
    with pytest.raises(SystemExit) as exit:
        command_line([*arguments, *more])
    told = capsys.readouterr().err
    assert exit.value.code == 0 and "drafted by lookup: " in told
    assert "steps without a draft: " in told


def test_kinds_that_make_no_drafter_are_a_sentence():
    """A plugin's `make` may raise what it likes, or return anything."""
    with cortiq.load("synthetic:tiny-mimo", backend="cpu", threads=1) as opened:
        for make, reason in (
            (lambda target, n: int(n), "ValueError"),
            (lambda target, n: None, "open"),
        ):
            kind = DrafterKind("mine", "a test", make, "N")
            with pytest.raises(RequestError, match=f"drafter mine makes none for 'x': .*{reason}"):
                speculation({"mine:x": (kind, "x")}, 3, DrafterFactory(opened))


def test_a_drafting_that_lacks_a_part_ends_itself_only():
    class Partly:
        name = "partly"

        def open(self, task):
            return object()

    with cortiq.load("synthetic:tiny-mimo", backend="cpu", threads=1) as opened:
        request = make_request([5, 6], GenerateOptions(max_tokens=5, seed=0), opened.program, ())
        with Engine(opened.executable, opened.tokenizer) as engine:
            one = engine.submit(request, speculation=Speculation(Partly()))
            engine.run()
    assert one.error is None and one.generated == 5 and "wants" in one.stats.drafts.error
