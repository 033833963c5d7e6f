"""What the server says about prompts: log-probabilities of their tokens, their ids, their texts."""

from __future__ import annotations

import json
import math

import openai
import pytest
from serving import TEMPLATE, TINY, serving

import cortiq

TEXT = "a short text"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("prompts")) as running:
        yield running


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def model():
    with cortiq.load(TINY, context=512, threads=1) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def own(model):
    """ln p of each token of the text but the first, by the model itself."""
    first, *others = model.ids(TEXT)
    return model.likelihoods([first], [others])[0]


def ask(client, prompt=TEXT, **more):
    given = {"model": TINY, "prompt": prompt, "temperature": 0, "max_tokens": 3, **more}
    return client.completions.create(**given)


def test_echoed_tokens_have_the_models_own_log_probabilities(client, model, own):
    made = ask(client, echo=True, logprobs=2).choices[0]
    ids, plain = model.ids(TEXT), ask(client, logprobs=2).choices[0]
    assert made.text == TEXT + plain.text
    scores = made.logprobs
    assert scores.token_logprobs[: len(ids)] == [None, *own.token_logprobs]
    assert scores.token_logprobs[len(ids) :] == plain.logprobs.token_logprobs
    assert scores.top_logprobs[0] is None and len(scores.top_logprobs[1]) == 2
    assert "".join(scores.tokens[: len(ids)]) == TEXT
    for at, token in zip(scores.text_offset, scores.tokens, strict=True):
        assert token.startswith("bytes:") or made.text[at:].startswith(token)


def test_a_prompt_is_scored_without_a_token_being_generated(client, model, own):
    several = [model.ids(TEXT), model.ids("other")]
    made = ask(client, several, echo=True, logprobs=1, max_tokens=0)
    first, second = made.choices
    assert (first.text, second.text) == (TEXT, "other")
    assert first.logprobs.token_logprobs == [None, *own.token_logprobs]
    assert len(second.logprobs.tokens) == len(several[1]) and made.usage.completion_tokens == 0
    greedy = [
        max(top, key=top.get) == token
        for top, token in list(
            zip(first.logprobs.top_logprobs, first.logprobs.tokens, strict=True)
        )[1:]
    ]
    assert all(greedy) is own.greedy
    with pytest.raises(openai.BadRequestError, match="max_tokens"):
        ask(client, max_tokens=0)


def test_a_stream_begins_with_the_echo_and_its_log_probabilities(client):
    for more in ({}, {"max_tokens": 0}):
        whole = ask(client, echo=True, logprobs=1, **more).choices[0]
        pieces = [p.choices[0] for p in ask(client, echo=True, logprobs=1, stream=True, **more)]
        assert "".join(piece.text for piece in pieces) == whole.text
        found = [value for piece in pieces for value in piece.logprobs.token_logprobs]
        assert found == whole.logprobs.token_logprobs and pieces[-1].finish_reason == "length"


def test_prompt_logprobs_and_ids_are_told_where_they_are_asked_for(client, model, own):
    extra = {"prompt_logprobs": 2, "return_token_ids": True}
    made = ask(client, extra_body=extra).choices[0]
    ids = model.ids(TEXT)
    assert made.prompt_token_ids == ids and len(made.token_ids) == 3
    assert model.generate(TEXT, max_tokens=3).token_ids == tuple(made.token_ids)
    assert made.prompt_logprobs[0] is None
    listed = zip(made.prompt_logprobs[1:], ids[1:], strict=True)
    entries = [entry[str(token)] for entry, token in listed]
    assert [entry["logprob"] for entry in entries] == list(own.token_logprobs)
    logits = model.logits(ids)
    for place, (entry, token) in enumerate(zip(entries, ids[1:], strict=True)):
        assert entry["rank"] == 1 + int((logits[place] > logits[place][token]).sum())
    chat = client.chat.completions.create(
        model=TINY, messages=[{"role": "user", "content": "hi"}], max_tokens=2, extra_body=extra
    )
    assert len(chat.prompt_logprobs) == len(chat.prompt_token_ids) == chat.usage.prompt_tokens
    assert len(chat.choices[0].token_ids) == 2
    stream = ask(client, stream=True, extra_body={"return_token_ids": True})
    ids = [
        token for piece in stream for token in getattr(piece.choices[0], "token_ids", None) or ()
    ]
    assert ids == made.token_ids
    with pytest.raises(openai.BadRequestError, match="prompt_logprobs"):
        ask(client, stream=True, extra_body=extra)


