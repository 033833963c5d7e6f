"""A real GGUF file to CMF: the written tokenizer is the file's; slow: perplexity."""

from __future__ import annotations

from pathlib import Path

import pytest
from installed import backends

import cortiq
from cortiq.convert.cmf_tokenizer import bundle_of, tokenizer_json
from cortiq.convert.run import convert_model
from cortiq.formats.checkpoint import open_checkpoint
from cortiq.formats.tokenizer_files import TokenizerFiles
from cortiq.tokenizer.from_folder import load_files
from cortiq.tokenizer.tokenizer import Tokenizer

TEXTS = (
    "", "Hello, world!", "  two  spaces\n\n\ttabs 12345 6.78", "naïve café — Ünïcode 漢字 🙂👩‍👩‍👧",
    "def f(x):\n    return x**2  # it's", "<|im_start|>user\nHi<|im_end|>\n", "\u00a0\u200b\r\n'LL",
)  # fmt: skip
GPL3 = Path("/usr/share/common-licenses/GPL-3")


def test_the_written_tokenizer_is_the_gguf_files(smollm2_path):
    checkpoint = open_checkpoint(smollm2_path)
    old, bundle = Tokenizer.from_gguf(checkpoint.tokenizer_source), bundle_of(checkpoint)
    written = TokenizerFiles(
        tokenizer_json(checkpoint), "x", bundle["chat_template"],
        tuple(bundle["eos_token_ids"]), bundle["bos_token_id"],
    )  # fmt: skip
    new = Tokenizer(*load_files(written))
    for text in (*TEXTS, GPL3.read_text() if GPL3.is_file() else "text"):
        for special in (False, True):
            ids = old.encode(text, parse_special=special)
            assert new.encode(text, parse_special=special) == ids
            assert new.decode(ids) == old.decode(ids)
    assert new.chat_template() == old.chat_template()
    assert (new.bos_id, new.eos_ids) == (old.bos_id, old.eos_ids)
    assert new.add_bos_default == old.add_bos_default


@pytest.mark.slow
def test_eight_bits_lose_less_than_half_a_percent(smollm2_path, tmp_path):
    made = convert_model(str(smollm2_path), tmp_path / "m.cmf", "w8")
    scores = []
    for path in (smollm2_path, made.path):
        with cortiq.load(str(path)) as model:
            scores.append(model.score(GPL3.read_text(), window=512, windows=6).perplexity)
    assert abs(scores[1] / scores[0] - 1) < 0.005


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["w8", "q4_tiled", "q4tp", "vbit_ro"])
def test_every_backend_gives_the_same_tokens(kind, smollm2_path, tmp_path):
    made = convert_model(str(smollm2_path), tmp_path / "m.cmf", kind)
    found = {}
    for backend in backends():
        with cortiq.load(str(made.path), backend=backend) as model:
            found[backend] = model.generate("The sky is", max_tokens=4, ignore_eos=True).digest
    assert len(found) > 3 and len(set(found.values())) == 1, found
