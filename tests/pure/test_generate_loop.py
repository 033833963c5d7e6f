"""The generation loop against an executable that says what it was told to."""

from __future__ import annotations

import hashlib
import struct
import threading

import pytest
from scripted import END, scripted_model

from cortiq.backend import Argmax, Digest, Draw, Drawn
from cortiq.engine.digest_chain import START, chain
from cortiq.errors import (
    BackendError,
    DeclinedError,
    RequestError,
    SequenceFailedError,
    TokenizerError,
)
from cortiq.numerics.digest import digest


def pieces_of(model, prompt="ab", **options):
    stream = model.stream(prompt, **options)
    return list(stream), stream.generation


def test_text_ends_at_the_end_token_which_is_counted_but_not_shown():
    made = scripted_model("hello").generate("ab")
    assert made.text == "hello"
    assert made.token_ids == (*b"hello", END)
    assert made.finish_reason == "stop"


def test_length_ends_it_and_no_step_is_wasted():
    model = scripted_model("hello world")
    made = model.generate("ab", max_tokens=5)
    assert (made.text, made.finish_reason) == ("hello", "length")
    assert len(model.executable.batches) == 5
    assert model.executable.fed == list(b"abhell")


def test_ignore_eos_goes_on():
    made = scripted_model("x").generate("ab", max_tokens=3, ignore_eos=True)
    assert made.token_ids == (ord("x"), END, END)
    assert made.finish_reason == "length"


def test_stop_id_ends_after_the_token():
    made = scripted_model("hello").generate("ab", stop_ids=[ord("l")])
    assert made.token_ids == tuple(b"hel")
    assert (made.text, made.finish_reason) == ("he", "stop")


def test_stop_string_is_found_across_tokens_and_cut_off():
    pieces, made = pieces_of(scripted_model("one STOP two"), stop=["STOP"])
    assert (made.text, made.finish_reason) == ("one ", "stop")
    assert made.token_ids == tuple(b"one STOP")
    assert "".join(pieces) == "one "


def test_beginning_of_a_stop_string_at_the_end_is_given_out():
    made = scripted_model("one STO").generate("ab", stop=["STOP"])
    assert (made.text, made.finish_reason) == ("one STO", "stop")
    made = scripted_model("one STO and").generate("ab", stop=["STOP"], max_tokens=7)
    assert (made.text, made.finish_reason) == ("one STO", "length")


def test_pieces_are_whole_characters():
    pieces, made = pieces_of(scripted_model("añ€😀"))
    assert pieces == ["a", "ñ", "€", "😀"]
    assert made.text == "añ€😀"


def test_incomplete_character_at_the_end_becomes_a_replacement():
    pieces, made = pieces_of(scripted_model("a€".encode()[:-1]), max_tokens=3)
    assert pieces == ["a", "\ufffd"]
    assert made.text == "a\ufffd"


def test_next_step_is_submitted_before_the_token_is_read_and_fed_by_it():
    model = scripted_model("xyz")
    model.generate("ab", max_tokens=3)
    expected = [("submit", 1), ("submit", 2), ("read", 1), ("submit", 3), ("read", 2), ("read", 3)]
    order = [event for event in model.executable.events if event[0] != "rewind"]
    assert list(dict.fromkeys(order)) == expected
    inputs = [batch.rows[-1].token for batch in model.executable.batches]
    assert inputs == [ord("b"), Drawn(1), Drawn(0)]


def test_synchronous_executable_is_asked_for_a_step_when_its_token_was_delivered():
    model = scripted_model("xyz", asynchronous=False)
    seen = []
    made = model.generate(
        "ab", max_tokens=3, on_text=lambda piece: seen.append(len(model.executable.batches))
    )
    assert (made.text, seen) == ("xyz", [1, 2, 3])
    assert model.executable.fed == list(b"abxy")


def test_synchronous_and_asynchronous_executables_give_the_same():
    made = [
        scripted_model("hello", asynchronous=flag).generate("ab", stop=["lo"])
        for flag in (True, False)
    ]
    assert made[0].digest == made[1].digest and made[0].token_ids == made[1].token_ids


