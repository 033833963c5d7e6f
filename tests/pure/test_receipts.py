"""Receipts: true ones verify on every backend, and whatever is changed is found where it is."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from installed import backends
from scripted import scripted_model

import cortiq
from cortiq.engine.request import Request, make_request
from cortiq.errors import CortiqError, FormatError, RequestError
from cortiq.model.load import model_of
from cortiq.model.source import open_source
from cortiq.options import GenerateOptions, LoadOptions, specs
from cortiq.receipts.reader import parse_receipt
from cortiq.receipts.record import ALWAYS, RECORDED, Receipt, Signature, make_receipt
from cortiq_conformance.faults import FaultyBackend

NAME = "synthetic:tiny-llama"
MODELS = [
    *(NAME, "synthetic:tiny-lfm2"),
    *(
        pytest.param(f"synthetic:{name}", marks=pytest.mark.slow)
        for name in ("tiny-gemma3", "tiny-mixtral")
    ),
]
BACKENDS = backends()
PROMPT = [72, 101, 108, 108, 111, 32, 119, 111, 114, 108, 100] * 3
DRAWS = {
    "max_tokens": 24, "temperature": 6.0, "seed": 7, "top_p": 0.99, "logit_bias": {70: 2.0, 5: -1},
    "repetition_penalty": 1.1, "choice": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def model():
    with cortiq.load(NAME, backend="reference") as opened:
        yield opened


@pytest.fixture(scope="module")
def made(model):
    return model.generate(PROMPT, **DRAWS)


@pytest.fixture(scope="module")
def receipt(made):
    return made.receipt()


def claiming(receipt, **changes):
    """The receipt of somebody who changed the claim and made the seals anew."""
    claim = replace(receipt.claim, **changes)
    return Receipt(claim, receipt.stated, claim.seals())


def with_options(receipt, **changes):
    return claiming(receipt, options=replace(receipt.claim.options, **changes))


def first(verdict):
    """Field and step of the first difference."""
    assert not verdict
    return verdict.differences[0].field, verdict.differences[0].step


@pytest.mark.parametrize("name", MODELS)
def test_receipt_of_each_backend_verifies_on_every_other(name):
    """All claim the same; so each verifies the receipt of the one before, and that is any's."""
    receipts = []
    for backend in (BACKENDS[-1], *BACKENDS):
        with cortiq.load(name, backend=backend) as opened:
            if receipts:
                verdict = opened.verify(receipts[-1])
                assert verdict and verdict.backend == backend and verdict.steps > 0
            receipts.append(opened.generate(PROMPT, **DRAWS | {"max_tokens": 9}).receipt())
    assert all(a.claim == b.claim for a, b in pairwise(receipts))


@pytest.mark.parametrize(
    "options",
    [
        {}, {"max_tokens": 1}, {"stop": ["o"], "max_tokens": 30, "temperature": 3.0, "seed": 1},
        {"presence_penalty": 3.0, "frequency_penalty": 0.5}, {"stop_ids": [5, 111]},
        {"temperature": 2.0, "top_k": 5, "seed": 2**53 - 1}, {"ignore_eos": True},
        {"temperature": 4.0, "min_p": 0.1}, {"logit_bias": {257: 100.0}},
        {"max_tokens": 29, "temperature": 2.0, "ignore_eos": True},
    ],
)  # fmt: skip
def test_every_kind_of_generation_verifies(model, options, monkeypatch):
    monkeypatch.setattr("cortiq.receipts.replay.MAX_LOGITS", 320 * 10)  # ten rows at once
    receipt = model.generate("a text to go on from", **{"max_tokens": 12} | options).receipt()
    verdict = model.verify(receipt)
    assert verdict and verdict.steps == len(receipt.claim.token_ids)


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        ("reordered canonical_sum", "digests"), ("an integer rounded twice", "digests"),
        ("a position-independent random key", "token_ids"),
    ],
)  # fmt: skip
def test_backend_with_a_wrong_bit_is_found_out_by_its_receipts(model, receipt, fault, found):
    options = LoadOptions()
    source = open_source(NAME, options)
    with model_of(NAME, source, (FaultyBackend(fault), "cpu"), options) as wrong:
        forged = wrong.generate(PROMPT, **DRAWS).receipt()
        assert wrong.verify(forged)
        assert first(wrong.verify(receipt)) == (found, 0)
    assert first(model.verify(forged)) == (found, 0)


