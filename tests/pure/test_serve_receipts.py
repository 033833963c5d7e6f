"""Receipts over HTTP: every API's answer can be verified, here and by the server, to the byte."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import anthropic
import ollama
import openai
import pytest
from click.testing import CliRunner
from serving import TINY, serving

import cortiq
from cortiq.cli.verify import verify as command
from cortiq.errors import CortiqError
from cortiq.receipts.reader import receipt_of
from cortiq.serve.options import ServeOptions
from cortiq.serve.receipt_maker import ReceiptMaker

cryptography = pytest.importorskip("cryptography", reason="signs receipts")
HELLO = [{"role": "user", "content": "hello"}]
ASKED = {"receipt": True, "seed": 7}


@pytest.fixture(scope="module")
def key(tmp_path_factory):
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    file, key = tmp_path_factory.mktemp("key") / "key.pem", Ed25519PrivateKey.generate()
    pem, plain = form.Encoding.PEM, form.PrivateFormat.PKCS8
    file.write_bytes(key.private_bytes(pem, plain, form.NoEncryption()))
    public = key.public_key().public_bytes_raw().hex()
    (file.parent / "key.pub").write_text(public)
    return file


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("receipts") / "made"


@pytest.fixture(scope="module")
def server(tmp_path_factory, folder, key):
    arguments = ("--receipts", str(folder), "--sign", str(key))
    with serving(tmp_path_factory.mktemp("server"), *arguments) as running:
        yield running


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def model():
    with cortiq.load(TINY, context=512, threads=1) as loaded:
        yield loaded


def chat(client, **more):
    given = {"model": TINY, "messages": HELLO, "max_completion_tokens": 6, **more}
    return client.chat.completions.create(extra_body=ASKED, **given)


def checked(made, model, key, text=None):
    """A receipt's claim, after it was verified on another model with the public key."""
    receipt = receipt_of(made, "r")
    verdict = cortiq.verify(receipt, model, key=key.parent / "key.pub")
    assert verdict.identical and verdict.signed_by, verdict.differences
    assert text is None or receipt.claim.text == text
    return receipt.claim


def test_every_api_gives_the_receipt_of_its_answer(server, client, model, key):
    made = chat(client).choices[0]
    claim = checked(made.receipt, model, key, made.message.content)
    texts = client.completions.create(
        model=TINY, prompt=["ab", "cd"], n=2, max_tokens=4, extra_body=ASKED
    )
    claims = [checked(one.receipt, model, key, one.text) for one in texts.choices]
    assert [one.options.choice for one in claims] == [0, 1, 0, 1]
    response = client.responses.create(
        model=TINY, input="hello", max_output_tokens=6, extra_body=ASKED
    )
    assert checked(response.receipt, model, key, response.output_text) == claim
    claude = anthropic.Anthropic(base_url=server.url, api_key="k")
    message = claude.messages.create(
        model=TINY, messages=HELLO, max_tokens=6, extra_body=ASKED
    )  # fmt: skip
    assert checked(message.receipt, model, key, message.content[0].text) == claim
    given = {"model": TINY, "messages": HELLO, "options": {"num_predict": 6, "seed": 7}}
    answer = client.post(f"{server.url}/api/chat", cast_to=str,
                         body={**given, "stream": False, "receipt": True})  # fmt: skip
    assert checked(json.loads(answer)["receipt"], model, key) == claim


def test_streams_end_with_a_receipt_of_all_that_was_streamed(server, client, model, key):
    chunks = list(chat(client, stream=True))
    text = "".join(one.choices[0].delta.content or "" for one in chunks)
    claim = checked(chunks[-1].choices[0].receipt, model, key, text)
    events = list(client.responses.create(
        model=TINY, input="hello", max_output_tokens=6, stream=True, extra_body=ASKED))  # fmt: skip
    assert checked(events[-1].response.receipt, model, key, text) == claim
    claude = anthropic.Anthropic(base_url=server.url, api_key="k")
    stream = claude.messages.create(
        model=TINY, messages=HELLO, max_tokens=6, stream=True, extra_body=ASKED
    )
    (found,) = [event.receipt for event in stream if event.type == "message_delta"]
    assert checked(found, model, key, text) == claim


