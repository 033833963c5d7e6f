"""Phi-4 multimodal: its own adapters, by what a prompt has, in both forms of its folders."""

from __future__ import annotations

import base64
import io
import json
import shutil
import sys
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("transformers")
pytest.importorskip("peft")
pytest.importorskip("PIL")

import numpy as np
import phi4mm_folders
from click.testing import CliRunner
from PIL import Image
from test_vision import EXACT, TOLERANCE, drawn, ideal_logits, prompt_of, sight_of
from vision_oracles import logits_of, processed

import cortiq
from cortiq.cli.main import cli
from cortiq.convert.run import convert_model
from cortiq.errors import FormatError, RequestError
from cortiq.explain.observed import open_observed
from cortiq.formats.checkpoint import open_checkpoint
from cortiq.formats.own_adapter import own_adapter

sys.path.append(str(Path(__file__).parents[1] / "pure"))
from serving import Server

NAME, FORMS = "phi4_multimodal", ("folders", "published")
IMAGE = drawn((40, 70))
MESSAGES = [{"role": "user", "content": [{"image": IMAGE}, {"type": "text", "text": "what?"}]}]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Folders of both forms, and transformers' model in double, with its adapter."""
    root = tmp_path_factory.mktemp("phi4mm")
    folder = root / FORMS[0]
    folder.mkdir()
    model = phi4mm_folders.phi4_multimodal(folder)
    adapted = phi4mm_folders.with_adapter(folder, model, "vision", 7).double()
    phi4mm_folders.as_published(root / FORMS[1], folder)
    return root, adapted


@pytest.mark.parametrize("form", FORMS)
def test_logits_with_the_adapter_are_those_of_peft_in_double(written, form):
    root, adapted = written
    folder = root / form
    vision, given = sight_of(folder), processed(NAME, root / FORMS[0], [IMAGE])
    made = [vision.processor.prepare(IMAGE)]
    ids, checkpoint = prompt_of(NAME, folder, made), open_checkpoint(folder)
    theirs = logits_of(NAME, adapted, given, ids, vision.processor.token)
    adapter = own_adapter(checkpoint, "vision")
    ours = ideal_logits(checkpoint, vision, made, ids, [adapter])
    assert np.abs(ours - theirs).max() < TOLERANCE * np.abs(theirs).max()
    without = ideal_logits(checkpoint, vision, made, ids)
    assert np.abs(without - theirs).max() > 0.01 * np.abs(theirs).max()


def answers(folder, backend="cpu", **options):
    with cortiq.load(folder, images=True, backend=backend, threads=1) as model:
        prompt = model.chat_prompt(MESSAGES)
        alone = model.generate(prompt, max_tokens=4, **EXACT, **options)
        batch = model.generate_many(["hello", prompt], max_tokens=4, **EXACT, **options)
        chunks = model.generate(prompt, max_tokens=4, chunk_rows=7, **EXACT, **options)
        assert {alone.digest, batch[1].digest, chunks.digest} == {alone.digest}
        return alone, batch[0]


def test_prompts_with_images_take_the_adapter_and_texts_do_not(written, tmp_path):
    """In both forms, and as if it were chosen by name."""
    root, _ = written
    folder, plain = root / FORMS[0], tmp_path / "plain"
    seen, text = answers(folder)
    assert [one.digest for one in answers(root / FORMS[1])] == [seen.digest, text.digest]
    shutil.copytree(folder, plain)
    shutil.rmtree(plain / "vision-lora")
    with cortiq.load(plain, backend="cpu", threads=1) as model:
        assert model.generate("hello", max_tokens=4, **EXACT).digest == text.digest
    named = [f"mine={folder / 'vision-lora'}"]
    with cortiq.load(plain, images=True, backend="cpu", threads=1, adapters=named) as model:
        assert any("no adapter 'vision'" in note for note in model.notes)
        assert model.chat(MESSAGES, max_tokens=4, **EXACT).digest != seen.digest
        mine = model.chat(MESSAGES, max_tokens=4, adapter="mine", **EXACT)
        assert mine.digest == seen.digest


@pytest.mark.parametrize("backend", ["reference", "torch"])
def test_other_backends_have_the_digests(written, backend):
    root, _ = written
    expected = [one.digest for one in answers(root / FORMS[0])]
    assert [one.digest for one in answers(root / FORMS[0], backend)] == expected


