"""The built-in page, used in a browser as people use it: on a desk and on a phone."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest
from browser import BROWSER, Browser
from serving import TINY, serving

PAGE = files("cortiq.serve") / "page"
SMALLEST_FONT, SMALLEST_BUTTON = 14, 32


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("page"), "--context", "4096") as running:
        yield running


@pytest.fixture(params=[360, 1280])
def page(request, server, tmp_path):
    if BROWSER is None:
        pytest.skip("no Chromium: apt-get install chromium-headless-shell")
    browser = Browser(tmp_path, request.param)
    browser.call("Page.navigate", url=server.url)
    browser.until("document.querySelector('#backend')?.textContent")
    yield browser
    browser.close()


def ask(page, text="hello"):
    page.click("#text")
    page.type(text)
    page.click("#send")


def ended(page):
    page.until("document.querySelector('#send').textContent === 'Send'")


def test_nothing_is_loaded_from_elsewhere():
    for name in ("index.html", "page.css", "page.js"):
        assert not re.search(r"(https?:)?//[a-z]", (PAGE / name).read_text("utf-8"))


def test_a_conversation(page):
    """Model and backend shown, an answer streamed, its numbers, copied, asked on, a new chat."""
    assert page.see("document.querySelector('#model').value") == TINY
    assert "cpu" in page.see("document.querySelector('#backend').textContent")
    settings = "document.querySelector('#settings').elements"
    page.see(f"{settings}.max_completion_tokens.value = 12; {settings}.seed.value = 3")
    ask(page)
    ended(page)
    first = page.see("document.querySelector('.assistant .words').textContent")
    assert first
    facts = page.see("document.querySelector('.assistant .facts').textContent")
    assert re.match(r"\d+ \+ \d+ tokens, \d+ cached", facts)
    page.see("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    page.click(".assistant .copy")
    assert page.until("window.copied") == first
    page.click("#text")
    page.type("more")
    page.press("Enter", 13)
    page.until("document.querySelectorAll('.assistant').length === 2")
    ended(page)
    assert page.see("messages.map((one) => one.role).join()") == "user,assistant,user,assistant"
    page.click("#fresh")
    ask(page)
    ended(page)
    again = page.see("document.querySelector('.assistant .words').textContent")
    assert again == first  # the same seed, the same bits
    assert page.complaints == []


def test_stopping_an_answer_stops_its_work(page, server):
    before = len(server.requests())
    page.see("document.querySelector('#settings').elements.max_completion_tokens.value = 3900")
    ask(page, "x" * 40)
    page.until("document.querySelector('.assistant .words').textContent.length > 5")
    page.click("#send")
    ended(page)
    assert "stopped" in page.see("document.querySelector('.assistant .facts').textContent")
    line = server.request_after(before)
    if "chat" not in line:  # that of the page's own loading, which is logged when it has been sent
        line = server.request_after(before + 1)
    assert "status=499" in line
    assert int(re.search(r"new_tokens=(\d+)", line)[1]) < 3900


def test_a_cut_answer_says_so_and_goes_on_by_a_button(page):
    settings = "document.querySelector('#settings').elements"
    page.see(f"{settings}.max_completion_tokens.value = 8; {settings}.seed.value = 3")
    ask(page)
    ended(page)
    assert "cut" in page.see("document.querySelector('.assistant .facts').textContent")
    first = page.see("messages[1].content")
    page.click("button.rest")
    page.until(f"messages[1].content.length > {len(first)}")
    ended(page)
    assert page.see("messages[1].content").startswith(first)
    assert page.see("messages.length") == 2
    assert page.see("document.querySelectorAll('button.rest').length") == 1
    ask(page, "on")
    ended(page)
    assert page.see("document.querySelectorAll('.assistant').length") == 2
    assert page.complaints == []


def test_enter_never_stops_an_answer(page):
    page.see("document.querySelector('#settings').elements.max_completion_tokens.value = 300")
    ask(page)
    page.until("document.querySelector('.assistant .words').textContent.length > 5")
    page.click("#text")
    page.type("later")
    page.press("Enter", 13)
    assert page.see("running !== null || messages.length === 2")
    assert page.see("document.querySelector('#text').value") == "later"
    ended(page)
    facts = page.see("document.querySelector('.assistant .facts').textContent")
    assert "stopped" not in facts and page.see("messages.length") == 2


def test_errors_are_said_and_the_question_is_kept(page):
    page.see("document.querySelector('#settings').elements.temperature.value = 9")
    ask(page, "keep me")
    ended(page)
    assert "temperature" in page.until("document.querySelector('#trouble').textContent")
    assert page.see("document.querySelector('#text').value") == "keep me"
    assert page.see("messages.length") == 0


def test_texts_are_never_markup(page):
    ask(page, "<img src=x onerror='window.broken = 1'> <b>bold</b>")
    ended(page)
    assert page.see("document.querySelector('.user b, .user img')") is None
    assert "<b>bold</b>" in page.see("document.querySelector('.user .words').textContent")


def test_it_fits_the_screen(page):
    page.see("document.querySelector('#settings').elements.max_completion_tokens.value = 30")
    ask(page, "a long line " * 30 + "w" * 300)
    ended(page)
    page.click("#more")
    assert page.see("document.querySelector('#settings').checkVisibility()")
    measured = page.see(
        "(() => { const e = document.documentElement;"
        "const shown = [...document.querySelectorAll('body *')].filter(x => x.checkVisibility());"
        "return [e.scrollWidth - e.clientWidth, e.scrollHeight - e.clientHeight,"
        "Math.min(...shown.map(x => parseFloat(getComputedStyle(x).fontSize))),"
        "Math.min(...shown.filter(x => x.matches('button')).map(x => x.offsetHeight))]; })()"
    )
    assert measured[0] <= 0 and measured[1] <= 0
    assert measured[2] >= SMALLEST_FONT - 0.01 and measured[3] >= SMALLEST_BUTTON
