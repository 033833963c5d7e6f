"""Decoding is the library's, for every decoder and every order of them, whole or token by token."""

from __future__ import annotations

import json

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizer_files import VOCABULARY, added, described, replacing, write
from tokenizers import Regex, decoders
from tokenizers import Tokenizer as Engine

from cortiq.errors import TokenizerError, UnsupportedError
from cortiq.tokenizer import Detokenizer, Tokenizer, byte_tokenizer
from cortiq.tokenizer.decode_base import MIDDLE, TextEdges
from cortiq.tokenizer.decode_steps import MAKERS
from cortiq.tokenizer.decoders import DecoderChain, decoder_steps

SCHEMES = st.sampled_from(["always", "first", "never"])
STEPS = {
    "BPEDecoder": st.builds(decoders.BPEDecoder, st.sampled_from(["</w>", "a"])),
    "ByteFallback": st.builds(decoders.ByteFallback),
    "ByteLevel": st.builds(decoders.ByteLevel),
    "CTC": st.builds(
        decoders.CTC, st.sampled_from(["<pad>", "a"]), st.sampled_from(["|", "b"]), st.booleans()
    ),
    "Fuse": st.builds(decoders.Fuse),
    "Metaspace": st.builds(lambda scheme: decoders.Metaspace("▁", scheme), SCHEMES),
    "Replace": st.builds(
        lambda pair: decoders.Replace(*pair),
        st.sampled_from(
            [("▁", " "), ("ab", "b"), ("aa", "a"), ("a", ""), ("aba", "x▁"), (Regex("▁"), "_")]
        ),
    ),
    # Its `stop` makes the library panic on a shorter token.
    "Strip": st.builds(decoders.Strip, st.sampled_from(" a▁"), st.integers(0, 2), st.just(0)),
    "WordPiece": st.builds(decoders.WordPiece, st.just("##"), st.booleans()),
}
PIECES = [
    "a",
    "b",
    "ab",
    "aa",
    "aba",
    "▁",
    "▁a",
    "a▁",
    "▁▁",
    "##a",
    "##",
    "</w>",
    "ab</w>",
    "<0x41>",
    "<0xC3>",
    "<0xA9>",
    "<0xE2>",
    "<0x96>",
    "<0x81>",
    "<pad>",
    "|",
    "Ġa",
    "é",
    "Ã",
    "'s",
    "水",
]
PIECES += [" ", "", " do not", " .", " 's"]
TOKENS = st.lists(st.sampled_from(PIECES), min_size=1, max_size=7)
CHAINS = st.lists(st.one_of(*STEPS.values()), min_size=1, max_size=4).map(decoders.Sequence)


def steps_of(decoder):
    return decoder_steps(json.loads(decoder.__getstate__()), "file")


def run(chain: DecoderChain, pieces: list[str]) -> str:
    return "".join(map(chain.add, pieces)) + chain.finish()


def test_every_decoder_of_the_library_is_tried_and_made():
    known = {name for name in dir(decoders) if name[0].isupper()}
    known -= {"Decoder", "DecodeStream", "Sequence"}
    assert known == STEPS.keys() == MAKERS.keys() - {"Spaced"}


@settings(max_examples=400)
@given(CHAINS, TOKENS)
def test_any_chain_decodes_as_the_library(decoder, pieces):
    expected, got = decoder.decode(pieces), run(DecoderChain(steps_of(decoder)), pieces)
    assume("\ufffd" not in expected or "\ufffd" not in got)  # see the next test
    assert got == expected


def test_bytes_that_are_no_characters_are_shown_as_unicode_recommends():
    def text(*pieces: str) -> list[str]:
        chain = DecoderChain(steps_of(decoders.ByteFallback()))
        return [*map(chain.add, pieces), chain.finish()]

    assert text("<0x61>", "<0xFF>", "b") == ["a", "\ufffd", "b", ""]
    assert text("<0xF0>", "<0x9F>", "b") == ["", "", "\ufffdb", ""]
    assert text("<0xC3>") == ["", "\ufffd"]


@pytest.mark.parametrize("stop", [1, 2, 9])
@given(text=st.text(" a", max_size=6), cut=st.integers(0, 6))
def test_stripping_does_not_depend_on_the_parts(stop, text, cut):
    steps = [{"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": stop}]
    rest = text.removeprefix(" ")
    ends = min(stop, len(rest) - len(rest.rstrip(" ")))
    assert run(DecoderChain(steps), [text[:cut], text[cut:]]) == rest[: len(rest) - ends]