def test_cancelled_synchronous_generation_computes_no_further_step():
    model = scripted_model("hello", asynchronous=False)
    made = model.generate("ab", on_text=lambda piece: False)
    assert (made.text, made.finish_reason) == ("h", "cancelled")
    assert len(model.executable.batches) == 1


def test_what_a_backend_raises_is_a_backend_error_in_every_call():
    model = scripted_model("hello", asynchronous=False)

    def broken(*_):
        raise ValueError("oops")

    for name in ("open", "forward", "outcome"):
        plain = getattr(model.executable, name)
        setattr(model.executable, name, broken)
        with pytest.raises(
            BackendError, match="backend scripted failed: ValueError: oops"
        ) as caught:
            model.generate("ab")
        assert type(caught.value.__cause__) is ValueError
        setattr(model.executable, name, plain)
    assert model.generate("ab").text == "hello"


def test_hint_of_a_failure_speaks_of_the_weights_only_for_our_own_backends():
    model = scripted_model("hello", failing=[2])
    with pytest.raises(SequenceFailedError, match="cortiq conform --backend scripted"):
        model.generate("ab")
    model.executable.placement = dict.fromkeys(model.executable.placement, "reference")
    with pytest.raises(SequenceFailedError, match="damaged weights"):
        model.generate("ab")


def test_step_that_ran_ahead_is_rewound():
    model = scripted_model("hi")
    made = model.generate("ab")
    assert made.token_ids == (*b"hi", END)
    assert model.executable.events[-1] == ("rewind", 4)
    assert model.executable.states[0].tokens == list(b"abhi")
    assert model.executable.states[0].released


def test_failure_of_the_step_that_ran_ahead_concerns_nobody():
    model = scripted_model("hi", failing=[5])
    assert model.generate("ab").text == "hi"
    with pytest.raises(SequenceFailedError, match="position 5"):
        scripted_model("hi you", failing=[5]).generate("ab")


