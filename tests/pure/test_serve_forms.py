"""Answers that must have a form: drawn at random by a tiny model, and of the form every time."""

from __future__ import annotations

import json
import random
import re
from typing import Annotated, Literal

import openai
import pydantic
import pytest
from serving import TINY, serving

from cortiq.numerics.masks import allowed_ids
from cortiq.serve.answer_grammar import json_grammar, read_grammar
from cortiq.serve.errors import ApiError
from cortiq.serve.fields import Fields
from cortiq.serve.grammar import GrammarMasks, Grammars
from cortiq.tokenizer.tokenizer import byte_tokenizer

VOCABULARY, EOS = 320, 257
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"days": {"type": "integer", "minimum": 1, "maximum": 9}},
            "required": ["days"],
            "additionalProperties": False,
        },
    },
}
PERSON = {
    "type": "object",
    "properties": {
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "kind": {"enum": ["cat", "dog"]},
    },
    "required": ["age", "kind"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def grammars():
    return Grammars(byte_tokenizer(VOCABULARY), VOCABULARY, [EOS])


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("forms")) as server:
        yield openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0)


def masks(grammars, schema=PERSON, **more):
    matcher = grammars.compiled(json_grammar(schema, "here").text, "here")
    return GrammarMasks(grammars, matcher, 2, **more)


@pytest.mark.parametrize("size", [258, 300, VOCABULARY, 400])
def test_masks_are_of_the_models_ids_whatever_the_tokenizer_has(size):
    grammars = Grammars(byte_tokenizer(size), VOCABULARY, [EOS])
    text = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    mask = masks(grammars, text | {"additionalProperties": False})([1, 2, *b'{"a":"'])
    allowed = allowed_ids(mask, VOCABULARY).tolist()
    assert {*b"xyz"} <= {*allowed}
    assert max(allowed) < min(size, VOCABULARY)
    assert len(mask) == VOCABULARY // 8
    assert grammars._tokens.vocab_size == VOCABULARY  # tables are no longer, whatever a file says


def test_masks_of_a_batch_are_those_of_each(grammars):
    """Four texts, one thinking first, one that rolls back, and one that no text follows."""
    texts = [b'{"age":1', b"</t>", b'{"kind":"', b"{"]
    more = {"opened": True, "closes": "</t>"}

    def several():
        return [masks(grammars), masks(grammars, **more), masks(grammars), masks(grammars)]

    alone, batch = several(), several()
    for length in (1, 2, 4, 3, 8, 2):
        ids = [[1, 2, *text[:length]] for text in texts]
        batch[0].prepare(list(zip(batch, ids, strict=True)))
        expected = [one(of) for one, of in zip(alone, ids, strict=True)]
        assert [one(of) for one, of in zip(batch, ids, strict=True)] == expected
        assert expected[1] is None or length >= 4
    wrong = [1, 2, *b"xx"]
    batch[0].prepare([(batch[3], wrong), (batch[0], [1, 2, *texts[0]])])
    assert allowed_ids(batch[3](wrong), VOCABULARY).tolist() == [EOS] and batch[3].fault
    assert batch[0]([1, 2, *texts[0]]) == alone[0]([1, 2, *texts[0]]) and not batch[0].fault


def walk(made, seed, ids=(1, 2)):
    """Ids drawn at random among those allowed, to the end."""
    draw, ids = random.Random(seed), list(ids)
    while ids[-1] != EOS:
        mask = made(ids)
        allowed = [t for t in allowed_ids(mask, VOCABULARY) if t not in (9, 10, 32)]
        ids.append(int(draw.choice(allowed)))
    return ids


@pytest.mark.parametrize("seed", range(8))
def test_whatever_is_drawn_is_of_the_form(grammars, seed):
    person = json.loads(bytes(walk(masks(grammars), seed)[2:-1]))
    assert set(person) == {"age", "kind"} and 0 <= person["age"] <= 99


def test_masks_depend_on_the_ids_alone(grammars):
    """Asked in any order, as drafts and rewinds do, each is what it was."""
    forward, ids = masks(grammars), walk(masks(grammars), 3)
    lengths = list(range(2, len(ids)))
    expected = {n: forward(ids[:n]) for n in lengths}
    random.Random(0).shuffle(lengths)
    asked = masks(grammars)
    assert {n: asked(ids[:n]) for n in lengths} == expected


def test_the_grammar_begins_after_thinking(grammars):
    made = masks(grammars, opened=True, opens="<think>", closes="</think>")
    thought = list(b"so {</think>")
    assert made([1, 2, *thought[:-1]]) is None
    ids = [1, 2, *thought, *b'{"age": 12']
    lengths = [*range(2, len(ids)), *random.Random(1).sample(range(2, len(ids)), 14)]
    assert [made(ids[:n]) for n in lengths] == [
        masks(grammars, opened=True, opens="<think>", closes="</think>")(ids[:n]) for n in lengths
    ]
    assert allowed_ids(made([1, 2, *thought]), VOCABULARY).tolist() == [ord("{")]


