"""Generation on the reference: tiny models of every family, and the two real files."""

from __future__ import annotations

import threading

import pytest
from installed import backends

import cortiq
from cortiq.backend import Argmax, Digest
from cortiq.engine.digest_chain import START, chain
from cortiq.engine.session import Session, digest_of
from cortiq.errors import BackendError, ModelNotFoundError, RequestError, TokenizerError

TINY = ["synthetic:tiny-llama", "synthetic:tiny-gemma3", "synthetic:tiny-mixtral",
        "synthetic:tiny-lfm2"]  # fmt: skip
PROMPT = [72, 101, 108, 108, 111, 32, 119, 111, 114, 108, 100] * 7


def same(a, b):
    return (a.token_ids, a.digest) == (b.token_ids, b.digest)


@pytest.fixture(scope="module", params=TINY)
def tiny(request):
    with cortiq.load(request.param, backend="reference", threads=1) as model:
        yield model


@pytest.fixture(scope="module")
def smollm2(smollm2_path):
    with cortiq.load(str(smollm2_path), backend="reference") as model:
        yield model


def stepwise(model, prompt, count):
    """Greedy tokens driven from the host, one row a batch, every token handed back."""
    tokens, link = [], START
    wants = (Argmax(), Digest("logits"))
    with Session(model.executable, len(prompt) + count) as session:
        for token in prompt:
            row = session.read(session.feed([token], wants))
        for _ in range(count):
            tokens.append(int(row[Argmax()]))
            link = chain(link, digest_of(row))
            row = session.read(session.feed([tokens[-1]], wants))
    return tuple(tokens), link.hex()


def test_chained_steps_equal_steps_driven_from_the_host(tiny):
    made = tiny.generate(PROMPT, max_tokens=6, ignore_eos=True)
    assert (made.token_ids, made.digest) == stepwise(tiny, PROMPT, 6)


@pytest.mark.parametrize("rows", [1, 7, 64])
def test_chunk_rows_change_neither_token_nor_digest(tiny, rows):
    options = {"max_tokens": 5, "ignore_eos": True, "temperature": 1.0, "seed": 3}
    assert same(tiny.generate(PROMPT, chunk_rows=rows, **options), tiny.generate(PROMPT, **options))


def test_seed_decides_the_draws(tiny):
    def draws(seed):
        made = tiny.generate(PROMPT, max_tokens=8, ignore_eos=True, temperature=1.5, seed=seed)
        return made.token_ids

    assert draws(1) == draws(1)
    assert len({draws(seed) for seed in range(4)}) > 1


@pytest.mark.parametrize("backend", backends())
def test_top_k_of_more_than_there_is_keeps_all(backend):
    options = {"max_tokens": 6, "temperature": 9.0, "seed": 1, "ignore_eos": True}
    with cortiq.load(TINY[0], backend=backend) as model:
        whole = model.generate(PROMPT, **options)
        assert len(set(whole.token_ids)) > 3
        for top_k in (320, 2**31 - 1, 2**31, 2**32 + 1, 2**64 + 1):
            assert same(model.generate(PROMPT, top_k=top_k, **options), whole), top_k


def test_penalties_see_prompt_and_answer(tiny):
    plain = tiny.generate(PROMPT, max_tokens=6, ignore_eos=True)
    options = {"max_tokens": 6, "ignore_eos": True, "presence_penalty": 1000.0}
    made = tiny.generate(PROMPT, **options)
    assert len(set(made.token_ids)) == 6
    assert not set(made.token_ids) & set(PROMPT)
    banned = dict.fromkeys(plain.token_ids, -1000.0)
    biased = tiny.generate(PROMPT, max_tokens=1, logit_bias=banned, ignore_eos=True)
    assert biased.token_ids[0] not in plain.token_ids


def test_threads_change_nothing():
    name = "synthetic:tiny-mixtral?seed=5"
    made = []
    for threads in (1, 2):
        with cortiq.load(name, backend="reference", threads=threads) as model:
            made.append(model.generate(PROMPT, max_tokens=4, ignore_eos=True))
    assert same(*made)
    assert made[0].fingerprint == made[1].fingerprint


def test_fingerprint_tells_models_formats_and_contexts_apart():
    def of(name, **options):
        with cortiq.load(name, backend="reference", **options) as model:
            return model.fingerprint

    name = "synthetic:tiny-llama"
    prints = {of(name), of(f"{name}?seed=1"), of(name, weight_format="w8"), of(name, context=512)}
    assert len(prints) == 4
    assert of(name) == of(name, threads=2)


def test_stream_of_a_tiny_model_is_its_text(tiny):
    stream = tiny.stream("a text", max_tokens=20, temperature=1.0, seed=2)
    assert "".join(stream) == stream.generation.text
    assert stream.generation.text == tiny.tokenizer.decode(
        stream.generation.token_ids, continuation=True
    )


def test_cancel_leaves_the_model_usable(tiny):
    cancel = threading.Event()
    stream = tiny.stream(PROMPT, cancel=cancel, ignore_eos=True, max_tokens=50)
    next(stream)
    stream.cancel()
    list(stream)
    assert stream.generation.finish_reason == "cancelled"
    assert tiny.generate(PROMPT, max_tokens=2, ignore_eos=True).finish_reason == "length"


def test_wrong_names_are_refused():
    with pytest.raises(ModelNotFoundError, match="tiny-llama"):
        cortiq.load("synthetic:tiny-lama", backend="reference")
    with pytest.raises(BackendError, match="reference"):
        cortiq.load("synthetic:tiny-llama", backend="refrence")
    with pytest.raises(RequestError, match="did you mean 'context'"):
        cortiq.load("synthetic:tiny-llama", contxt=5)
    with pytest.raises(RequestError, match="names one too"):
        cortiq.load("synthetic:tiny-llama", backend="reference:cpu", device="cpu")


def test_synthetic_model_is_a_base_model(tiny):
    with pytest.raises(TokenizerError, match="base model"):
        tiny.chat([{"role": "user", "content": "hi"}])


def test_smollm2_says_what_is_true(smollm2):
    made = smollm2.generate("The capital of France is", max_tokens=4)
    assert made.text.startswith(" Paris.")
    assert made.model_hash == smollm2.model_hash
    assert set(made.placement) == {"reference"}


def test_smollm2_answers_a_chat_and_ends_by_itself(smollm2):
    messages = [{"role": "user", "content": "What is the capital of France? One word."}]
    made = smollm2.chat(messages, max_tokens=24)
    assert "Paris" in made.text and made.finish_reason == "stop"
    assert made.token_ids[-1] in smollm2.eos_ids
    assert "<|im_end|>" not in made.text


def test_smollm2_stops_at_a_text(smollm2):
    made = smollm2.generate("The capital of France is", max_tokens=8, stop=["."])
    assert (made.text, made.finish_reason) == (" Paris", "stop")