def test_written_receipt_is_read_as_it_was(receipt, tmp_path):
    receipt.write(tmp_path / "r.json")
    assert Receipt.read(tmp_path / "r.json") == receipt
    assert cortiq.verify(tmp_path / "r.json", backend="reference")
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]


def test_cancelled_generation_verifies_and_an_empty_one_has_no_receipt():
    model = scripted_model("hello world")
    made = model.generate("ab", on_text=lambda text: text != "l")
    assert made.finish_reason == "cancelled" and model.verify(made.receipt())
    with model.stream("ab") as stream:
        stream.cancel()
        assert list(stream) == []
    with pytest.raises(RequestError, match="nothing was generated"):
        stream.generation.receipt()


def test_full_context_ends_a_text_and_verifies():
    made = scripted_model("x" * 80).generate("ab")
    assert (made.finish_reason, len(made.token_ids)) == ("length", 62)
    assert scripted_model("x" * 80).verify(made.receipt())


def test_verification_is_a_prefill():
    model = scripted_model("a text of some length")
    receipt = model.generate("ab", max_tokens=20).receipt()
    del model.executable.batches[:]
    assert model.verify(receipt)
    assert [len(batch.rows) for batch in model.executable.batches] == [1, 20]
    assert all(state.released for state in model.executable.states)


def test_verification_reads_no_option_from_the_environment(receipt, monkeypatch, tmp_path):
    receipt.write(tmp_path / "r.json")
    for name, value in (("TEMPERATURE", "0.1"), ("CONTEXT", "100"), ("WEIGHT_FORMAT", "w8")):
        monkeypatch.setenv(f"CORTIQ_{name}", value)
    assert cortiq.verify(tmp_path / "r.json", backend="reference")


@pytest.mark.parametrize("step", [0, 5, 23])
def test_forged_token_is_found_at_its_step(model, receipt, step):
    tokens = list(receipt.claim.token_ids)
    for forged in ((tokens[step] + 1) % 320, 320, 2**32 - 1):
        tokens[step] = forged
        verdict = model.verify(claiming(receipt, token_ids=tuple(tokens)))
        assert first(verdict) == ("token_ids", step) and verdict.steps == step
        assert verdict.differences[0].claimed == forged
        assert verdict.differences[0].found == receipt.claim.token_ids[step]


@pytest.mark.parametrize("step", [0, 11, 23])
def test_forged_digest_is_found_at_its_step(model, receipt, step):
    digests = list(receipt.claim.digests)
    digests[step] = (*digests[step][:3], digests[step][3] ^ 1)
    assert first(model.verify(claiming(receipt, digests=tuple(digests)))) == ("digests", step)


def test_other_prompt_is_found_at_the_first_step(model, receipt):
    for prompt in ([73, *PROMPT[1:]], PROMPT[:-1], [*PROMPT, 1]):
        verdict = model.verify(claiming(receipt, prompt_ids=tuple(prompt)))
        assert first(verdict) == ("digests", 0)
    for prompt in ((320,), (3,) * 4096, (3,) * 5000):
        assert first(model.verify(claiming(receipt, prompt_ids=prompt))) == ("prompt_ids", None)


def test_option_that_no_model_takes_is_named(model, receipt):
    for name, value in (("stop_ids", (320,)), ("logit_bias", {320: 1.0}), ("stop", ("",))):
        verdict = model.verify(with_options(receipt, **{name: value}))
        assert first(verdict) == (f"options.{name}", None)
    verdict = model.verify(with_options(receipt, temperature=2.0**30))
    assert first(verdict) == ("options", None) and "temperature" in str(verdict.differences[0])


