"""Incremental text equals whole text, and stop strings don't depend on how a text is cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cortiq.errors import RequestError, TokenizerError
from cortiq.tokenizer import Detokenizer, StopMatcher, Tokenizer, byte_tokenizer

TOKENIZER = byte_tokenizer(300)


def spaced_tokenizer() -> Tokenizer:
    tokens = ["<unk>", "<s>", "</s>", "▁a", "▁", "a", "b", "<0xC3>", "<0xA9>"]
    return Tokenizer.from_gguf(
        {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.scores": [0.0, 0.0, 0.0, -1.0, -2.0, -3.0, -4.0, 0.0, 0.0],
            "tokenizer.ggml.token_type": [2, 3, 3, 1, 1, 1, 1, 6, 6],
        }
    )


def stream(tokenizer: Tokenizer, ids: list[int], **options: bool) -> list[str]:
    detokenizer = Detokenizer(tokenizer, **options)
    return [*(detokenizer.add(token) for token in ids), detokenizer.finish()]


@given(st.lists(st.integers(0, 299)), st.booleans())
def test_any_bytes_stream_to_the_same_text(ids, skip_special):
    pieces = stream(TOKENIZER, ids, skip_special=skip_special)
    assert "".join(pieces) == TOKENIZER.decode(ids, skip_special=skip_special)


@given(st.text())
def test_only_whole_characters_are_emitted(text):
    pieces = stream(TOKENIZER, TOKENIZER.encode(text))
    assert "".join(pieces) == text
    assert [piece for piece in pieces if piece] == list(text)


@given(st.lists(st.integers(0, 8)), st.booleans(), st.booleans())
def test_the_leading_space_is_the_same_streamed_or_whole(ids, skip_special, continuation):
    tokenizer = spaced_tokenizer()
    options = {"skip_special": skip_special, "continuation": continuation}
    assert "".join(stream(tokenizer, ids, **options)) == tokenizer.decode(ids, **options)


def test_a_continuation_keeps_its_leading_space():
    tokenizer = spaced_tokenizer()
    assert tokenizer.decode([1, 3, 6]) == "ab"
    assert tokenizer.decode([3, 6], continuation=True) == " ab"
    assert stream(tokenizer, [3, 7, 8, 6], continuation=True) == [" a", "", "é", "b", ""]


def test_leftover_bytes_become_a_replacement_character():
    assert stream(TOKENIZER, [0x61, 0xF0, 0x9F]) == ["a", "", "", "\ufffd"]


def test_an_id_without_a_piece_has_no_text_and_a_negative_one_is_named():
    assert stream(TOKENIZER, [0xC3, 300, 0xA9]) == ["", "", "é", ""]
    for wrong in (
        Detokenizer(TOKENIZER).add,
        TOKENIZER.token_bytes,
        lambda i: TOKENIZER.decode([i]),
    ):
        with pytest.raises(TokenizerError, match="-1"):
            wrong(-1)


def whole_text_answer(text: str, stops: list[str]) -> str:
    """The text before the stop string that is complete first; the longest of those."""
    for end in range(len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return text[: end - max(map(len, found))]
    return text


LETTERS = st.text("abé", max_size=30)
STOPS = st.lists(st.text("abé", min_size=1, max_size=5), max_size=4)


@given(LETTERS, STOPS, st.data())
def test_stopping_does_not_depend_on_the_pieces(text, stops, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)))))
    matcher, emitted, stopped = StopMatcher(stops), "", False
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        piece, stopped = matcher.add(text[start:end])
        emitted += piece
        assert text.startswith(emitted)
    assert stopped == any(stop in text for stop in stops)
    assert (matcher.matched is not None) == stopped
    assert emitted + matcher.finish() == whole_text_answer(text, stops)


@given(LETTERS, STOPS)
def test_no_more_is_held_back_than_could_become_a_stop(text, stops):
    matcher, emitted = StopMatcher(stops), ""
    for letter in text:
        piece, stopped = matcher.add(letter)
        emitted += piece
        seen = text[: len(emitted)]
        if stopped:
            break
        held = text[len(seen) : len(text)]
        assert emitted == seen
        if not any(stop.startswith(letter) or letter in stop for stop in stops):
            assert piece.endswith(letter), held


def test_after_a_stop_nothing_comes_any_more():
    matcher = StopMatcher(["###"])
    assert matcher.add("ab#") == ("ab", False)
    assert matcher.add("##c") == ("", True)
    assert matcher.matched == "###"
    assert matcher.add("more") == ("", True)
    assert matcher.finish() == ""


def test_a_held_back_end_is_given_at_the_finish():
    matcher = StopMatcher(["\n\nUser:"])
    assert matcher.add("Hi\n") == ("Hi", False)
    assert matcher.finish() == "\n"


def test_an_empty_stop_string_is_refused():
    with pytest.raises(RequestError, match="empty"):
        StopMatcher(["a", ""])
