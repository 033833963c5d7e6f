"""Scores and reranking by likelihood, and what llama.cpp's clients ask about a server."""

from __future__ import annotations

import json
import math
import urllib.error
import urllib.request

import pytest
from serving import TINY, serving

import cortiq
from cortiq.model.harness_requests import EvaluationModel

DOCUMENTS = ["the sea is deep", "bread of rye", "a clock that is late", "the sea"]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("scores"), "--sequences", "3") as running:
        yield running


@pytest.fixture(scope="module")
def evaluated():
    with cortiq.load(TINY, context=512, threads=1, backend="reference") as model:
        yield EvaluationModel(model)


def post(server, path, **body):
    request = urllib.request.Request(
        server.url + path, json.dumps({"model": TINY, **body}).encode()
    )
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def get(server, path):
    with urllib.request.urlopen(server.url + path) as answer:
        return json.load(answer)


def test_scores_are_the_likelihoods_of_the_harness_on_another_backend(server, evaluated):
    pairs = [(document, " and more") for document in DOCUMENTS]
    own = evaluated.likelihoods(pairs)
    made = post(server, "/v1/score", text_1=DOCUMENTS, text_2=[" and more"] * 4)
    assert [one["score"] for one in made["data"]] == [one.logprob for one in own]
    one_to_many = post(server, "/score", text_1="a", text_2=["b", "cd"])["data"]
    own = evaluated.likelihoods([("a", "b"), ("a", "cd")])
    assert [(one["score"], one["tokens"]) for one in one_to_many] == [
        (one.logprob, len(one.token_logprobs)) for one in own
    ]
    assert made["usage"]["total_tokens"] > 40


def test_documents_are_in_the_order_of_the_querys_likelihood(server, evaluated):
    query = "where is it?"
    own = evaluated.likelihoods([(f"{document}\n\n", query) for document in DOCUMENTS])
    means = [one.logprob / len(one.token_logprobs) for one in own]
    made = post(server, "/v1/rerank", query=query, documents=DOCUMENTS)["results"]
    assert [one["index"] for one in made] == sorted(range(4), key=lambda n: -means[n])
    for one in made:
        assert math.isclose(one["relevance_score"], means[one["index"]], rel_tol=1e-15)
        assert one["document"]["text"] == DOCUMENTS[one["index"]]
    objects = [{"text": document} for document in DOCUMENTS]
    less = post(server, "/rerank", query=query, documents=objects, top_n=2, return_documents=False)
    assert less["results"] == [
        {name: one[name] for name in ("index", "relevance_score")} for one in made[:2]
    ]


def test_a_context_of_spaces_belongs_to_the_text_after_it(server, evaluated):
    (made,) = post(server, "/v1/score", text_1="  ", text_2="b")["data"]
    (own,) = evaluated.likelihoods([("", "  b")])
    assert made["tokens"] == len(own.token_logprobs) == 3
    assert math.isclose(made["score"], own.logprob, rel_tol=1e-15)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/score", {"text_1": ["a", "b"], "text_2": ["c"]}, "text_2"),
        ("/v1/score", {"text_1": "a", "text_2": []}, "text_2"),
        ("/v1/score", {"text_1": "a"}, "text_2"),
        ("/v1/score", {"text_1": "a" * 600, "text_2": "b"}, "text_1"),
        ("/v1/rerank", {"query": "", "documents": ["a"]}, "query"),
        ("/v1/rerank", {"query": "q", "documents": [1]}, "documents[0]"),
        ("/v1/rerank", {"query": "q", "documents": []}, "documents"),
        ("/v1/rerank", {"query": "q", "documents": [{"text": "a", "b": 1}]}, "documents[0].b"),
        ("/v1/rerank", {"query": "q", "documents": ["a"], "top_n": 0}, "top_n"),
        ("/v1/rerank", {"query": "q", "documents": ["a"], "rank": 0}, "rank"),
    ],
)
def test_what_cannot_be_scored_is_refused_by_name(server, path, body, param):
    with pytest.raises(urllib.error.HTTPError) as refused:
        post(server, path, **body)
    assert refused.value.code == 400
    assert json.load(refused.value)["error"]["param"] == param


def test_a_server_tells_about_itself_as_llama_cpp_does(server):
    props = get(server, "/props")
    assert props["model_alias"] == TINY and props["total_slots"] == 3
    assert props["default_generation_settings"]["n_ctx"] == 512
    assert props["modalities"] == {"vision": False, "audio": False}
    assert "[assistant]" in props["chat_template"] and props["build_info"].startswith("cortiq ")
    with pytest.raises(urllib.error.HTTPError) as missing:
        get(server, "/props?model=other")
    assert missing.value.code == 404


def test_slots_are_the_places_of_sequences_and_hold_no_text(server):
    assert [one["is_processing"] for one in get(server, "/slots")] == [False] * 3
    body = {"model": TINY, "prompt": ["secret text"] * 32, "max_tokens": 400, "ignore_eos": True}
    request = urllib.request.Request(
        f"{server.url}/v1/completions", json.dumps({**body, "stream": True}).encode()
    )
    with urllib.request.urlopen(request) as answer:
        answer.read(10)
        found = get(server, "/slots")
    busy = [one for one in found if one["is_processing"]]
    assert len(found) == 3 and busy and "secret" not in json.dumps(found)
    assert all(
        one["next_token"]["n_decoded"] + one["next_token"]["n_remain"] == 400 for one in busy
    )
