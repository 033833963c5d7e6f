"""The server with SmolLM2: many clients at once get what each gets alone, and forms hold."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))


@pytest.fixture(scope="module")
def port(smollm2_path):
    import serve as benchmark

    command = [sys.executable, "-m", "cortiq", "serve", str(smollm2_path), "--port", "0"]
    server = subprocess.Popen([*command, "--threads", "1"], stderr=subprocess.PIPE, text=True)
    try:
        yield benchmark.address(server)
    finally:
        server.kill()
        server.wait()


def test_twelve_clients_get_what_each_gets_alone(port, smollm2_path):
    import serve as benchmark

    client = benchmark.LoadClient(port)
    asked = benchmark.kinds(smollm2_path.name.removesuffix(".gguf"))[:6]

    async def alone_and_together():
        alone = [(await client.ask(body))[0] for body in asked]
        several = [client.ask({**body, "stream": bool(n)}) for n in range(2) for body in asked]
        return alone, [got for got, _ in await asyncio.gather(*several)]

    alone, together = asyncio.run(alone_and_together())
    assert together == alone * 2
    person = json.loads(alone[5][0][0])
    assert set(person) == {"name", "age"} and alone[5][0][1] == "stop"


def test_a_text_that_its_context_swallows_has_no_score(port):
    """SmolLM2 has one token for "ab"."""
    listed = json.load(urlopen(f"http://127.0.0.1:{port}/v1/models"))
    body = json.dumps({"model": listed["data"][0]["id"], "text_1": "a", "text_2": "b"})
    with pytest.raises(HTTPError) as refused:
        urlopen(f"http://127.0.0.1:{port}/v1/score", body.encode())
    assert refused.value.code == 400 and json.load(refused.value)["error"]["param"] == "text_2"