def test_a_request_chooses_no_other_adapter_and_receipts_name_the_models_own(written):
    root, _ = written
    named = [f"mine={root / FORMS[0] / 'vision-lora'}:0.5"]
    with cortiq.load(
        root / FORMS[1], images=True, backend="cpu", threads=1, adapters=named
    ) as model:
        with pytest.raises(RequestError, match="own adapter 'vision'"):
            model.chat(MESSAGES, max_tokens=2, adapter="mine", **EXACT)
        with pytest.raises(RequestError, match="the model's own"):
            model.unload_adapter("vision")
        made = model.chat(MESSAGES, max_tokens=4, **EXACT)
        receipt = made.receipt()
        assert receipt.claim.adapter is not None
        assert model.verify(receipt, images=[IMAGE]).identical


def test_what_is_looked_at_has_the_adapter_too(written, tmp_path):
    root, _ = written
    folder, plain = root / FORMS[0], tmp_path / "plain"
    shutil.copytree(folder, plain)
    shutil.rmtree(plain / "vision-lora")
    options, found = {"images": True, "backend": "cpu"}, []
    for where, adapter in ((folder, ""), (plain, str(folder / "vision-lora")), (plain, "")):
        with open_observed(str(where), adapter=adapter, **options) as one:
            ids = one.with_images("what?", [IMAGE])
            found.append(next(iter(one.rows(ids, ["logits"])))["logits"])
    assert np.array_equal(found[0], found[1]) and not np.array_equal(found[0], found[2])
    with pytest.raises(RequestError, match="own adapter 'vision'"):
        open_observed(str(folder), adapter=str(folder / "vision-lora"), **options)


@pytest.mark.parametrize("form", FORMS)
def test_a_conversion_keeps_the_adapter_or_says_what_to_copy(written, form, tmp_path):
    root, _ = written
    made = convert_model(str(root / form), tmp_path / "made", "w16")
    expected = answers(root / form)[0].digest
    if form == FORMS[0]:
        assert any("vision-lora" in line for line in made.notes)
        shutil.copytree(root / form / "vision-lora", tmp_path / "made/vision-lora")
    assert answers(tmp_path / "made")[0].digest == expected


def test_the_command_line_and_the_server_answer_with_the_adapter(written, tmp_path):
    root, _ = written
    folder = str(root / FORMS[1])
    expected = answers(folder)[0]
    Image.fromarray(IMAGE).save(tmp_path / "a.png")
    done = CliRunner().invoke(
        cli,
        ["generate", folder, "--backend", "cpu", "--threads", "1", "--chat", "-p", "what?",
         "--image", str(tmp_path / "a.png"), "--temperature", "0", "-n", "4", "--ignore-eos",
         "--json"],
    )  # fmt: skip
    assert json.loads(done.output)["digest"] == expected.digest
    data = io.BytesIO()
    Image.fromarray(IMAGE).save(data, "PNG")
    url = "data:image/png;base64," + base64.b64encode(data.getvalue()).decode()
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "what?"}]
    body = {"model": "published", "messages": [{"role": "user", "content": content}],
            "max_tokens": 4, "temperature": 0, "ignore_eos": True}  # fmt: skip
    server = Server(folder, "--images", "--backend", "cpu", "--threads", "1")
    try:
        asked = json.dumps(body).encode()
        with urllib.request.urlopen(server.url + "/v1/chat/completions", asked, timeout=60) as got:
            (choice,) = json.load(got)["choices"]
        assert choice["message"]["content"] == expected.text
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c, t: c["vision_lora"].pop("lora_alpha"), "lora_alpha None"),
        (lambda c, t: t.pop(next(n for n in t if "lora_B.vision" in n)), "one matrix of two"),
    ],
    ids=["alpha", "side"],
)
def test_a_damaged_adapter_is_refused(written, tmp_path, change, message):
    root, _ = written
    folder = tmp_path / "damaged"
    shutil.copytree(root / FORMS[1], folder)
    config = json.loads((folder / "config.json").read_text())
    tensors = phi4mm_folders.load_file(folder / "model.safetensors")
    change(config, tensors)
    (folder / "config.json").write_text(json.dumps(config))
    phi4mm_folders.save_file(tensors, folder / "model.safetensors")
    with pytest.raises(FormatError, match=message):
        cortiq.load(folder, images=True, backend="reference")