def test_an_answer_that_has_begun_is_continued_from_its_own_text(client, model):
    user = {"role": "user", "content": "hi"}
    given = {"model": TINY, "temperature": 0, "max_tokens": 4}
    more = {"return_token_ids": True, "continue_final_message": True}

    def post(messages, **extra):
        return client.chat.completions.create(messages=messages, extra_body=extra, **given)

    begun = post([user, {"role": "assistant", "content": "It is"}], **more)
    plain = post([user], return_token_ids=True)
    text = model.tokenizer.encode("It is", add_bos=False)
    assert begun.prompt_token_ids == [*plain.prompt_token_ids, *text]
    thinks = {"chat_template_kwargs": {"enable_thinking": True}}
    inside = {"role": "assistant", "content": "", "reasoning_content": "so"}
    thought = post([user, inside], **more, **thinks)
    assert thought.choices[0].message.reasoning_content and not thought.choices[0].message.content
    said = post([user, {**inside, "content": "It is"}], **more, **thinks)
    assert model.tokenizer.decode(said.prompt_token_ids).endswith("<think>\nso</think>\n\nIt is")
    assert said.choices[0].message.content
    for messages in ([user], [{"role": "assistant", "content": "a"}]):
        with pytest.raises(openai.BadRequestError, match="continue_final_message"):
            post(messages, continue_final_message=True)
    with pytest.raises(openai.BadRequestError, match="add_generation_prompt"):
        post([user], add_generation_prompt=False)


def test_texts_and_conversations_are_cut_into_tokens_and_back(client, model):
    def post(path, **body):
        return json.loads(client.post(path, body={"model": TINY, **body}, cast_to=str))

    made = post("/tokenize", prompt=TEXT, return_token_strs=True)
    assert made["tokens"] == model.ids(TEXT) and made["count"] == len(made["tokens"])
    assert "".join(made["token_strs"]) == TEXT and made["max_model_len"] == 512
    assert post("/detokenize", tokens=made["tokens"])["prompt"] == TEXT
    messages = [{"role": "user", "content": "hello"}]
    ids = post("/tokenize", messages=messages)["tokens"]
    assert post("/detokenize", tokens=ids)["prompt"] == "[user] hello\n[assistant] "
    for path, body in (
        ("/tokenize", {}), ("/tokenize", {"prompt": "a", "messages": messages}),
        ("/detokenize", {"tokens": [10**9]}), ("/detokenize", {"tokens": ["a"]}),
    ):  # fmt: skip
        with pytest.raises(openai.BadRequestError):
            post(path, **body)


@pytest.mark.slow
def test_the_harness_scores_over_http_what_it_scores_in_process(server, model):
    """Item for item: lm-eval's `local-completions` against its model of cortiq."""
    pytest.importorskip("lm_eval", reason="needs the harness, which `make slow` installs")
    from lm_eval.api.instance import Instance
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    from cortiq.model.harness_requests import EvaluationModel

    class Tokens:
        """The model's tokenizer as the harness wants one."""

        eos_token_id, bos_token_id, pad_token_id = model.eos_ids[0], None, None

        @staticmethod
        def encode(text, **_):
            return model.tokenizer.encode(text)

    over_http = LocalCompletionsAPI(
        model=TINY, base_url=f"{server.url}/v1/completions", tokenizer_backend=None,
        tokenized_requests=False, batch_size=2, max_length=256,
    )  # fmt: skip
    over_http.tokenized_requests, over_http.tokenizer = True, Tokens
    over_http.tok_encode = lambda text, **_: (
        [Tokens.encode(one) for one in text] if isinstance(text, list) else Tokens.encode(text)
    )
    pairs = [(f"Item {n} is", f" {end}") for n in range(3) for end in ("good", "bad")]
    asked = [Instance("loglikelihood", {}, pair, n) for n, pair in enumerate(pairs)]
    found = over_http.loglikelihood(asked, disable_tqdm=True)
    expected = EvaluationModel(model).likelihoods(pairs)
    for (logprob, greedy), own in zip(found, expected, strict=True):
        assert math.isclose(logprob, own.logprob, rel_tol=1e-12) and greedy == own.greedy


@pytest.mark.slow
def test_the_harness_generates_over_http_what_it_generates_in_process(server):
    """Item for item: `local-chat-completions`, and `local-completions`, which also scores texts."""
    pytest.importorskip("lm_eval", reason="needs the harness, which `make slow` installs")
    from lm_eval.api.instance import Instance
    from lm_eval.models.api_models import JsonChatStr
    from lm_eval.models.openai_completions import LocalChatCompletion

    from cortiq.lm_eval import CortiqLM

    own = CortiqLM(TINY, context=512, threads=1, backend="reference")
    own.loaded.tokenizer.chat_templates["default"] = TEMPLATE
    talks = [[{"role": "user", "content": f"Item {n}?"}] for n in range(4)]
    how = {"until": ["e", "\n\n"], "max_gen_toks": 12, "temperature": 0}
    over_http = LocalChatCompletion(model=TINY, base_url=f"{server.url}/v1/chat/completions")
    asked = [
        Instance("generate_until", {}, (JsonChatStr(json.dumps(talk)), how), n)
        for n, talk in enumerate(talks)
    ]
    found = over_http.generate_until(asked, disable_tqdm=True)
    rendered = [(own.apply_chat_template(talk), how) for talk in talks]
    expected = own.generate_until([Instance("generate_until", {}, one, 0) for one in rendered])
    own.loaded.close()
    assert found == expected and len(set(found)) > 1
