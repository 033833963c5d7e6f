"""Print the first answers of a model through every entry, with no option given, to be read.

    python tools/first_answers.py smollm2 --entries run,chat,python,page,llm

A base model gets the same texts to continue; entries that only chat are left out for it.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parent.parent
PROMPTS = (
    "Hello!", "Say hi", "Why is the sky blue?", "What is the capital of France?",
    "What is 7 times 8?",
    "Write a haiku about the sea.", "Name three colours.", "Who wrote Romeo and Juliet?",
    "Translate 'good morning' into French.", "Write a Python function that reverses a string.",
    "Explain gravity to a child.", "Give me a recipe for pancakes.", "What can you do?",
    "Summarise: The cat sat on the mat. It was warm there, and it slept all day.",
    "Write a short email to my boss that I am ill today.", "Is a whale a fish?",
    "List the planets of the solar system.", "Tell me a joke.", "What is a prime number?",
    "Thank you, goodbye.",
)  # fmt: skip
OPENINGS = (
    "Once upon a time", "The capital of France is", "Water boils at", "def add(a, b):", "Dear Sir,",
    "The quick brown fox", "In 1969, the first man", "My favourite food is", "To be or not to be,",
    "Ingredients:\n-", "The sun rises in the", "She opened the door and", "1, 2, 3, 4,",
    "The three primary colours are", "Breaking news:", "How to tie a tie:", "Photosynthesis is",
    "import numpy as np\n", "The meaning of life is", "It was a dark and stormy night",
)  # fmt: skip
Ask = Callable[[str], str]


@contextmanager
def by_run(model: str) -> Iterator[Ask]:
    """Yield `cortiq run MODEL PROMPT`, with what it says on stderr."""

    def ask(prompt: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "cortiq", "run", model, prompt], capture_output=True, text=True,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        return (done.stdout.rstrip("\n") + "\n" + done.stderr).rstrip("\n")

    yield ask


@contextmanager
def by_chat(model: str) -> Iterator[Ask]:
    """Yield `cortiq chat MODEL` at a terminal, a new chat each."""
    import pexpect

    environment = {**os.environ, "TERM": "dumb", "PROMPT_TOOLKIT_NO_CPR": "1"}
    child = pexpect.spawn(
        sys.executable, ["-m", "cortiq", "chat", model, "--no-history"], encoding="utf-8",
        timeout=300, dimensions=(24, 100), env=environment,
    )  # fmt: skip
    child.expect_exact("/help for help")

    def ask(prompt: str) -> str:
        child.send(f"{prompt}\r")
        child.expect(r"\r\n\[?[^\n]*first after[^\n]*\n")
        shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", child.before).replace("\r", "")
        child.send("/reset\r")
        child.expect_exact("the system message stays")
        return shown.rpartition(prompt)[2].strip()

    yield ask
    child.close(force=True)


@contextmanager
def by_python(model: str) -> Iterator[Ask]:
    """Yield `cortiq.load(MODEL).chat(...)`, or `generate` for a base model."""
    import cortiq

    with cortiq.load(model) as opened:

        def ask(prompt: str) -> str:
            if opened.tokenizer.chat_template() is None:
                return str(opened.generate(prompt))
            return str(opened.chat([{"role": "user", "content": prompt}]))

        yield ask


@contextmanager
def served(model: str) -> Iterator[str]:
    """Yield the address of `cortiq serve MODEL`."""
    command = [sys.executable, "-m", "cortiq", "serve", model, "--port", "0"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    assert server.stderr is not None
    try:
        while not (found := re.search(r"serving on (\S+)", server.stderr.readline())):
            if server.poll() is not None:
                raise SystemExit("the server did not start")
        yield found[1]
    finally:
        server.terminate()
        server.wait()


@contextmanager
def by_page(model: str) -> Iterator[Ask]:
    """Yield the page in a browser, a new chat each."""
    sys.path[:0] = [str(ROOT / "tests" / "pure"), str(ROOT / "tests")]
    from browser import Browser

    with served(model) as url, tempfile.TemporaryDirectory() as folder:
        page = Browser(Path(folder), 900)
        page.call("Page.navigate", url=url)
        page.until("document.querySelector('#backend')?.textContent")

        def ask(prompt: str) -> str:
            page.click("#fresh")
            page.until("shownNodes(chat).length === 0")
            page.click("#text")
            page.type(prompt)
            page.click("#send")
            page.until("running === null && shownNodes(chat).length === 2")
            return page.see("document.querySelector('.assistant').innerText")

        yield ask
        page.close()


@contextmanager
def by_llm(model: str) -> Iterator[Ask]:
    """Yield the command `llm`, which asks the server."""
    with served(model) as url, tempfile.TemporaryDirectory() as folder:
        kind = "completion: true" if model == "gemma3-270m" else "can_stream: true"
        (Path(folder) / "extra-openai-models.yaml").write_text(
            f"- model_id: served\n  model_name: {model}\n  api_base: {url}/v1\n  {kind}\n"
        )
        environment = {**os.environ, "LLM_USER_PATH": folder, "OPENAI_API_KEY": "none"}

        def ask(prompt: str) -> str:
            command = [str(Path(sys.executable).parent / "llm"), "-m", "served", prompt]
            done = subprocess.run(
                command, capture_output=True, text=True, env=environment, stdin=subprocess.DEVNULL
            )
            return (done.stdout + done.stderr).strip()

        yield ask


ENTRIES = {"run": by_run, "chat": by_chat, "python": by_python, "page": by_page, "llm": by_llm}


def main() -> None:
    """Print every answer under its entry and prompt."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--entries", default=",".join(ENTRIES))
    parser.add_argument("--base", action="store_true", help="the model continues texts")
    given = parser.parse_args()
    names = [n for n in given.entries.split(",") if not (given.base and n == "chat")]
    for name in names:
        print(f"\n==== {given.model} through {name}")
        with ENTRIES[name](given.model) as ask:
            for prompt in OPENINGS if given.base else PROMPTS:
                print(f"\n> {prompt}\n{textwrap.indent(ask(prompt), '  ')}", flush=True)


if __name__ == "__main__":
    main()