@pytest.mark.parametrize(
    "schema", [{"type": "nothing"}, {"$ref": "http://elsewhere/x"}, {"format": "odd"}]
)
def test_what_cannot_be_enforced_is_refused(grammars, schema):
    with pytest.raises(ApiError, match="cannot be followed") as caught:
        masks(grammars, {"type": "string", **schema})
    assert caught.value.status == 400


LOOPS = [
    {"$ref": "#"}, {"allOf": [{"$ref": "#"}]},
    {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
    {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    {"$id": "http://x", "$ref": "http://x"}, {"$ref": "#/nowhere"}, {"$ref": 3},
    {"type": "string", "minLength": 2, "maxLength": 1}, {"enum": []},
]  # fmt: skip


@pytest.mark.parametrize("schema", LOOPS, ids=json.dumps)
def test_schemas_that_no_text_has_are_said_before_anything_is_drawn(grammars, schema):
    with pytest.raises(ApiError, match="cannot be followed") as caught:
        masks(grammars, schema)
    assert (caught.value.status, caught.value.code) == (400, "invalid_schema")


def test_a_schema_that_ends_nowhere_in_its_middle_is_the_requests_fault(grammars):
    """Found when the answer comes to it: the answer ends, with an error of the request."""
    loop = {"$ref": "#/$defs/loop"}
    schema = {"type": "object", "properties": {"a": loop}, "required": ["a"],
              "$defs": {"loop": loop}}  # fmt: skip
    made = masks(grammars, schema)
    ids = [1, 2, *b'{"a":']
    for end in range(2, len(ids) + 1):
        mask = made(ids[:end])
        if made.fault:
            break
    assert made.fault == "no text follows this schema" and allowed_ids(
        mask, VOCABULARY
    ).tolist() == [EOS]


def test_a_schema_has_a_size(grammars):
    """The library would take minutes, and memory, for what is far larger."""
    schema = {"enum": [f"{n:08}" for n in range(10_000)]}
    with pytest.raises(ApiError, match="characters, more than 65536") as caught:
        masks(grammars, schema)
    assert caught.value.code == "invalid_schema"


def ask(client, **more):
    given = {
        "model": TINY, "messages": [{"role": "user", "content": "now"}], "temperature": 2.0,
        "max_completion_tokens": 300, "seed": 1, "logit_bias": {"32": -100, "10": -100, "9": -100},
    }  # fmt: skip
    return client.chat.completions.create(**given, **more)


@pytest.mark.parametrize("stream", [False, True])
def test_answers_follow_a_schema(client, stream):
    form = {"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON, "strict": True}}
    made = ask(client, response_format=form, stream=stream)
    if stream:
        text = "".join(c.choices[0].delta.content or "" for c in made)
    else:
        assert made.choices[0].finish_reason == "stop"
        text = made.choices[0].message.content
    assert json.loads(text)["kind"] in ("cat", "dog")


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "weather"}}]
)
def test_a_forced_call_is_one_and_not_text(client, choice):
    made = ask(client, tools=[TOOL], tool_choice=choice).choices[0]
    assert made.finish_reason == "tool_calls" and made.message.content is None
    (call,) = made.message.tool_calls
    assert call.function.name == "weather"
    assert 1 <= json.loads(call.function.arguments)["days"] <= 9


def test_a_forced_call_streams(client):
    calls, end = [], None
    for chunk in ask(client, tools=[TOOL], tool_choice="required", stream=True):
        calls += chunk.choices[0].delta.tool_calls or []
        assert not chunk.choices[0].delta.content
        end = chunk.choices[0].finish_reason or end
    assert end == "tool_calls" and [(c.index, c.function.name) for c in calls] == [(0, "weather")]


def test_an_opened_thinking_block_is_apart_from_the_answer(client):
    """The tiny model never closes it: all of it is thinking, and free of the form."""
    made = ask(
        client, response_format={"type": "json_object"},
        extra_body={"chat_template_kwargs": {"enable_thinking": True}},
    ).choices[0]  # fmt: skip
    assert made.finish_reason == "length" and made.message.content == ""
    assert len(made.message.reasoning_content) > 100


class Pet(pydantic.BaseModel):
    kind: Literal["cat", "dog"]
    age: Annotated[int, pydantic.Field(ge=0, le=30)]