CHANGES = [
    {"temperature": 1.0}, {"temperature": 0.0}, {"seed": 8}, {"choice": 0}, {"top_k": 2},
    {"top_p": 0.3}, {"min_p": 0.5}, {"repetition_penalty": 3.0}, {"presence_penalty": 40.0},
    {"frequency_penalty": 9.0}, {"logit_bias": {70: 90.0, 5: -1.0}},
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_changed_option_is_found_at_the_first_token_it_changes(model, made, receipt, change):
    other = model.generate(PROMPT, **DRAWS | change)
    pairs = zip(other.token_ids, made.token_ids, strict=False)
    step = next(i for i, (a, b) in enumerate(pairs) if a != b)
    verdict = model.verify(with_options(receipt, **change))
    assert first(verdict) == ("token_ids", step)
    assert verdict.differences[0].found == other.token_ids[step]


@pytest.mark.parametrize("name", RECORDED)
def test_option_whose_change_changes_no_token_is_named_by_its_seal(model, name):
    receipt = model.generate(PROMPT, max_tokens=1).receipt()
    others = {
        "logit_bias": {3: -0.5}, "stop": ("never",), "stop_ids": (3,), "ignore_eos": True,
        "max_tokens": 2, "seed": 1, "loop_tokens": 9, "top_p": 0.5, "top_k": 3, "choice": 3,
    }  # fmt: skip
    value = getattr(receipt.claim.options, name)
    other = others[name] if name in others else value + 0.25
    options = replace(receipt.claim.options, **{name: other})
    assert options != receipt.claim.options
    verdict = model.verify(replace(receipt, claim=replace(receipt.claim, options=options)))
    assert f"options.{name}" in [difference.field for difference in verdict.differences]


def test_counts_and_endings_are_checked(model, receipt):
    tokens, digests = receipt.claim.token_ids, receipt.claim.digests
    shorter = claiming(receipt, token_ids=tokens[:9], digests=digests[:9])
    longer = claiming(receipt, token_ids=(*tokens, 3), digests=(*digests, digests[0]))
    assert first(model.verify(shorter)) == ("finish_reason", 9)
    assert first(model.verify(longer)) == ("token_ids", 24)
    assert first(model.verify(with_options(receipt, max_tokens=20))) == ("token_ids", 20)
    assert first(model.verify(with_options(receipt, max_tokens=25))) == ("finish_reason", 24)
    stop = with_options(receipt, stop_ids=(tokens[4],))
    assert first(model.verify(stop)) == ("token_ids", tokens.index(tokens[4]) + 1)


def test_end_token_that_is_ignored_or_not_decides_the_end(model):
    ended = model.generate(PROMPT, logit_bias={257: 100.0}).receipt()
    assert ended.claim.finish_reason == "stop" and model.verify(ended)
    assert first(model.verify(with_options(ended, ignore_eos=True))) == ("finish_reason", 1)
    went_on = model.generate(
        PROMPT, logit_bias={257: 100.0}, ignore_eos=True, max_tokens=3
    ).receipt()
    assert first(model.verify(with_options(went_on, ignore_eos=False))) == ("token_ids", 1)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("finish_reason", "stop"), ("finish_reason", "cancelled"), ("text", "another"),
        ("chain", "0" * 64), ("fingerprint", "0" * 64), ("contract", 2), ("context", 4095),
        ("model_hash", "0" * 64), ("end_ids", ()), ("end_ids", (3, 257)),
        ("weight_format", "w8"), ("weight_format", "w16"),
    ],
)  # fmt: skip
def test_every_other_field_is_named(model, receipt, field, value):
    assert first(model.verify(claiming(receipt, **{field: value}))) == (field, None)