def test_clients_of_all_apis_at_once_get_what_each_gets_alone(server, client, model, key):
    claude = anthropic.Anthropic(base_url=server.url, api_key="k")
    llama = ollama.Client(host=server.url)

    def asked(number):
        extra, text = {"seed": number, "temperature": 1.0}, f"{number} things"
        turns = [{"role": "user", "content": text}]
        if number % 4 == 0:
            made = client.chat.completions.create(
                model=TINY, messages=turns, max_tokens=8, extra_body=extra
            )
            return made.choices[0].message.content
        if number % 4 == 1:
            given = {"max_output_tokens": 8, "stream": True, "extra_body": extra}
            events = list(client.responses.create(model=TINY, input=text, **given))
            return events[-1].response.output_text
        if number % 4 == 2:
            made = claude.messages.create(
                model=TINY, messages=turns, max_tokens=8, extra_body={**extra, "receipt": True}
            )
            receipts.append((made.receipt, made.content[0].text))
            return made.content[0].text
        options = {"num_predict": 8, **extra}
        pieces = llama.chat(TINY, messages=turns, options=options, stream=True)
        return "".join(piece.message.content for piece in pieces)

    receipts: list = []
    alone = [asked(number) for number in range(16)]
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(asked, range(16))) == alone
    for receipt, text in receipts:  # four of those that were alone, four of the others
        checked(receipt, model, key, text)


def test_stop_strings_and_thinking_are_in_the_claim_as_they_were(client, model, key):
    whole = chat(client).choices[0].message.content
    cut = chat(client, stop=whole[3]).choices[0]
    claim = checked(cut.receipt, model, key, cut.message.content)
    assert claim.finish_reason == "stop" and claim.options.stop == (whole[3],)
    extra = {**ASKED, "chat_template_kwargs": {"enable_thinking": True}}
    thought = client.chat.completions.create(
        model=TINY, messages=HELLO, max_completion_tokens=6, extra_body=extra
    ).choices[0]  # fmt: skip
    checked(thought.receipt, model, key, thought.message.reasoning_content)


def test_every_answer_has_a_file_in_the_folder_whether_it_was_asked_for_or_not(
    client, folder, model, key
):
    before = set(folder.iterdir())
    made = client.chat.completions.create(model=TINY, messages=HELLO, max_tokens=3)
    assert not hasattr(made.choices[0], "receipt")
    (file,) = set(folder.iterdir()) - before
    checked(json.loads(file.read_text()), model, key, made.choices[0].message.content)
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"const": 1}}}
    client.chat.completions.create(model=TINY, messages=HELLO, response_format=form)
    assert len(set(folder.iterdir()) - before) == 1
    with pytest.raises(openai.BadRequestError, match="receipt"):
        chat(client, response_format=form)


def post(client, receipt):
    made = client.post("/verify", body={"receipt": receipt}, cast_to=str)
    return json.loads(made)


def test_the_server_verifies_a_receipt_and_refuses_a_changed_byte(client, key):
    made = chat(client).choices[0].receipt
    verdict = post(client, made)
    public = (key.parent / "key.pub").read_text()
    assert verdict["identical"] and verdict["steps"] == 6 and verdict["signed_by"] == public
    bare = json.loads(client.post("/verify", body=made, cast_to=str))
    assert bare["identical"] and bare["steps"] == 6
    other = json.loads(json.dumps(made))
    other["claim"]["token_ids"][2] ^= 1
    assert not post(client, other)["identical"]
    forged = json.loads(json.dumps(made))
    forged["stated"]["device"] = "another"
    (difference,) = post(client, forged)["differences"]
    assert difference["field"] == "signature"
    with pytest.raises(openai.BadRequestError, match="is no receipt"):
        post(client, {**made, "format": "other"})
    foreign = {**made, "claim": {**made["claim"], "model_hash": "0" * 64}}
    with pytest.raises(openai.NotFoundError, match="No model of the hash 0000"):
        post(client, foreign)


def test_the_command_asks_a_server_and_checks_the_signature_itself(server, client, key, tmp_path):
    made = chat(client).choices[0].receipt
    file = tmp_path / "r.json"
    file.write_text(json.dumps(made))
    public = str(key.parent / "key.pub")
    done = CliRunner().invoke(command, [str(file), "--url", server.url, "--key", public])
    assert done.exit_code == 0 and done.stdout.startswith("identical: 6 steps"), done.output
    made["claim"]["text"] += "!"
    file.write_text(json.dumps(made))
    done = CliRunner().invoke(command, [str(file), "--url", server.url, "--key", public])
    assert done.exit_code == 1 and "not identical: the signature" in done.stdout
    done = CliRunner().invoke(command, [str(file), "--url", "http://127.0.0.1:9"])
    assert isinstance(done.exception, CortiqError)
    (tmp_path / "other").write_text("0" * 64)
    done = CliRunner().invoke(command, [str(file), "--url", server.url, "--image", "a.png"])
    assert isinstance(done.exception, CortiqError) and "takes no images" in str(done.exception)
    done = CliRunner().invoke(command, [str(file), TINY, "--url", server.url])
    assert done.exit_code == 2 or isinstance(done.exception, CortiqError)


def test_a_folder_or_key_that_cannot_be_used_is_said_at_the_start(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CortiqError, match="receipts cannot be written here"):
        ReceiptMaker(ServeOptions(receipts=str(tmp_path / "file" / "made")))
    with pytest.raises(CortiqError, match="no private key"):
        ReceiptMaker(ServeOptions(sign=str(tmp_path / "file")))
