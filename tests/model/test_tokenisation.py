"""Tokenisation of the two real models equals llama.cpp's, on every prompt of the data file."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from work import calls

from cortiq.formats.gguf import open_gguf
from cortiq.tokenizer import Detokenizer, Tokenizer, render

DATA = Path(__file__).parents[1] / "data" / "llama_cpp_streams.json"
LICENCE = Path("/usr/share/common-licenses/GPL-3")
LICENCE_HASH = "3972dc9744f6499f0f9b2dbf76696f2ae7ad8af9b23dde66d6af86c9dfb36986"
MODELS = {
    "smollm2": ("smollm2_path", "SmolLM2-135M-Instruct.Q4_1", 7639),
    "gemma3": ("gemma3_path", "gemma-3-270m-q4_k_m", 7562),
}
MESSAGES = [
    {"role": "user", "content": "What is 2+2?"},
    {"role": "assistant", "content": "4"},
    {"role": "user", "content": "Why?"},
]


@pytest.fixture(scope="module", params=MODELS)
def case(request) -> tuple[Tokenizer, list[dict], int]:
    fixture, name, licence_tokens = MODELS[request.param]
    metadata = open_gguf(request.getfixturevalue(fixture)).metadata
    return Tokenizer.from_gguf(metadata), json.loads(DATA.read_text())[name], licence_tokens


def test_ids_equal_llama_cpp(case):
    tokenizer, prompts, _ = case
    assert len(prompts) == 10
    for prompt in prompts:
        assert tokenizer.encode(prompt["prompt"]) == prompt["ids"]


def test_texts_equal_llama_cpp_whole_and_streamed(case):
    tokenizer, prompts, _ = case
    for prompt in prompts:
        assert tokenizer.decode(prompt["greedy"], continuation=True) == prompt["text"]
        detokenizer = Detokenizer(tokenizer, continuation=True)
        pieces = [detokenizer.add(token) for token in prompt["greedy"]]
        assert "".join(pieces) + detokenizer.finish() == prompt["text"]


def test_prompts_round_trip(case):
    tokenizer, prompts, _ = case
    for prompt in prompts:
        assert tokenizer.decode(prompt["ids"]) == prompt["prompt"]


@pytest.mark.skipif(not LICENCE.is_file(), reason="this system has no copy of the GPL version 3")
def test_the_licence_text_has_the_known_number_of_tokens(case):
    tokenizer, _, licence_tokens = case
    data = LICENCE.read_bytes()
    if hashlib.sha256(data).hexdigest() != LICENCE_HASH:
        pytest.skip("this system's copy of the GPL version 3 is another text")
    ids = tokenizer.encode(data.decode(), add_bos=False)
    assert len(ids) == licence_tokens
    assert tokenizer.decode(ids) == data.decode()


@pytest.mark.parametrize("fixture", ["smollm2_path", "gemma3_path"])
def test_opening_takes_a_few_calls_a_piece(request, fixture):
    metadata = open_gguf(request.getfixturevalue(fixture)).metadata
    work = calls(lambda: Tokenizer.from_gguf(metadata).encode("Hello"))
    pieces = len(metadata["tokenizer.ggml.tokens"]) + len(metadata.get("tokenizer.ggml.merges", ()))
    assert work < 12 * pieces


def test_what_the_files_say_about_special_tokens(request):
    smollm2, gemma3 = (
        Tokenizer.from_gguf(open_gguf(request.getfixturevalue(name)).metadata)
        for name in ("smollm2_path", "gemma3_path")
    )
    assert (smollm2.bos_id, smollm2.eos_ids, smollm2.add_bos_default) == (1, (2, 0), False)
    assert (gemma3.bos_id, gemma3.eos_ids, gemma3.add_bos_default) == (2, (1, 106), True)
    assert (smollm2.vocab_size, gemma3.vocab_size) == (49_152, 262_144)
    assert gemma3.chat_template() is None
    # The original folder calls these special, the GGUF file user-defined: no text shows them.
    image = gemma3.encode("a <start_of_image> b", add_bos=False)
    assert gemma3.decode(image) == "a  b"
    assert gemma3.decode(image, skip_special=False) == "a <start_of_image> b"


def test_smollm2s_own_template_renders_as_transformers(smollm2_path):
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    tokenizer = Tokenizer.from_gguf(open_gguf(smollm2_path).metadata)
    template = tokenizer.chat_template()
    assert template is not None
    for messages in (MESSAGES, [{"role": "system", "content": "Be brief."}, *MESSAGES]):
        ours = render(template, messages, eos_token=tokenizer.eos_token)
        theirs, _ = utils.render_jinja_template(
            conversations=[messages], chat_template=template, add_generation_prompt=True
        )
        assert ours == theirs[0]
        ids = tokenizer.encode(ours, add_bos=False, parse_special=True)
        assert ids.count(1) == len(messages) + (messages is MESSAGES) + 1  # <|im_start|>
        assert tokenizer.decode(ids, skip_special=False) == ours