def test_weight_format_is_part_of_the_claim(receipt, tmp_path):
    claiming(receipt, weight_format="w8").write(tmp_path / "r.json")
    assert first(cortiq.verify(tmp_path / "r.json", backend="reference")) == ("digests", 0)


def test_other_model_is_named_before_anything_is_compiled(receipt, monkeypatch):
    monkeypatch.setattr("cortiq.receipts.verify.model_of", None)
    verdict = cortiq.verify(receipt, f"{NAME}?seed=1", backend="reference")
    assert first(verdict) == ("model_hash", None) and verdict.backend == ""


def test_context_that_the_model_cannot_have_is_named(receipt):
    verdict = cortiq.verify(claiming(receipt, context=5000), backend="reference")
    assert first(verdict) == ("context", None)
    verdict = cortiq.verify(claiming(receipt, context=5000), f"{NAME}?seed=1", backend="reference")
    assert first(verdict) == ("model_hash", None)


def test_receipt_opens_no_file_of_its_own_choice(receipt):
    for name in ("/etc/passwd", "hf:somebody/something@main", "", 3):
        stated = dict(receipt.stated) | {"model": name}
        with pytest.raises(RequestError, match="name the file or folder whose hash is"):
            cortiq.verify(replace(receipt, stated=stated))
    with pytest.raises(RequestError, match="context comes from the receipt"):
        cortiq.verify(receipt, context=100)


def test_what_is_stated_names_every_part_and_its_sources(receipt):
    stated = receipt.stated
    assert (stated["model"], stated["backend"], stated["device"]) == (NAME, "reference", "cpu")
    about = stated["computed_by"]["reference"]
    assert about["distribution"].startswith("cortiq-reference ")
    assert len(about["sources"]) == 64 and about["sources"] != "0" * 64
    assert {"cortiq", "python", "numpy", "platform", "made"} <= set(stated)


def test_options_that_a_claim_leaves_out_change_no_token(model, made):
    others = {bool: True, int: 3, float: 2.5}
    left_out = {n: spec for n, spec in specs(GenerateOptions).items() if n not in RECORDED}
    changed = {n: others[spec.type] for n, spec in left_out.items() if spec.type in others}
    assert changed.keys() >= {"chunk_rows", "confidence", "draft_depth"}
    other = model.generate(PROMPT, **DRAWS, **changed, draft="lookup")
    assert (other.token_ids, other.text, other.digest) == (made.token_ids, made.text, made.digest)
    assert other.receipt().claim == made.receipt().claim


def test_option_of_a_later_version_is_written_where_it_is_not_at_its_default(
    receipt, model, monkeypatch
):
    monkeypatch.setattr("cortiq.receipts.record.ALWAYS", ALWAYS - {"loop_tokens", "seed"})
    monkeypatch.setattr("cortiq.receipts.reader.ALWAYS", ALWAYS - {"loop_tokens", "seed"})
    later = Receipt(receipt.claim, receipt.stated, receipt.claim.seals())
    assert "seed" in later.as_object()["claim"]["options"]
    assert "loop_tokens" not in later.as_object()["claim"]["options"]
    assert "options.loop_tokens" not in later.seals
    read = parse_receipt(json.dumps(later.as_object()).encode(), "later")
    assert read == later and model.verify(read)


def test_generation_that_options_do_not_describe_has_no_receipt(model, made):
    class Masked(Request):
        """A request whose draws are under a mask."""

    request = make_request(PROMPT, made.options, model.program, model.eos_ids)
    masked = Masked(**vars(request))
    fed = replace(request, embeddings=np.zeros((len(PROMPT), 64), np.float32))
    assert make_receipt(made, model, request).claim == made.receipt().claim
    for other in (masked, fed):
        with pytest.raises(RequestError, match="cannot hold the embeddings or masks"):
            make_receipt(made, model, other)


