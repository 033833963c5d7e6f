"""Mutants of HTTP requests against a running server: an answer or a closed connection, no 500.

`python -m tests.fuzz.http --seconds 60`. Bodies are mutants of valid objects, heads of valid bytes;
clients go away, send by pieces, and pipeline. The server must live, and its log have no traceback.
"""

from __future__ import annotations

import json
import random
import socket
import tempfile
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

from fuzzing import mutate
from serving import TINY, Server, serving

from .mutants import main, mutated_text, rounds

WAIT_SECONDS = 60.0
LIMITS = ("--body-bytes", "65536", "--body-seconds", "0.3", "--header-seconds", "0.3",
          "--write-seconds", "1", "--sequences", "4", "--api-key", "key")  # fmt: skip
TOOL = {
    "type": "function",
    "function": {
        "name": "now", "description": "The time.",
        "parameters": {"type": "object", "properties": {"zone": {"type": "string"}},
                       "required": ["zone"]},
    },
}  # fmt: skip
CALL = {"id": "c1", "type": "function", "function": {"name": "now", "arguments": '{"zone": "x"}'}}
MESSAGES = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": [{"type": "text", "text": "What time is it?"}]},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "noon"},
]
ITEMS: list[dict[str, Any]] = [
    {"role": "user", "content": [{"type": "input_text", "text": "What time is it?"}]},
    {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
    {"type": "function_call", "call_id": "c1", "name": "now", "arguments": '{"zone": "x"}'},
    {"type": "function_call_output", "call_id": "c1", "output": "noon"},
]
BLOCKS: list[dict[str, Any]] = [
    {"role": "user", "content": "What time is it?"},
    {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "hm", "signature": ""},
        {"type": "tool_use", "id": "c1", "name": "now", "input": {"zone": "x"}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "noon"}]},
]  # fmt: skip
CHAT: dict[str, Any] = {
    "model": TINY, "messages": MESSAGES, "max_tokens": 2, "temperature": 0.5, "seed": 1,
}  # fmt: skip
SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"]}
FORM = {"type": "json_schema", "json_schema": {"name": "f", "schema": SCHEMA, "strict": True}}
BODIES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/v1/chat/completions", CHAT),
    ("/v1/chat/completions", {**CHAT, "tools": [TOOL], "tool_choice": "auto", "stream": True}),
    ("/v1/chat/completions", {**CHAT, "response_format": FORM, "n": 2, "logprobs": True}),
    ("/v1/chat/completions", {**CHAT, "stop": ["a"], "logit_bias": {"3": -1}, "top_logprobs": 2,
                              "logprobs": True, "chat_template_kwargs": {"enable_thinking": True}}),
    ("/v1/completions", {"model": TINY, "prompt": ["a", "b"], "max_tokens": 2, "echo": True}),
    ("/v1/completions", {"model": TINY, "prompt": [1, 2, 3], "max_tokens": 1, "stream": True}),
    ("/v1/completions", {"model": TINY, "prompt": "a", "max_tokens": 0, "echo": True,
                         "logprobs": 2, "return_token_ids": True, "prompt_logprobs": 1}),
    ("/v1/completions", {"model": TINY, "prompt": "a", "max_tokens": 3, "priority": 5,
                         "structured_outputs": {"regex": "[a-c]{1,3}(x|y)+"}}),
    ("/v1/completions", {"model": TINY, "prompt": "a", "max_tokens": 3, "grammar":
                         'root ::= "a" [b-c]* ("x" | other)\nother ::= "y" root?'}),
    ("/v1/chat/completions", {**CHAT, "structured_outputs": {"choice": ["ab", "cd"]}}),
    ("/v1/chat/completions", {**CHAT, "structured_outputs": {"grammar": 'start: "a" /[bc]+/'}}),
    ("/v1/chat/completions", {**CHAT, "response_format": {
        "type": "structural_tag", "triggers": ["<a"],
        "structures": [{"begin": "<a>", "schema": SCHEMA, "end": "</a>"}]}}),
    ("/v1/score", {"model": TINY, "text_1": "a b", "text_2": ["c", "d e"]}),
    ("/v1/rerank", {"model": TINY, "query": "a", "documents": ["b", {"text": "c"}], "top_n": 1}),
    ("/api/chat", {"model": TINY, "messages": [{"role": "user", "content": "a", "images": []}],
                   "keep_alive": "5m", "stream": False, "options": {"num_predict": 1}}),
    ("/v1/embeddings", {"model": TINY, "input": ["a b", [1, 2]], "encoding_format": "base64"}),
    ("/v1/responses", {"model": TINY, "input": ITEMS, "max_output_tokens": 2, "store": False,
                       "tools": [{"type": "function", **TOOL["function"]}], "stream": True,
                       "reasoning": {"effort": "low"}, "text": {"format": {"type": "text"}}}),
    ("/v1/messages", {"model": TINY, "messages": BLOCKS, "max_tokens": 2, "stream": True,
                      "system": [{"type": "text", "text": "Be kind."}], "stop_sequences": ["a"],
                      "thinking": {"type": "enabled", "budget_tokens": 9}, "receipt": True}),
    ("/api/chat", {"model": TINY, "messages": [{"role": "user", "content": "a"}], "think": True,
                   "options": {"num_predict": 2, "stop": ["a"], "num_ctx": 9}, "format": "json"}),
    ("/api/generate", {"model": TINY, "prompt": "a", "raw": True, "options": {"num_predict": 1}}),
    ("/api/embeddings", {"model": TINY, "prompt": "a"}),
    ("/api/embed", {"model": TINY, "input": ["a", "b"], "truncate": True}),
    ("/tokenize", {"model": TINY, "prompt": "a b", "return_token_strs": True}),
    ("/detokenize", {"model": TINY, "tokens": [1, 2, 3]}),
    ("/v1/verify", {"receipt": {"format": "cortiq-receipt", "version": 1, "claim": {}}}),
)  # fmt: skip
HEADS = [
    b"Host: ", b"Origin: ", b"\r\n", b"[::1]", b"Bearer ", b"Content-Length: 5\r\n", b"HTTP/1.0",
    b"Transfer-Encoding: chunked\r\n", b"%2e%2e/", b"Expect: 100-continue\r\n", b"\x00",
    b"Authorization: Basic x\r\n", b"GET /metrics ", b"OPTIONS * ",
]  # fmt: skip
"""Pieces that heads are made of."""


