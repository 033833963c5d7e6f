"""The built-in page with a model that sees: images are chosen, or dropped on it."""

from __future__ import annotations

import base64
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")
pytest.importorskip("starlette")
pytest.importorskip("PIL")

import vision_folders
from PIL import Image
from test_page_sounds import EXACT, answered, choose, opened

import cortiq

sys.path.append(str(Path(__file__).parents[1] / "pure"))
from browser import BROWSER, Browser
from serving import Server

pytestmark = pytest.mark.skipif(BROWSER is None, reason="apt-get install chromium-headless-shell")
DROP = """
const bytes = Uint8Array.from(atob("{data}"), (letter) => letter.charCodeAt(0));
const given = new DataTransfer();
given.items.add(new File([bytes], "{name}"));
const event = {event};
document.querySelector("#text").dispatchEvent(event);
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    made = Browser(tmp_path_factory.mktemp("browser"), 360)
    yield made
    made.close()


def drop(browser, path, event="DragEvent('drop', { dataTransfer: given,"):
    """Drop a file on the page as a desktop does, or paste it."""
    data = base64.b64encode(path.read_bytes()).decode()
    made = f"new {event} bubbles: true, cancelable: true }})"
    browser.see("{" + DROP.format(data=data, name=path.name, event=made) + "}")


def data_url(path):
    data = base64.b64encode(path.read_bytes()).decode()
    return f"data:image/{path.suffix[1:]};base64,{data}"


def test_a_chat_sees_chosen_and_dropped_images(browser, tmp_path):
    """A server and a browser."""
    vision_folders.gemma3(tmp_path)
    files = [tmp_path / "a.png", tmp_path / "b.webp"]
    for file, colour in zip(files, ("red", "blue"), strict=True):
        Image.new("RGB", (40, 30), colour).save(file, lossless=True)
    (tmp_path / "a.wav").write_bytes(b"RIFF")
    server = Server(str(tmp_path), "--threads", "1", "--backend", "cpu", "--images")
    try:
        opened(browser, server)
        assert browser.see("document.querySelector('#attach').innerText") == "Image"
        assert "image/*" in browser.see("document.querySelector('#file').accept")
        drop(browser, tmp_path / "a.wav")
        browser.until("document.querySelector('#trouble').textContent.includes('PNG, JPEG')")
        choose(browser, files[0])
        drop(browser, files[1], "ClipboardEvent('paste', { clipboardData: given,")
        browser.until("attached.files.length === 2")
        browser.see(
            "settings.elements.temperature.value = 0; settings.elements.max_tokens.value = 5;"
            "tell('')"
        )
        browser.click("#text")
        browser.type("what?")
        browser.click("#send")
        found = answered(browser)
        sent = browser.see("contentOf(shownNodes(chat)[0]).map((one) => one.image_url?.url)")
        for file, url in zip(files, sent, strict=False):
            assert url == data_url(file)
        assert len(sent) == 3 and sent[2] is None  # the text
        assert "b.webp" in browser.see("document.querySelector('.user').innerText")
    finally:
        server.stop()
    with cortiq.load(tmp_path, backend="cpu", threads=1, images=True) as model:
        parts = [*({"image": file} for file in files), {"type": "text", "text": "what?"}]
        assert found == model.chat([{"role": "user", "content": parts}], **EXACT).text
    assert browser.complaints == []