def test_whole_receipt_is_refused_with_a_format_error_that_names_the_field(receipt, tmp_path):
    def broken(change):
        top = json.loads(json.dumps(receipt.as_object()))
        change(top)
        (tmp_path / "r.json").write_text(json.dumps(top))
        with pytest.raises(FormatError, match="is no receipt: ") as caught:
            Receipt.read(tmp_path / "r.json")
        return str(caught.value)

    assert "format: " in broken(lambda t: t.update(format="other"))
    assert "version: " in broken(lambda t: t.update(version=2))
    assert "'more', which is unknown" in broken(lambda t: t.update(more=1))
    assert "claim: has no 'text'" in broken(lambda t: t["claim"].pop("text"))
    assert "claim.options: has no 'seed'" in broken(lambda t: t["claim"]["options"].pop("seed"))
    assert "claim.options.seed: " in broken(lambda t: t["claim"]["options"].update(seed=None))
    assert "claim.options: top_p " in broken(lambda t: t["claim"]["options"].update(top_p=2))
    assert "claim.options.top_k: " in broken(lambda t: t["claim"]["options"].update(top_k=None))
    assert "claim.digests: has 23" in broken(lambda t: t["claim"]["digests"].pop())
    assert "claim.digests[0]: " in broken(lambda t: t["claim"]["digests"].__setitem__(0, "xyz"))
    assert "25 digests for 24" in broken(lambda t: t["claim"]["digests"].insert(0, "xyz"))
    assert "claim.prompt_ids, claim.token_ids: has 1000000 and 24 ids" in broken(
        lambda t: t["claim"].update(prompt_ids=["unread"] * 1_000_000)
    )
    assert "claim.end_ids: has more" in broken(lambda t: t["claim"].update(end_ids=[0] * 5000))
    assert "claim.token_ids[0]: " in broken(lambda t: t["claim"]["token_ids"].__setitem__(0, True))
    assert "claim.prompt_ids" in broken(lambda t: t["claim"].update(prompt_ids=[]))
    assert "claim: context" in broken(lambda t: t["claim"].update(context=0))
    assert "ascending" in broken(lambda t: t["claim"]["options"]["logit_bias"].reverse())
    assert "seals.text" in broken(lambda t: t["seals"].update(text="z" * 16))
    assert "stated.x: " in broken(lambda t: t["stated"].update(x=[1]))
    assert "stated: is longer" in broken(lambda t: t["stated"].update(x="y" * 70000))
    assert "ed25519" in broken(
        lambda t: t.update(signature={"algorithm": "x", "public_key": "", "value": ""})
    )


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff", b'{"format": NaN}', b"[" * 100000])
def test_what_is_no_json_object_is_refused(data, tmp_path):
    (tmp_path / "r.json").write_bytes(data)
    with pytest.raises(FormatError):
        Receipt.read(tmp_path / "r.json")


def test_receipt_is_not_written_where_it_cannot_be(receipt, tmp_path):
    for place in (tmp_path, tmp_path / "none" / "r.json"):
        with pytest.raises(CortiqError, match="cannot be written"):
            receipt.write(place)


def test_schema_in_the_docs_has_the_fields_of_a_receipt(receipt):
    schema = json.loads((Path(__file__).parents[2] / "docs/receipt-1.schema.json").read_text())
    claim = replace(receipt.claim, images=("0" * 64,), sound="0" * 64)
    about = replace(receipt, claim=claim, seals=claim.seals())

    def compare(part, value):
        if part.get("additionalProperties") is False:
            # A claim, and so its seals, name an adapter, images, a sound only where there are any.
            rare = ("adapter", "images", "sound")
            assert [n for n in part["properties"] if n not in rare or n in value] == list(value)
            assert set(part["required"]) == set(value) - {"signature", *rare}
            for name, inner in value.items():
                compare(part["properties"][name], inner)

    for made in (receipt, about):
        compare(schema, replace(made, signature=Signature("0" * 64, "0" * 128)).as_object())