def request(rng: random.Random) -> bytes:
    """A request: its body or its head is a mutant, sometimes both."""
    path, body = rng.choice(BODIES)
    data, kind = json.dumps(body).encode(), rng.randrange(4)
    if kind:
        data = mutated_text(data, rng)
    fields = [f"POST {path} HTTP/1.1", "Host: localhost", "Authorization: Bearer key",
              "Content-Type: application/json", f"Content-Length: {len(data)}"]  # fmt: skip
    head = "\r\n".join(fields).encode()
    if kind in (0, 3):
        head = mutate(head, rng, HEADS)
    return head + b"\r\n\r\n" + data


def try_one(server: Server, rng: random.Random) -> str:
    """Send one request, or two in a row; the status of the first answer, or "closed"."""
    return exchange(server, b"".join(request(rng) for _ in range(rng.choice([1, 1, 1, 2]))), rng)


def exchange(server: Server, data: bytes, rng: random.Random) -> str:
    """Send bytes, at times not all of them; the status of the first answer, or "closed"."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_SECONDS) as link:
        try:
            if rng.random() < 0.1:  # by pieces, and perhaps not all of it
                data = data[: rng.randrange(len(data))]
            link.sendall(data)
            if rng.random() < 0.1:
                return "left"
            if rng.random() < 0.2:  # as if it went away: uvicorn hears no more than that
                link.shutdown(socket.SHUT_WR)
            answer = link.recv(1 << 16)
        except TimeoutError:
            raise
        except OSError:  # the server has closed it
            answer = b""
    check(server, answer)
    return answer[9:12].decode() if answer else "closed"


def check(server: Server, answer: bytes) -> None:
    """An answer is HTTP and no 500; the server lives, and its log has no traceback."""
    assert not answer or answer.startswith(b"HTTP/1.1 "), answer[:200]
    assert not answer.startswith(b"HTTP/1.1 500"), answer[:1000]
    assert server.process.poll() is None, "the server has ended"
    lines = list(server.lines)
    found = [n for n, line in enumerate(lines) if "Traceback" in line]
    assert not found, "\n".join(lines[found[0] - 1 : found[0] + 60])


def run(seed: int, count: int | None = None, seconds: float | None = None, first: int = 0) -> (
    Counter[str]
):  # fmt: skip
    """Mutants against one server; how often each status came."""
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder), *LIMITS) as server:
        made = rounds(partial(try_one, server), seed, count=count, seconds=seconds, first=first)
        check(server, b"")
        return made


if __name__ == "__main__":
    main(__doc__, lambda o: run(o.seed, seconds=o.seconds, first=o.first))
