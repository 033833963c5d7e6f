"""Character-level BPE of GGUF files against the pipeline that tokenizer.json has for it."""

from __future__ import annotations

import json

import pytest
import tokenizers
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from cortiq.errors import TokenizerError
from cortiq.tokenizer import Tokenizer

TEXT = "the cat sat on the mat\n\nthe dog ate the log\nhe  sat   there: naïve, 3,14\n" * 20
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def trained():
    """A byte-fallback BPE over lines, as Gemma's tokenizer.json is made."""
    engine = tokenizers.Tokenizer(models.BPE(byte_fallback=True, fuse_unk=False))
    engine.normalizer = normalizers.Replace(" ", "▁")
    engine.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex("\\n+"), "isolated")
    engine.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=["<bos>", *BYTES])
    engine.train_from_iterator([TEXT], trainer)
    return engine


ENGINE = trained()
MODEL = json.loads(ENGINE.to_str())["model"]


def metadata(**changes):
    """Return the same vocabulary as GGUF files hold it."""
    tokens = sorted(MODEL["vocab"], key=MODEL["vocab"].get)
    merges = [" ".join(m) if isinstance(m, list) else m for m in MODEL["merges"]]
    kinds = [3 if t == "<bos>" else 6 if t in BYTES else 1 for t in tokens]
    given = {
        "model": "gemma4", "tokens": tokens, "merges": merges, "token_type": kinds,
        "bos_token_id": 0, "scores": [0.0] * len(tokens),
    }  # fmt: skip
    return {f"tokenizer.ggml.{k}": v for k, v in (given | changes).items() if v is not None}


OURS = Tokenizer.from_gguf(metadata())


@given(st.text(st.sampled_from("the catsdolgm ,:\nï3\t▁ж😀\x00"), max_size=60))
@example(TEXT)
@example("\n\n\n\n the")
def test_ids_are_those_of_the_pipeline(text):
    ids = OURS.encode(text)
    assert ids[:1] == [0]  # llama.cpp puts BOS before these whatever the file says
    assert ids[1:] == ENGINE.encode(text, add_special_tokens=False).ids
    assert OURS.decode(ids[1:], continuation=True) == text.replace("▁", " ")


def test_a_run_of_newlines_that_is_a_token_stays_whole():
    assert MODEL["vocab"].get("\n\n") in OURS.encode("cat\n\ndog")


def test_a_byte_without_a_token_is_an_error():
    tokens = [t for t in metadata()["tokenizer.ggml.tokens"] if t != "<0x7F>"]
    lacking = metadata(tokens=tokens, token_type=None, scores=None)
    with pytest.raises(TokenizerError, match="0x7F"):
        Tokenizer.from_gguf(lacking)