def test_every_row_is_asked_only_for_what_is_needed():
    model = scripted_model("hi")
    model.generate("ab")
    first = model.executable.batches[0].rows
    assert first[0].wants == ()
    assert first[1].wants == (Argmax(), Digest("logits"))
    model.generate("ab", temperature=0.5, seed=7, logit_bias={3: 1.0})
    draw = model.executable.batches[-1].rows[0].wants[0]
    assert isinstance(draw, Draw) and draw.sampling.temperature == 0.5 and draw.sampling.seed == 7
    assert draw.sampling.logit_bias == {3: 1.0}


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 64])
def test_chunk_rows_cut_the_prompt_and_change_nothing(rows):
    prompt = "a longer prompt"
    model = scripted_model("answer", prompt=prompt)
    made = model.generate(prompt, chunk_rows=rows, max_tokens=6)
    sizes = [len(batch.rows) for batch in model.executable.batches][: -(-len(prompt) // rows)]
    assert sum(sizes) == len(prompt) and max(sizes) == min(rows, len(prompt))
    assert made.text == "answer"
    assert made.digest == chained(model, range(len(prompt) - 1, len(prompt) + 5))


def chained(model, positions):
    """The chain written out once more, from its definition."""
    link = bytes(32)
    for position in positions:
        words = digest(model.executable.logits(position))
        link = hashlib.sha256(link + b"".join(struct.pack("<I", w) for w in words)).digest()
    return link.hex()


def test_digest_is_the_chain_over_the_steps_of_the_tokens():
    model = scripted_model("hello")
    assert model.generate("ab").digest == chained(model, range(1, 7))
    assert bytes(32) == START
    assert chain(START, (1, 2, 3, 4)) != chain(START, (2, 1, 3, 4))


def test_cancel_by_event_ends_before_the_next_step():
    cancel = threading.Event()
    model = scripted_model("a long answer")
    seen = []

    def on_text(piece):
        seen.append(piece)
        if len(seen) == 3:
            cancel.set()

    made = model.generate("ab", cancel=cancel, on_text=on_text)
    assert (made.text, made.finish_reason) == ("a l", "cancelled")
    assert model.executable.states[0].released


def test_cancel_by_the_callback_returning_false():
    made = scripted_model("a long answer").generate("ab", on_text=lambda piece: piece != "o")
    assert (made.text, made.finish_reason) == ("a lo", "cancelled")


def test_cancel_before_the_start_computes_nothing():
    cancel = threading.Event()
    cancel.set()
    model = scripted_model("text")
    made = model.generate("ab", cancel=cancel)
    assert (made.text, made.token_ids, made.finish_reason) == ("", (), "cancelled")
    assert model.executable.batches == []


def test_leaving_a_stream_early_frees_the_sequence_and_the_model():
    model = scripted_model("a long answer")
    with model.stream("ab") as stream:
        assert next(stream) == "a"
        with pytest.raises(RequestError, match="busy"):
            model.generate("ab")
        with pytest.raises(ValueError, match="not ended"):
            _ = stream.generation
    assert model.executable.states[0].released
    reads = {position for what, position in model.executable.events if what == "read"}
    assert reads == {position for what, position in model.executable.events if what == "submit"}
    assert model.generate("ab").text == "a long answer"


def test_failed_sequence_is_an_error_and_the_model_stays_usable():
    model = scripted_model("hello", failing=[3])
    with pytest.raises(SequenceFailedError, match="planted"):
        model.generate("ab")
    assert model.executable.states[0].released
    model.executable.failing.clear()
    assert model.generate("ab").text == "hello"


def test_error_of_an_abandoned_step_does_not_hide_the_first_one():
    model = scripted_model("hello")
    plain = model.executable.logits

    def broken(position):
        if position >= 3:
            raise OSError(f"the device fell off at {position}")
        return plain(position)

    model.executable.logits = broken
    with pytest.raises(
        BackendError, match="backend scripted failed: OSError: the device"
    ) as caught:
        model.generate("ab")
    assert "fell off at 3" in str(caught.value.__cause__)
    assert model.executable.states[0].released
    with pytest.raises(SequenceFailedError):
        scripted_model("hello", failing=[2, 3]).generate("ab")


def test_declined_batch_is_an_error_with_the_reason():
    with pytest.raises(DeclinedError, match="no mood"):
        scripted_model("hello", declining=[1]).generate("ab")


def test_backend_that_draws_no_token_of_the_vocabulary_is_named():
    model = scripted_model("hello")
    model.executable.logits = lambda position: (
        __import__("numpy").zeros(300, "f4") + (__import__("numpy").arange(300) == 299)
    )
    with pytest.raises(BackendError, match="drew token 299"):
        model.generate("ab")


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ("", {}, "empty"),
        (None, {}, "a text or token ids are wanted, not None"),
        ([], {}, "empty"),
        ([5, 258], {}, "token id 258 is outside"),
        ([-1], {}, "token id -1 is outside"),
        (["a"], {}, "not a token id"),
        ([1.5], {}, "not a token id"),
        ([True], {}, "not a token id"),
        ("x" * 65, {}, r"65 tokens, the context is 64\n  shorten the prompt: it is the longest"),
        ("x" * 64, {}, "no room"),
        ("ab", {"stop": [""]}, "stop string is empty"),
        ("ab", {"stop_ids": [258]}, "outside the vocabulary"),
        ("ab", {"logit_bias": {258: 1.0}}, "outside the vocabulary"),
        ("ab", {"temperature": -1}, "temperature"),
        ("ab", {"max_tokens": 0}, "max_tokens"),
        ("ab", {"tempreature": 1}, "did you mean 'temperature'"),
        ("ab", {"max_new_tokens": 1}, "did you mean 'max_tokens'"),
        ("ab", {"xyzzy": 1}, r"help\(cortiq.GenerateOptions\) lists the options"),
    ],
)
def test_bad_request_is_refused_before_any_work(prompt, options, message):
    model = scripted_model("hello")
    with pytest.raises(RequestError, match=message):
        model.generate(prompt, **options)
    assert model.executable.states == [] and model.executable.batches == []


