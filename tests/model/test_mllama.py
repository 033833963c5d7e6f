"""Llama 3.2 Vision: which tiles a row sees, prefixes with images, canvases, refusals."""

from __future__ import annotations

import json
import re
from math import prod

import pytest

pytest.importorskip("transformers")
pytest.importorskip("PIL")

import mllama_oracle
import numpy as np
import torch
import transformers
import vision_folders
from safetensors.numpy import save_file
from test_vision import EXACT, TOLERANCE, drawn, ideal_logits, sight_of
from transformers.models.mllama import image_processing_pil_mllama as theirs
from vision_oracles import processed

import cortiq
from cortiq.backend import Batch, Digest, Row, Status
from cortiq.engine.prompt_images import ImageSpan, with_spans
from cortiq.engine.session import Session
from cortiq.errors import RequestError, UnsupportedError
from cortiq.formats.checkpoint import open_checkpoint
from cortiq.tokenizer.tokenizer import Tokenizer
from cortiq.vision import mllama
from cortiq.vision.load import vision_family
from cortiq.vision.mllama_tiles import best_form, fitted_size

SIZES = ((40, 70), (150, 149), (20, 31))
FORMS = {
    "usual": {},
    "two tiles, a layer read twice": {
        "max_num_tiles": 2, "supported_aspect_ratios": [[1, 1], [1, 2], [2, 1]],
        "image_size": 42, "attention_heads": 3, "intermediate_layers_indices": [1, 0, 1],
        "vision_output_dim": 96,
        "text": {"cross_attention_layers": [0, 1, 3], "num_key_value_heads": 4},
    },
    "one global layer, one layer read": {
        "num_global_layers": 1, "intermediate_layers_indices": [2], "vision_output_dim": 48,
        "text": {"cross_attention_layers": [2], "num_key_value_heads": 1},
    },
}  # fmt: skip
TEXTS = ("hello", "ab#what?", "a#bc#de#f", "a##bc#", "###", "#a")
"""Prompts, with # for an image."""


@pytest.fixture(scope="module", params=FORMS)
def written(request, tmp_path_factory):
    """A folder and transformers' model in double."""
    folder = tmp_path_factory.mktemp("mllama")
    return folder, vision_folders.mllama(folder, **FORMS[request.param]).double()


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    """The folder of the usual form."""
    folder = tmp_path_factory.mktemp("usual")
    vision_folders.mllama(folder)
    return folder


@pytest.mark.parametrize("text", TEXTS)
def test_rows_see_the_tiles_of_the_last_images_before_them(written, text):
    """Also where images are neighbours, or there are none; rows before the first see nothing."""
    folder, model = written
    images, vision = [drawn(size) for size in SIZES[: text.count("#")]], sight_of(folder)
    ids = Tokenizer.from_folder(folder).encode(
        text.replace("#", "<|image|>"), parse_special=True
    )  # fmt: skip
    made, token = [vision.processor.prepare(image) for image in images], vision.processor.token
    given = processed("mllama", folder, images) if images else None
    ours = ideal_logits(open_checkpoint(folder), vision, made, ids)
    first = bool(text.startswith("#"))  # transformers as it is: no row comes before
    logits = mllama_oracle.logits_of(model, given, ids, token, zeroed=not first)
    assert np.abs(ours - logits).max() < TOLERANCE * np.abs(logits).max()


def test_canvases_are_those_of_transformers():
    sizes = np.exp(np.random.default_rng(3).uniform(0, 8, (150, 2))).astype(int) + 1
    forms = [(y, x) for y in range(1, 5) for x in range(1, 5) if x * y <= 4]
    for height, width in [*sizes.tolist(), (560, 560), (1120, 560), (560, 2240)]:
        canvas = theirs.get_optimal_tiled_canvas(height, width, 4, 560)
        fitted = theirs.get_image_size_fit_to_canvas(height, width, *canvas, 560)
        form = best_form(height, width, forms, 560)
        assert (form[0] * 560, form[1] * 560) == tuple(canvas)
        assert fitted_size(height, width, canvas, 560) == tuple(map(int, fitted))


def content(*parts):
    return [{"type": "text", "text": p} if isinstance(p, str) else {"image": p} for p in parts]


def test_a_prefix_is_reused_with_its_images_alone(usual):
    """Later images are other ones, or none; what a state has of others is forgotten."""
    one, two, three = (drawn(size, seed=9) for size in SIZES)
    start = "the beginning of a text"
    turns = [
        content(start, one, "and then", two), content(start, one, "and then", three),
        content(start, one, "and then"), content(start, two, "and then", one),
        content(start, "without"), content(start, one, "and then", two),
    ]  # fmt: skip
    turns = [[{"role": "user", "content": turn}] for turn in turns]
    options = {"max_tokens": 3, **EXACT}
    with cortiq.load(usual, images=True, backend="cpu", threads=1) as model:
        alone = [model.chat(turn, **options).digest for turn in turns]
        assert len(set(alone)) == 5
        drafted = model.chat(turns[0], draft="lookup", chunk_rows=3, **options)
        assert drafted.digest == alone[0]
        together = model.generate_many([model.chat_prompt(turn) for turn in turns], **options)
        assert [made.digest for made in together] == alone
        model.keep_prefixes()
        again = [model.chat(turn, **options) for turn in turns]
    assert [made.digest for made in again] == alone
    reused = [made.stats.reused_tokens for made in again]
    with_first = 1 + len("<turn>user\n") - 5 + len(start) + 1
    assert reused[0] == 0 and min(reused[1], reused[2], reused[5]) > with_first
    assert 0 < reused[3] < with_first and 0 < reused[4] <= with_first