CONTINUED = [
    decoders.ByteLevel(),
    decoders.Metaspace("▁", "always"),
    decoders.WordPiece("##", False),
    decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    ),
]


@pytest.mark.parametrize("decoder", CONTINUED, ids=lambda d: type(d).__name__)
@given(pieces=TOKENS)
def test_a_continuation_and_single_tokens_are_the_rest_of_a_longer_text(decoder, pieces):
    whole = decoder.decode(["b", *pieces])
    assume("\ufffd" not in whole)
    steps = steps_of(decoder)
    assert "b" + run(DecoderChain(steps, TextEdges(first=False)), pieces) == whole
    alone = "".join(
        run(DecoderChain(steps, MIDDLE, "surrogateescape"), [piece]) for piece in pieces
    )
    assert b"b" + alone.encode("utf-8", "surrogateescape") == whole.encode()


def test_a_character_comes_with_its_last_token():
    chain = DecoderChain(steps_of(CONTINUED[-1]))
    pieces = ["▁a", "▁b", "<0xC3>", "<0xA9>", "▁"]
    assert [*map(chain.add, pieces), chain.finish()] == ["a", " b", "", "é", " ", ""]


@pytest.mark.parametrize(
    "decoder",
    [
        decoders.Replace(Regex("a+"), ""),
        decoders.Replace("", "a"),
        decoders.BPEDecoder(""),
        decoders.Sequence([decoders.Replace("a", "a" * 99)] * 2),
        decoders.Sequence([decoders.Fuse()] * 17),
    ],
)
def test_what_cannot_be_bounded_is_refused(decoder):
    with pytest.raises(UnsupportedError, match="decoder"):
        steps_of(decoder)


@pytest.mark.parametrize("decoder", [None, *CONTINUED], ids=lambda d: type(d).__name__)
def test_a_folder_decodes_as_the_library(tmp_path, decoder):
    state = decoder and json.loads(decoder.__getstate__())
    tokens = [
        added(29, "▁▁", normalized=True),
        added(30, "x y", normalized=True),
        added(31, "é"),
        added(40, "<s>", special=True),
    ]
    file = described(decoder=state, added_tokens=tokens, normalizer=replacing(" ", "▁"))
    folder = write(tmp_path, file)
    ours, library = Tokenizer.from_folder(folder), Engine.from_file(str(folder / "tokenizer.json"))
    for skip in (True, False):
        for ids in ([28, 0, 29, 30, 2], [29, 29, 31, 27, 0], [32, 0, 31], [*range(40)], []):
            text = library.decode(ids, skip_special_tokens=skip)
            assert ours.decode(ids, skip_special=skip) == text
            stream = Detokenizer(ours, skip_special=skip)
            assert "".join(map(stream.add, ids)) + stream.finish() == text


def test_the_text_of_a_start_token_is_its_own(tmp_path):
    # Templates compare and print it; decoded, it would be "<|a b|>".
    name = "<|a▁b|>"
    folder = write(
        tmp_path,
        described(decoder=replacing("▁", " "), added_tokens=[added(29, name, special=True)]),
    )
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": name}))
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.bos_token == name
    assert tokenizer.decode([29], skip_special=False) == "<|a b|>"


def padded(tmp_path):
    model = {"type": "WordLevel", "vocab": VOCABULARY | {"last": 50}, "unk_token": "a"}
    fused = json.loads(decoders.Fuse().__getstate__())
    folder = write(tmp_path, described(model=model, decoder=fused))
    return [byte_tokenizer(258), Tokenizer.from_folder(folder)]


def test_ids_without_a_piece_have_no_text(tmp_path):
    for tokenizer in padded(tmp_path):
        ids = [0, tokenizer.vocab_size, 10**6, 1]
        assert tokenizer.decode(ids) == tokenizer.decode([0, 1])
        assert tokenizer.token_bytes(10**6) == b""
        stream = Detokenizer(tokenizer)
        assert "".join(map(stream.add, ids)) + stream.finish() == tokenizer.decode([0, 1])
        with pytest.raises(TokenizerError, match="negative"):
            tokenizer.decode([-1])
    holes = padded(tmp_path)[1]
    assert holes.decode([45, 50]) == "last"
    assert holes.token_bytes(45) == b""