def test_lone_surrogate_is_refused():
    with pytest.raises(TokenizerError, match="not valid Unicode"):
        scripted_model("hello").generate("a\udc80")


def test_context_that_fills_up_is_said():
    made = scripted_model(lambda position: ord("x")).generate("x" * 60, max_tokens=100)
    assert (made.text, made.finish_reason) == ("xxxx", "length")
    assert "context of 64 tokens is full" in made.note
    assert scripted_model("x").generate("ab", max_tokens=100).note == ""


def test_no_memory_for_the_sequence_is_said_before_any_work():
    model = scripted_model("hello", memory_rows=6)
    with pytest.raises(RequestError, match="70 bytes of state, 60 are free"):
        model.generate("ab", max_tokens=6)
    assert model.executable.batches == []
    assert model.generate("ab", max_tokens=5).text == "hello"


def test_seed_is_drawn_and_reported_and_a_given_one_kept():
    model = scripted_model("x")
    seeds = {model.generate("ab", temperature=1.0).seed for _ in range(4)}
    assert len(seeds) > 1 and all(0 <= seed < 2**32 for seed in seeds)
    assert model.generate("ab", seed=5, temperature=1.0).seed == 5
    assert model.generate("ab", seed=5).seed is None


def test_fingerprint_changes_with_every_option_that_changes_bits_and_no_other():
    model = scripted_model("x")

    def of(**options):
        return model.generate("ab", **options).fingerprint

    base = of(temperature=1.0, seed=1)
    assert base == of(temperature=1.0, seed=1, max_tokens=1, stop=["q"], chunk_rows=1)
    changed = [
        of(temperature=1.0, seed=2), of(temperature=0.9, seed=1),
        of(temperature=1.0, seed=1, top_k=3), of(temperature=1.0, seed=1, top_p=0.5),
        of(temperature=1.0, seed=1, min_p=0.5), of(temperature=1.0, seed=1, logit_bias={1: 1}),
        of(temperature=1.0, seed=1, repetition_penalty=1.1),
        of(temperature=1.0, seed=1, presence_penalty=0.1),
        of(temperature=1.0, seed=1, frequency_penalty=0.1), of(seed=1),
    ]  # fmt: skip
    assert len({base, *changed}) == 11
    assert of(seed=1) == of(seed=2, top_k=5)


def test_progress_of_a_long_prompt():
    seen = []
    scripted_model("x", prompt="abcdefg").generate(
        "abcdefg", chunk_rows=3, progress=lambda *done: seen.append(done)
    )
    assert seen == [(3, 7), (6, 7)]


def test_statistics_count_prompt_and_answer():
    stats = scripted_model("hello").generate("ab").stats.as_dict()
    assert (stats["prompt_tokens"], stats["generated_tokens"]) == (2, 6)
    assert stats["decode_tokens_per_second"] > 0 and stats["peak_memory_bytes"] > 1 << 20
    assert stats["decoded_tokens"] == 5


@pytest.mark.parametrize("asynchronous", [False, True])
def test_times_are_those_of_prefill_and_of_the_tokens_after_the_first(asynchronous, monkeypatch):
    rows = 0
    monkeypatch.setattr("cortiq.engine.statistics._now", lambda: float(rows))
    model = scripted_model("hello", asynchronous=asynchronous)
    plain = model.executable.logits

    def counted(position):
        nonlocal rows
        rows += 1
        return plain(position)

    model.executable.logits = counted
    stats = model.generate("ab", max_tokens=5).stats
    assert (stats.prompt_seconds, stats.decode_seconds) == (2.0, 4.0)
    assert stats.as_dict()["decode_tokens_per_second"] == 1.0


def test_closed_model_says_so():
    model = scripted_model("x")
    with model:
        pass
    assert model.executable.closed
    with pytest.raises(RequestError, match="closed"):
        model.generate("ab")