def test_penalties_pass_by_ids_that_have_no_logit(usual):
    options = {"max_tokens": 4, "repetition_penalty": 1.5, **EXACT}
    turn, found = [{"role": "user", "content": content("aa", drawn(SIZES[0]), "b")}], []
    for backend in ("reference", "cpu"):
        with cortiq.load(usual, images=True, backend=backend) as model:
            found.append(model.chat(turn, **options).digest)
    assert found[0] == found[1]


def test_images_that_are_too_many_or_no_images_are_refused(usual):
    with cortiq.load(usual, images=True, backend="cpu", threads=1) as model:
        token = model.senses.of("image", "").processor.token
        with pytest.raises(RequestError, match="is a part of an image"):
            model.generate([5, token, 6], max_tokens=1)
        rows = np.zeros((68, 64), np.float32)
        spans = [ImageSpan((n,), lambda: rows, "00", (2, 2)) for n in range(17)]
        with pytest.raises(RequestError, match="images of 68 tiles: at most 64"):
            with_spans(None, model.program, 20, spans)
        with pytest.raises(RequestError, match="one place"):
            with_spans(None, model.program, 20, [ImageSpan((1, 2), lambda: rows, "00", (2, 2))])
        prompt = with_spans(None, model.program, 20, spans[:2])
        with Session(model.executable, 400) as session:
            prompt.attended.store(model.executable, session.state)
            given = enumerate([prompt.inputs(at) for at in (1, 0)])
            row = [Row(session.state, at, 5, (Digest("logits"),), one) for at, one in given]
            outcome = model.executable.forward(Batch(row)).result().outcomes[session.state]
        assert outcome.status is Status.DECLINED and "the row before it" in outcome.reason
    plain = cortiq.load(usual, backend="cpu", threads=1)
    with plain as model, pytest.raises(RequestError, match="is a part of an image"):
        model.generate([5, token, 6], max_tokens=1)


@pytest.mark.parametrize(
    "rules",
    [{"max_image_tiles": 2}, {"size": {"height": 28, "width": 28}}, {"do_pad": False}],
    ids=str,
)
def test_rules_that_do_not_fit_the_tower_are_refused(tmp_path, rules):
    vision_folders.mllama(tmp_path)
    file = tmp_path / "preprocessor_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | rules))
    with pytest.raises(UnsupportedError):
        sight_of(tmp_path)


def test_the_published_tower_has_its_parameters(tmp_path):
    """Tables of positions are read into others, and gates into numbers."""
    text = {"hidden_size": 4096, "num_hidden_layers": 1, "vocab_size": 64,
            "cross_attention_layers": [], "pad_token_id": None, "bos_token_id": 1,
            "eos_token_id": 2}  # fmt: skip
    config = transformers.MllamaConfig(text_config=text, vision_config={"image_size": 560})
    config.save_pretrained(tmp_path)
    rules = {"size": {"height": 560, "width": 560}, "max_image_tiles": 4, "resample": 2}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(rules))
    save_file({"lm_head.weight": np.zeros(1, np.float32)}, tmp_path / "model.safetensors")
    family = vision_family(open_checkpoint(tmp_path))
    program = family.module.build(family.config, family.processor.most)
    made = (mllama.PLACES, mllama.AFTER, mllama.GATED)
    ours = sum(
        prod(spec.shape) for name, spec in program.weights.items()
        if not name.startswith(made[:2]) and not re.match(rf"{made[2]}\.\d+\.(attn|ffn)\.", name)
    )  # fmt: skip
    with torch.device("meta"):
        model = transformers.MllamaForConditionalGeneration(config).model
    parts = (model.vision_model, model.multi_modal_projector)
    theirs = sum(
        p.numel() for part in parts for name, p in part.named_parameters()
        if "positional" not in name and "gate_" not in name and name != "class_embedding"
    )  # fmt: skip
    assert ours == theirs > 8e8
    assert program.weights[f"{mllama.PLACES}.weight"].shape == (8 * 4 * 1601, 1280)
    image = family.processor.prepare(np.zeros((300, 900, 3), np.uint8))
    assert image.grid == (1, 2) and len(image.tiles[0].squares) == 3202
    assert len(image.tiles[0].patches) == 4 * 1608
