"""Coding agents as people have them do a loop of two tools against a scripted model.

`npm install --prefix .venv/agents @openai/codex @anthropic-ai/claude-code` installs them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from cortiq.dialects.splitter import Splitter
from cortiq.dialects.thinking import thinking_of

pytest.importorskip("anthropic", reason="the scripted answers are those of test_serve_apis")
pytest.importorskip("ollama", reason="as above")
from test_serve_apis import HERMES, scripted
from work import HANG_SECONDS

from cortiq.serve import messages_request, responses_request
from cortiq.serve.fields import Fields
from cortiq.serve.messages import read_messages, read_tools
from cortiq.serve.messages_writer import MessagesWriter
from cortiq.serve.responses_writer import ResponsesWriter

BIN = Path(sys.prefix) / "agents" / "node_modules" / ".bin"
CONFIG = """
model = "m"
model_provider = "here"
[model_providers.here]
name = "here"
base_url = "{url}/v1"
wire_api = "responses"
"""


def called(name, **arguments):
    return "<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}) + "\n</tool_call>"


class ScriptedModel(BaseHTTPRequestHandler):
    """Calls the agent's shell twice, then repeats what came out of it; keeps the results."""

    results: list[str] = []  # noqa: RUF012 - of the one conversation that a test has

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        openai = "responses" in self.path
        asked = (responses_request if openai else messages_request).as_chat(Fields(dict(body)))
        messages, tools = read_messages(Fields(dict(asked))), read_tools(Fields(dict(asked)))
        outputs = [one["content"] for one in messages if one["role"] == "tool"]
        ScriptedModel.results = max(ScriptedModel.results, outputs, key=len)
        text = self.next_answer(openai, len(outputs)) if tools.offered else "a title"
        splitter = Splitter(thinking_of("</think>"), HERMES, tools.schemas)
        pieces = [text[at : at + 5] for at in range(0, len(text), 5)]
        writer, details = (
            (ResponsesWriter, {"fields": Fields(body)}) if openai else (MessagesWriter, {})
        )
        answer, _ = scripted(writer, pieces, splitter=splitter, **details)
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        self.wfile.write(answer.encode())

    def next_answer(self, openai, done):
        if done == 2:
            return "All is done: the end."
        command = f"echo step{done}"
        if openai:
            return "I look. " + called("exec_command", cmd=command)
        return "I look. " + called("Bash", command=command, description="look")

    def do_GET(self):
        self.send_error(404)

    def log_message(self, *_):
        pass


@pytest.fixture
def url():
    ScriptedModel.results = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), ScriptedModel)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def run(name, arguments, folder, **environment):
    program = shutil.which(name, path=os.pathsep.join([str(BIN), os.environ["PATH"]]))
    if program is None:
        pytest.skip(f"{name} is not installed: see this file's first lines")
    variables = {**os.environ, "HOME": str(folder), **environment}
    done = subprocess.run(
        [program, *arguments], env=variables, cwd=folder, capture_output=True, text=True,
        timeout=HANG_SECONDS, stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    return done.stdout + done.stderr


@pytest.mark.slow
def test_claude_code_calls_two_tools(url, tmp_path):
    said = run(
        "claude", ["-p", "Go", "--model", "m", "--allowedTools", "Bash"], tmp_path,
        ANTHROPIC_BASE_URL=url, ANTHROPIC_API_KEY="k", DISABLE_TELEMETRY="1",
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
    )  # fmt: skip
    assert ["step0" in one or "step1" in one for one in ScriptedModel.results] == [True, True], said
    assert "All is done: the end." in said


@pytest.mark.slow
def test_codex_calls_two_tools(url, tmp_path):
    (tmp_path / ".codex").mkdir()
    (tmp_path / ".codex" / "config.toml").write_text(CONFIG.format(url=url))
    said = run("codex", ["exec", "--skip-git-repo-check", "Go"], tmp_path)
    assert ["step0" in one or "step1" in one for one in ScriptedModel.results] == [True, True], said
    assert "All is done: the end." in said
