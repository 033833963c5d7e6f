"""litellm, as it asks OpenAI's, Anthropic's and Ollama's servers. Importing it takes seconds."""

from __future__ import annotations

import json
import os

import pytest
from serving import TINY, serving

pytestmark = pytest.mark.slow
KEY = "sk-of-this-test"
HELLO = [{"role": "user", "content": "hello"}]
ROUTES = {"openai": "/v1", "anthropic": "", "ollama_chat": ""}
TOOL = {"type": "function", "function": {"name": "now", "parameters": {
    "type": "object", "properties": {"zone": {"type": "string"}}}}}  # fmt: skip


@pytest.fixture(scope="module")
def litellm():
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # which it would fetch
    return pytest.importorskip("litellm", reason="needs litellm, which `make slow` installs")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("litellm"), "--api-key", KEY) as running:
        yield running


def ask(litellm, server, route, **more):
    given = {"temperature": 0, "max_tokens": 10, "messages": HELLO, **more}
    return litellm.completion(
        model=f"{route}/{TINY}", api_base=server.url + ROUTES[route], api_key=KEY, **given
    )


@pytest.mark.parametrize("route", ROUTES)
def test_every_route_gets_one_answer_whole_and_streamed(litellm, server, route):
    whole = ask(litellm, server, route)
    text = whole.choices[0].message.content
    assert text == ask(litellm, server, "openai").choices[0].message.content
    assert whole.usage.completion_tokens == 10
    pieces = [
        one.choices[0].delta.content or "" for one in ask(litellm, server, route, stream=True)
    ]
    assert "".join(pieces) == text


def test_tools_errors_embeddings_and_scores(litellm, server):
    made = ask(litellm, server, "openai", tools=[TOOL])
    assert made.choices[0].message.role == "assistant"
    with pytest.raises(litellm.BadRequestError, match="temperature"):
        ask(litellm, server, "openai", temperature="warm")
    with pytest.raises(litellm.AuthenticationError):
        litellm.completion(
            model=f"openai/{TINY}", api_base=f"{server.url}/v1", api_key="wrong", messages=HELLO
        )
    vectors = litellm.embedding(
        model=f"openai/{TINY}", api_base=f"{server.url}/v1", api_key=KEY, input=["a", "b"]
    )
    assert len(vectors.data) == 2 and len(vectors.data[0]["embedding"]) > 8
    ranked = litellm.rerank(
        model=f"hosted_vllm/{TINY}", api_base=server.url, api_key=KEY, query="a",
        documents=["b", "c"], top_n=2,
    )  # fmt: skip
    assert sorted(one["index"] for one in ranked.results) == [0, 1]


def test_a_response(litellm, server):
    made = litellm.responses(
        model=f"openai/{TINY}", api_base=f"{server.url}/v1", api_key=KEY, input="hello",
        temperature=0, max_output_tokens=16,  # the least that it sends
    )  # fmt: skip
    text = ask(litellm, server, "openai", max_tokens=16).choices[0].message.content
    assert json.loads(made.model_dump_json())["output"][0]["content"][0]["text"] == text