def test_the_clients_own_helpers(client):
    """`parse` makes a schema of a class, `stream` puts deltas together."""
    given = {
        "model": TINY, "messages": [{"role": "user", "content": "now"}], "temperature": 2.0,
        "max_completion_tokens": 300, "seed": 2, "logit_bias": {"32": -100, "10": -100, "9": -100},
    }  # fmt: skip
    made = client.chat.completions.parse(response_format=Pet, n=2, **given)
    pets = [choice.message.parsed for choice in made.choices]
    assert all(isinstance(pet, Pet) for pet in pets) and pets[0] != pets[1]
    tool = {"type": "function", "function": {**TOOL["function"], "strict": True}}
    with client.chat.completions.stream(tools=[tool], tool_choice="required", **given) as stream:
        done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
        (call,) = stream.get_final_completion().choices[0].message.tool_calls
    assert call.function.parsed_arguments == json.loads(done[0].arguments)


PLACES = {
    "$defs": {"$ref": "#/$defs/Part", "$defs": {"Part": True}},
    "definitions": {"$ref": "#/definitions/Part", "definitions": {"Part": True}},
    "escaped": {"$ref": "#/$defs/a~1b~0c", "$defs": {"a/b~c": True}},
    "elsewhere": {"$ref": "#/properties/other", "properties": {"other": True}},
    "own address": {
        "$id": "http://e.org/s", "$ref": "http://e.org/s#/$defs/Part", "$defs": {"Part": True},
    },
}  # fmt: skip
PART = {
    "type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"],
    "additionalProperties": False,
}  # fmt: skip


def accepts(grammars, schemas, text):
    """Whether a forced call of these tools may be this text."""
    matcher = grammars.compiled(grammars.call_grammar(schemas, ("", "")), "here")
    made = GrammarMasks(grammars, matcher, 0)
    ids = list(text.encode())
    return all(i in allowed_ids(made(ids[:n]), VOCABULARY) for n, i in enumerate([*ids, EOS]))


def called(name, **arguments):
    return json.dumps({"name": name, "arguments": arguments})


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("position", [0, 1])
def test_references_of_a_forced_tool_point_into_its_own_parameters(grammars, place, position):
    """Wherever its definitions are, and whichever of the tools it is."""
    words = json.loads(json.dumps(PLACES[place]).replace("true", json.dumps(PART)))
    reference, inner = {"$ref": words.pop("$ref")}, words.pop("properties", {})
    properties = {**inner, "a": reference, "enum": {"enum": [{"$ref": "#"}]}}
    schema = {"type": "object", "properties": properties, "required": ["a"], **words}
    other = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    tools = {"f": schema, "g": other} if position == 0 else {"g": other, "f": schema}
    assert accepts(grammars, tools, called("f", a={"x": True}))
    assert not accepts(grammars, tools, called("f", a={"x": 1}))
    assert not accepts(grammars, tools, called("f", a=1))
    assert accepts(grammars, tools, called("g", a=1))
    if place != "elsewhere":
        assert accepts(grammars, tools, called("f", a={"x": True}, enum={"$ref": "#"}))


def test_the_root_of_a_forced_tools_parameters_is_its_own(grammars):
    node = {
        "type": "object", "required": ["v"], "additionalProperties": False,
        "properties": {"v": {"type": "boolean"}, "next": {"$ref": "#"}},
    }  # fmt: skip
    tree = {"v": True, "next": {"v": False, "next": {"v": True}}}
    assert accepts(grammars, {"f": node}, called("f", **tree))
    wrapper = {"name": "f", "arguments": {"v": True}}
    assert not accepts(grammars, {"f": node}, called("f", v=True, next=wrapper))


@pytest.mark.parametrize(
    "schema",
    [{}, {"description": "d"}, {"properties": {"a": {"type": "integer"}}}, {"type": ["object"]},
     {"type": ["object", "null"]}, {"$ref": "#/$defs/A", "$defs": {"A": {"type": "object"}}},
     {"anyOf": [{"type": "object"}, {"type": "integer"}]},
     {"$ref": "#/$defs/A", "$defs": {"A": {"type": "object", "properties": {
         "b": {"$ref": "#/$defs/A"}}}}}],
)  # fmt: skip
def test_arguments_of_a_forced_call_are_an_object(grammars, schema):
    assert accepts(grammars, {"f": schema}, called("f", a=1))
    for value in ("null", "1", "[]", '"a"'):
        assert not accepts(grammars, {"f": schema}, f'{{"name": "f", "arguments": {value}}}')


def test_a_tool_whose_arguments_are_no_object_cannot_be_forced(grammars):
    for schema in ({"type": "integer"}, {"enum": [1]}, {"allOf": [{"type": "string"}]}):
        with pytest.raises(ApiError, match="must describe an object"):
            grammars.call_grammar({"f": schema}, ("", ""))


class Inner(pydantic.BaseModel):
    kind: Literal["cat", "dog"]
    mother: Inner | None


