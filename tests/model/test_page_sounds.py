"""The built-in page with models that hear: a file of sound is chosen, and what is said is shown."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")
pytest.importorskip("starlette")

import spoken_folders
import whisper_folders
from test_whisper_serve import wav

import cortiq

sys.path.append(str(Path(__file__).parents[1] / "pure"))
from browser import BROWSER, Browser
from serving import TINY, Server

pytestmark = pytest.mark.skipif(BROWSER is None, reason="apt-get install chromium-headless-shell")
EXACT = {"temperature": 0, "max_tokens": 5}


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    made = Browser(tmp_path_factory.mktemp("browser"), 360)
    yield made
    made.close()


def opened(browser, server):
    browser.call("Page.navigate", url=server.url)
    browser.until("document.querySelector('#backend')?.textContent")


def choose(browser, *files):
    """Choose files as the dialogue of the browser does."""
    root = browser.call("DOM.getDocument")["root"]["nodeId"]
    field = browser.call("DOM.querySelector", nodeId=root, selector="#file")["nodeId"]
    browser.call("DOM.setFileInputFiles", files=[str(file) for file in files], nodeId=field)
    browser.until(f"attached.files.length >= {len(files)}")


def answered(browser, count=1):
    browser.until(f"running === null && document.querySelectorAll('.assistant').length === {count}")
    assert browser.see("document.querySelector('#trouble').textContent") == ""
    return browser.see("shownNodes(chat).at(-1).content")


@pytest.fixture(scope="module")
def speaks(tmp_path_factory):
    """Folders of a Whisper model and of one whose prompts have sounds, with a file in each."""
    place = tmp_path_factory.mktemp("folders")
    for name, write in (("writes", whisper_folders.whisper), ("hears", spoken_folders.qwen2_audio)):
        (place / name).mkdir()
        write(place / name)
    (place / "a.wav").write_bytes(wav(0.6))
    (place / "b.wav").write_bytes(wav(0.5, 900.0))
    return place


def served(folder):
    return Server(str(folder), "--threads", "1", "--backend", "cpu")


def test_a_chat_hears_the_chosen_files(browser, speaks):
    server = served(speaks / "hears")
    try:
        opened(browser, server)
        choose(browser, speaks / "a.wav", speaks / "b.wav")
        assert browser.see("document.querySelector('#attached').innerText").split() == [
            "a.wav", "×", "b.wav", "×"
        ]  # fmt: skip
        browser.click("#attached .remove:last-child")
        assert browser.see("attached.files.map((one) => one.name).join()") == "a.wav"
        browser.see(
            "settings.elements.temperature.value = 0; settings.elements.max_tokens.value = 5"
        )
        browser.click("#text")
        browser.type("what?")
        browser.click("#send")
        found = answered(browser)
        assert "a.wav" in browser.see("document.querySelector('.user').innerText")
        assert browser.see("document.querySelector('#attached').hidden")
    finally:
        server.stop()
    with cortiq.load(speaks / "hears", backend="cpu", threads=1) as model:
        parts = [{"audio": speaks / "a.wav"}, {"type": "text", "text": "what?"}]
        messages = [{"role": "user", "content": parts}]
        assert found == model.chat(messages, **EXACT).text
        assert found != model.chat([{"role": "user", "content": "what?"}], **EXACT).text


def test_a_whisper_model_writes_the_chosen_file_down(browser, speaks):
    server = served(speaks / "writes")
    try:
        opened(browser, server)
        assert "writes down" in browser.see("document.querySelector('#backend').textContent")
        browser.see("openChat(newChat())")
        (speaks / "a.txt").write_text("no sound")
        browser.see("attached.add(new File(['x'], 'a.txt'))")
        assert "WAV, MP3" in browser.see("document.querySelector('#trouble').textContent")
        choose(browser, speaks / "a.wav")
        browser.click("#send")
        found = answered(browser)
    finally:
        server.stop()
    with cortiq.load(speaks / "writes", backend="cpu", threads=1) as model:
        assert found == model.transcribe(speaks / "a.wav").text != ""


def test_other_models_are_offered_none(browser):
    server = Server(TINY, "--threads", "1", "--backend", "cpu")
    try:
        opened(browser, server)
        assert browser.see("document.querySelector('#attach').hidden")
    finally:
        server.stop()
    assert browser.complaints == []
