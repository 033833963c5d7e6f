"""Phi-4 multimodal: its own adapters, by what a prompt has, in both forms of its folders."""

from __future__ import annotations

import base64
import io
import json
import shutil
import sys
import urllib.request
from math import prod
from pathlib import Path

import pytest

pytest.importorskip("transformers")
pytest.importorskip("peft")
pytest.importorskip("PIL")

import numpy as np
import phi4mm_folders
import torch
import transformers
from click.testing import CliRunner
from PIL import Image
from safetensors.torch import save_file
from test_vision import EXACT, TOLERANCE, drawn, ideal_logits, prompt_of, sight_of
from vision_oracles import logits_of, processed

import cortiq
from cortiq.cli.main import cli
from cortiq.convert.run import convert_model
from cortiq.errors import FormatError, RequestError, UnsupportedError
from cortiq.explain.observed import open_observed
from cortiq.formats.checkpoint import open_checkpoint
from cortiq.formats.own_adapter import own_adapter
from cortiq.vision.load import vision_family

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
    assert json.loads(done.stdout)["digest"] == expected.digest
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


IMAGES = {
    "crop_size": 448, "embedding_cls": "tune_image", "enable_gradient_checkpointing": True,
    "hd_transform_order": "sub_glb", "image_token_compression_cls": "avg_pool_2d",
    "projection_cls": "mlp", "use_hd_transform": True, "with_learnable_separator": True,
}  # fmt: skip
PUBLISHED = {
    "model_type": "phi4mm", "hidden_size": 3072, "intermediate_size": 8192, "vocab_size": 200064,
    "num_attention_heads": 24, "num_hidden_layers": 32, "num_key_value_heads": 8,
    "max_position_embeddings": 131072, "tie_word_embeddings": True, "sliding_window": 262144,
    "embd_layer": {"embedding_cls": "image_audio", "image_embd_layer": IMAGES},
    "img_processor": None, "vision_lora": {"r": 256, "lora_alpha": 512, "dp": 0.0},
}  # fmt: skip
"""Options of images and of the text in the published config.json."""


def published(folder, images=None):
    layers = {"embd_layer": {"image_embd_layer": IMAGES | (images or {})}}
    (folder / "config.json").write_text(json.dumps(PUBLISHED | layers))
    (folder / "preprocessor_config.json").write_text(json.dumps({"dynamic_hd": 36}))
    save_file({"lm_head.weight": torch.zeros(1)}, folder / "model.safetensors")
    return vision_family(open_checkpoint(folder))


def test_the_published_tower_has_its_parameters_and_rows(tmp_path):
    family = published(tmp_path)
    program = family.module.build(family.config, family.processor.most)
    ours = sum(prod(spec.shape) for spec in program.weights.values())
    config = transformers.Phi4MultimodalConfig(num_attention_heads=24, num_hidden_layers=1)
    with torch.device("meta"):
        model = transformers.Phi4MultimodalForCausalLM._from_config(config)
    skipped = ("img_processor.head", "img_processor.post", "img_processor.encoder.layers.26")
    theirs = sum(
        p.numel() for name, p in model.model.embed_tokens_extend.image_embed.named_parameters()
        if not name.startswith(skipped)
    )  # fmt: skip
    assert ours == theirs > 4e8
    for size in ((448, 448), (300, 500), (700, 31)):
        given = phi4mm_folders.processed({"size": {"height": 448, "width": 448}}, [drawn(size)])
        made = family.processor.prepare(drawn(size))
        assert made.rows == int(given["num_img_tokens"][0])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"hd_transform_order": "glb_sub"}, "hd_transform_order"),
        ({"crop_size": 336}, "crops of 336"),
        ({"feature_layer": 40}, "feature_layer 40"),
        ({"image_size": 434, "crop_size": 434}, "squares of 2² patches"),
        ({"patch_size": 0}, "patch_size"),
        ({"feature_layer": "last"}, "feature_layer 'last'"),
    ],
    ids=str,
)
def test_a_tower_of_another_form_is_refused(tmp_path, given, message):
    with pytest.raises((FormatError, UnsupportedError), match=message):
        family = published(tmp_path, given)
        family.module.build(family.config, family.processor.most)


def test_an_image_that_is_too_long_is_refused(tmp_path):
    processor = published(tmp_path).processor
    with pytest.raises(RequestError, match="too long for the other"):
        processor.prepare(drawn((2, 40000)))