class Outer(pydantic.BaseModel):
    inner: Inner


def test_nested_models_of_the_client_can_be_forced(client):
    tool = openai.pydantic_function_tool(Outer)
    made = ask(client, tools=[tool], tool_choice="required").choices[0]
    (call,) = made.message.tool_calls
    assert Outer.model_validate_json(call.function.arguments)


GBNF = """
root ::= greeting " " name
greeting ::= "hi" | "hello"
name ::= [a-c]+ "!"
"""
LARK = 'start: "<" WORD ">"\nWORD: /[xy]{1,4}/'
TAG = {
    "type": "structural_tag", "triggers": ["<call="],
    "structures": [{"begin": "<call=now>", "schema": PERSON, "end": "</call>"}],
}  # fmt: skip
PATTERN = r"[A-F]{2,5}/[0-9]{1,3}(é|\n)"
FORMS = {
    "regex": ({"structured_outputs": {"regex": PATTERN}}, re.compile(PATTERN)),
    "older regex": ({"guided_regex": "(ab|cd){1,3}"}, re.compile("(ab|cd){1,3}")),
    "choice": ({"structured_outputs": {"choice": ["größe", 'a "b"', "ab\n"]}},
               re.compile('größe|a "b"|ab\n')),
    "GBNF": ({"grammar": GBNF}, re.compile("(hi|hello) [abc]+!")),
    "Lark": ({"structured_outputs": {"grammar": LARK}}, re.compile("<[xy]{1,4}>")),
}  # fmt: skip


@pytest.mark.parametrize("kind", FORMS)
@pytest.mark.parametrize("path", ["chat", "text"])
def test_answers_follow_patterns_choices_and_grammars(client, kind, path):
    body, expected = FORMS[kind]
    given = {"model": TINY, "temperature": 2, "max_tokens": 60, "n": 6, "seed": 3}
    if path == "chat":
        messages = [{"role": "user", "content": "hello"}]
        made = client.chat.completions.create(messages=messages, extra_body=body, **given)
        texts = [one.message.content for one in made.choices if one.finish_reason == "stop"]
    else:
        made = client.completions.create(prompt="hello", extra_body=body, **given)
        texts = [one.text for one in made.choices if one.finish_reason == "stop"]
    assert len(texts) > 2
    assert all(expected.fullmatch(text) for text in texts), texts


def test_a_schema_in_every_servers_way_is_the_same_schema(client):
    given = {"model": TINY, "temperature": 2, "max_tokens": 80, "prompt": "a", "seed": 5}
    ways = (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": PERSON}}},
        {"structured_outputs": {"json": PERSON}}, {"json_schema": PERSON},
        {"guided_json": json.dumps(PERSON)},
    )  # fmt: skip
    texts = {client.completions.create(extra_body=way, **given).choices[0].text for way in ways}
    (text,) = texts
    assert json.loads(text)["kind"] in ("cat", "dog")


def test_tags_begin_structures_within_free_text(grammars):
    """The trigger may not be followed by anything but what it begins; other text is free."""
    fields = Fields({"response_format": TAG})
    asked = read_grammar(byte_tokenizer(VOCABULARY), fields)
    whole = '<call=now>{"age":7,"kind":"cat"}</call>'

    def follows(text):
        matcher = grammars.compiled(asked.text, "here")
        return matcher.validate_tokens(list(text.encode())) == len(text)

    assert follows(f"free text {whole} and {whole} more < call")
    for wrong in ("<call=other>", whole.replace("7", "700"), whole.replace("</", "<")):
        assert not follows(f"free {wrong}")


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex", "cannot be followed"),
        ({"structured_outputs": {"regex": ""}}, "structured_outputs.regex", "1 to 65536"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", "none empty"),
        ({"structured_outputs": {"chance": 1}}, "structured_outputs.chance", "Unknown parameter"),
        ({"grammar": "root ::= missing"}, "grammar", "cannot be followed"),
        ({"grammar": "(" * 60_000}, None, None),
        ({"guided_json": "{"}, "guided_json", "an object, or the text of one"),
        ({"guided_json": {}, "grammar": GBNF}, "grammar", "exclude each other"),
        ({"response_format": {**TAG, "triggers": ["<other"]}},
         "response_format.structures[0].begin", "starts with one of the triggers"),
        ({"response_format": {**TAG, "structures": []}}, "response_format.structures", "1 to 64"),
    ],
)  # fmt: skip
def test_forms_that_cannot_be_followed_are_refused_by_name(client, body, param, message):
    with pytest.raises(openai.BadRequestError, match=message) as refused:
        client.completions.create(model=TINY, prompt="a", extra_body=body)
    assert param is None or refused.value.param == param
