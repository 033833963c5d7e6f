"""Null means absent, in every field of every endpoint: clients that serialise all send it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from serving import TEMPLATE, TINY

import cortiq
from cortiq.serve.embeddings import parse_embeddings
from cortiq.serve.errors import ApiError
from cortiq.serve.fields import Fields
from cortiq.serve.parsed_request import parse_chat, parse_completion
from cortiq.serve.score_api import parse_rerank, parse_score, read_documents
from cortiq.serve.served_model import make_served_model

FORM = {"type": "json_schema",
        "json_schema": {"name": "f", "schema": {"type": "object"}, "strict": True,
                        "description": "d"}}  # fmt: skip
TAGS = {
    "triggers": ["<"],
    "structures": [{"begin": "<a", "schema": {"type": "object"}, "end": ">"}],
}
FORMS = {"guided_json": {}, "guided_regex": "a", "guided_choice": ["a"],
         "guided_grammar": 'start: "a"', "grammar": 'root ::= "a"', "json_schema": {}}  # fmt: skip
STRUCTURED = {"json": {}, "regex": "a", "choice": ["a"], "grammar": 'start: "a"',
              "json_object": True, "structural_tag": {"type": "s", **TAGS}}  # fmt: skip
CALL = {"id": "c", "type": "function", "function": {"name": "now", "arguments": "{}"}}
DRAW = {
    "model": "m", "temperature": 0.5, "top_p": 0.5, "top_k": 3, "min_p": 0.5, "seed": 1, "n": 2,
    "repetition_penalty": 2, "presence_penalty": 1, "frequency_penalty": 1, "stop": ["x"],
    "logit_bias": {"3": 1, "4": 2}, "stream": True, "ignore_eos": False, "user": "u",
    "loop_tokens": 96,
    "stream_options": {"include_usage": True, "include_obfuscation": False}, "receipt": False,
    "return_token_ids": False, "priority": 1, "lora": None,
}  # fmt: skip
REQUESTS = {
    "chat": {
        **DRAW, "max_tokens": 5, "max_completion_tokens": 6, "logprobs": True, "top_logprobs": 2,
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "a"}], "name": "b"},
            {"role": "assistant", "content": "c", "tool_calls": [CALL], "reasoning": "r",
             "reasoning_content": "s", "refusal": None, "audio": None, "function_call": None},
            {"role": "tool", "content": "d", "tool_call_id": "c", "annotations": []},
        ],
        "tools": [{"type": "function", "strict": True, "function": {
            "name": "now", "description": "t", "strict": True, "parameters": {"type": "object"}}}],
        "tool_choice": {"type": "function", "function": {"name": "now"}},
        "parallel_tool_calls": True, "chat_template_kwargs": {"x": 1}, "reasoning_effort": "low",
        "modalities": ["text"], "audio": None, "functions": None, "function_call": None,
        "web_search_options": None, "prompt": None, "input": None, "add_generation_prompt": True,
        "continue_final_message": False,
    },
    "form": {"model": "m", "messages": [{"role": "user", "content": "a"}], "response_format": FORM},
    **{name: {"model": "m", "messages": [{"role": "user", "content": "a"}], name: value}
       for name, value in FORMS.items()},
    **{f"structured_outputs.{name}": {"model": "m", "prompt": "a",
                                      "structured_outputs": {name: value}}
       for name, value in STRUCTURED.items()},
    "tags": {"model": "m", "messages": [{"role": "user", "content": "a"}],
             "response_format": {"type": "structural_tag", **TAGS}},
    "text": {**DRAW, "prompt": ["a"], "max_tokens": 3, "suffix": None, "best_of": 2, "echo": True,
             "prompt_logprobs": None, "logprobs": None, "messages": None},
    "score": {"model": "m", "text_1": "a", "text_2": ["b"]},
    "rerank": {"model": "m", "query": "q", "documents": [{"text": "a"}], "method": "likelihood",
               "instruction": "i"},
    "embeddings": {"model": "m", "input": ["a"], "encoding_format": "base64", "pooling": "last",
                   "normalise": False, "dimensions": 2, "prompt_name": "auto", "user": "u"},
}  # fmt: skip


READERS = {
    "score": parse_score,
    "rerank": lambda model, fields: parse_rerank(model, fields, read_documents(fields)),
    "chat": lambda model, fields: parse_chat(model, fields, 8),
    "text": parse_completion,
    "embeddings": parse_embeddings,
}


@pytest.fixture(scope="module")
def model():
    loaded = cortiq.load(TINY, backend="reference")
    loaded.tokenizer.chat_templates["default"] = TEMPLATE
    return replace(make_served_model(loaded, None), name="m")


def places(value, at=()):
    """Paths of all fields in a request; what is in a JSON schema is no field of ours."""
    if isinstance(value, dict) and at[-1:] not in (("parameters",), ("schema",)):
        for name, inner in value.items():
            yield (*at, name)
            yield from places(inner, (*at, name))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from places(inner, (*at, index))


def answer(model, kind, request):
    """Return a parsed request, or its error, as text."""
    try:
        read = READERS["text"] if "structured" in kind else READERS.get(kind, READERS["chat"])
        made = read(model, Fields(request))
    except ApiError as error:
        return f"{error.param}: {error}"
    if kind in ("score", "rerank"):
        return str((made.pairs,))
    if kind == "embeddings":
        return str((made.texts, made.options, made.encoding))
    drawn = [(r.prompt, r.max_tokens, bool(r.masks)) for r in made.requests]
    return str((drawn, made.params, made.tools, made.opened, made.echo))


@pytest.mark.parametrize(
    ("kind", "place"),
    [(kind, place) for kind, asked in REQUESTS.items() for place in places(asked)],
)
def test_a_field_that_is_null_is_absent(model, kind, place):
    answers = []
    for absent in (False, True):
        request = json.loads(json.dumps(REQUESTS[kind]))
        holder = request
        for step in place[:-1]:
            holder = holder[step]
        holder[place[-1]] = None
        if absent:
            del holder[place[-1]]
        answers.append(answer(model, kind, request))
    assert answers[0] == answers[1]


@pytest.mark.parametrize("kind", REQUESTS)
def test_a_null_that_nobody_knows_asks_for_nothing(model, kind):
    assert answer(model, kind, {**REQUESTS[kind], "top_a": None}) == answer(
        model, kind, REQUESTS[kind]
    )
    assert answer(model, kind, {**REQUESTS[kind], "top_a": 1}).startswith("top_a: Unknown")


def test_the_samples_have_every_field_that_is_read(model, monkeypatch):
    """So the sweep above misses none that a reader may get one day."""
    read = set()

    class Noting(set):
        def __init__(self, fields):
            self.fields = fields

        def add(self, name):
            read.add(self.fields.path(name))
            super().add(name)

    begin = Fields.__init__

    def noting(fields, values, where=""):
        begin(fields, values, where)
        fields._read = Noting(fields)

    monkeypatch.setattr(Fields, "__init__", noting)
    for kind, request in REQUESTS.items():
        assert answer(model, kind, request).startswith("(")
    known = set()
    for request in REQUESTS.values():
        for place in places(request):
            path = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in place)
            known.add(path.removeprefix("."))
    stripped = {"".join(c for c in path if not c.isdigit()) for path in known}
    assert {"".join(c for c in path if not c.isdigit()) for path in read} <= stripped
    assert read
