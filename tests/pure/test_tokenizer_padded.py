"""Models have more ids than their tokenizer: those are drawn like any other, and have no text."""

from __future__ import annotations

import json
from urllib.request import Request, urlopen

import pytest
from folders import write_llama
from serving import Server
from tokenizer_files import LETTERS, described, write

import cortiq

DRAW = {"max_tokens": 40, "temperature": 1.0, "seed": 7, "ignore_eos": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("padded")
    write_llama(path, "llama")
    return write(path, described())


def test_what_is_drawn_does_not_depend_on_the_tokenizer(folder):
    model = cortiq.load(folder)
    made = model.generate([1, 2, 3], **DRAW)
    assert max(made.token_ids) >= len(LETTERS) == model.tokenizer.vocab_size
    known = [token for token in made.token_ids if token < len(LETTERS)]
    assert made.text == model.tokenizer.decode(known, continuation=True)
    (folder / "tokenizer.json").rename(folder / "away.json")
    without = cortiq.load(folder).generate([1, 2, 3], **DRAW)
    (folder / "away.json").rename(folder / "tokenizer.json")
    assert (without.token_ids, without.digest) == (made.token_ids, made.digest)


def test_a_server_answers_with_them(folder):
    server = Server(str(folder))
    try:
        with urlopen(f"{server.url}/v1/models") as listed:
            name = json.load(listed)["data"][0]["id"]
        asked = {"model": name, "prompt": [1, 39, 2], "max_tokens": 40, "temperature": 1.0}
        asked |= {"seed": 7}
        for more in ({"echo": True}, {"logprobs": 5}, {"stream": True}):
            body = json.dumps(asked | more).encode()
            head = {"content-type": "application/json"}
            request = Request(f"{server.url}/v1/completions", body, head)
            with urlopen(request) as answer:
                assert answer.status == 200
                text = answer.read().decode()
            assert '"error"' not in text
    finally:
        server.stop()
