"""The built-in page, used in a browser as people use it: on a desk and on a phone."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from importlib.resources import files
from pathlib import Path

import pytest
from browser import BROWSER, Browser
from serving import TINY, serving

from cortiq.model.conversation import read_conversation
from cortiq.serve.pages import PAGE_FILES

PAGE = files("cortiq.serve") / "page"
AXE = Path(sys.prefix) / "axe" / "node_modules" / "axe-core" / "axe.min.js"
SMALLEST_FONT, SMALLEST_BUTTON = 14, 32
LAST = "[...document.querySelectorAll('.assistant')].at(-1)"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("page"), "--context", "4096") as running:
        yield running


@pytest.fixture(params=[360, 1280], scope="module")
def browser(request, tmp_path_factory):
    if BROWSER is None:
        pytest.skip("no Chromium: apt-get install chromium-headless-shell")
    made = Browser(tmp_path_factory.mktemp("browser"), request.param)
    yield made
    made.close()


@pytest.fixture
def page(browser, server):
    opened(browser, server)
    browser.see("store.clear().then(() => localStorage.clear())")
    opened(browser, server)
    browser.complaints.clear()
    return browser


def opened(browser, server):
    browser.call("Page.navigate", url="about:blank")
    browser.call("Page.navigate", url=server.url)
    browser.until("document.querySelector('#backend')?.textContent")


def ask(page, text="hello", **chosen):
    for name, value in chosen.items():
        page.see(f"settings.elements.{name}.value = {json.dumps(value)}")
    page.click("#text")
    page.type(text)
    page.click("#send")


def ended(page):
    """Wait until an answer has ended and its chat is listed, which is later."""
    page.until("running === null && document.querySelector('#send').textContent === 'Send'")
    page.until("!chat.nodes.length || document.querySelector('#list [aria-current]') !== null")


def show(page, text):
    """Show a text as an answer."""
    page.see(
        f"""(() => {{
            chat = newChat();
            const asked = addNode(chat, null, "user", "hello");
            addNode(chat, asked.id, "assistant", {json.dumps(text)});
            render();
        }})()"""
    )


def roles(page):
    return page.see("shownNodes(chat).map((node) => node.role).join()")


def test_nothing_is_loaded_from_elsewhere():
    own = [name for name, _ in PAGE_FILES.values() if not name.startswith("vendor/")]
    for name in own:
        text = (PAGE / name).read_text("utf-8")
        assert not re.search(r"""(src|href|url\(|fetch\()\s*=?\s*["']?(https?:)?//""", text), name


def test_libraries_are_those_that_were_published():
    vendored = json.loads((PAGE / "vendor" / "vendored.json").read_text())
    for name, facts in vendored.items():
        file = PAGE / "vendor" / name
        assert hashlib.sha256(file.read_bytes()).hexdigest() == facts["sha256"], name
        licence = PAGE / "vendor" / name.replace(".js", ".LICENSE")
        assert "opyright" in licence.read_text() and facts["version"]
    served = {name.removeprefix("vendor/") for name, _ in PAGE_FILES.values() if "vendor" in name}
    assert served == set(vendored)


def test_a_conversation(page):
    """Model and backend shown, an answer streamed, its numbers, copied, asked on, a new chat."""
    assert page.see("document.querySelector('#model').value") == TINY
    assert "cpu" in page.see("document.querySelector('#backend').textContent")
    ask(page, max_tokens=12, seed=3)
    ended(page)
    first = page.see("shownNodes(chat)[1].content")
    assert first
    facts = page.see("document.querySelector('.assistant .facts').textContent")
    assert re.match(r"\d+ \+ \d+ tokens, \d+ cached", facts)
    page.see("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    page.click(".assistant .below .copy")
    assert page.until("window.copied") == first
    page.click("#text")
    page.type("more")
    page.press("Enter", 13)
    page.until("document.querySelectorAll('.assistant').length === 2")
    ended(page)
    assert roles(page) == "user,assistant,user,assistant"
    page.click("#fresh")
    page.until("shownNodes(chat).length === 0")
    ask(page)
    ended(page)
    assert page.see("shownNodes(chat)[1].content") == first  # the same seed, the same bits
    assert page.complaints == []


def test_stopping_an_answer_stops_its_work(page, server):
    before = len(server.requests())
    ask(page, "x" * 40, max_tokens=3900)
    page.until("shownNodes(chat)[1]?.content.length > 5")
    page.click("#send")
    ended(page)
    assert "stopped" in page.see("document.querySelector('.assistant .facts').textContent")
    line = server.request_after(before)
    if "chat" not in line:  # that of the page's own loading, which is logged when it has been sent
        line = server.request_after(before + 1)
    assert "status=499" in line
    assert int(re.search(r"new_tokens=(\d+)", line)[1]) < 3900


def test_a_cut_answer_says_so_and_goes_on_by_a_button(page):
    ask(page, max_tokens=8, seed=3)
    ended(page)
    assert "cut" in page.see("document.querySelector('.assistant .facts').textContent")
    first = page.see("shownNodes(chat)[1].content")
    page.click("button.rest")
    page.until(f"shownNodes(chat)[1].content.length > {len(first)}")
    ended(page)
    assert page.see("shownNodes(chat)[1].content").startswith(first)
    assert roles(page) == "user,assistant"
    assert page.see("document.querySelectorAll('button.rest').length") == 1
    ask(page, "on")
    ended(page)
    assert page.see("document.querySelectorAll('.assistant').length") == 2
    assert page.complaints == []


def test_enter_never_stops_an_answer(page):
    ask(page, max_tokens=300)
    page.until("shownNodes(chat)[1]?.content.length > 5")
    page.click("#text")
    page.type("later")
    page.press("Enter", 13)
    assert page.see("running !== null || shownNodes(chat).length === 2")
    assert page.see("document.querySelector('#text').value") == "later"
    ended(page)
    facts = page.see("document.querySelector('.assistant .facts').textContent")
    assert "stopped" not in facts and roles(page) == "user,assistant"


def test_errors_are_said_and_the_question_is_kept(page):
    ask(page, "keep me", temperature=9)
    ended(page)
    assert "temperature" in page.until("document.querySelector('#trouble').textContent")
    assert page.see("document.querySelector('#text').value") == "keep me"
    assert roles(page) == "" and page.see("store.all().then((all) => all.length)") == 0
    page.see("document.querySelector('#text').value = ''")
    ask(page, "tools", temperature="", tools="[{")
    ended(page)
    assert "JSON" in page.until("document.querySelector('#trouble').textContent")


HOSTILE = [
    "<img src=x onerror='window.broken = 1'> <b>bold</b>", "<script>window.broken = 1</script>",
    "[a](javascript:window.broken=1)", "![a](x\" onerror=\"window.broken=1)",
    "<svg onload=broken=1>", "[a](data:text/html,<script>broken=1</script>)",
    "<http://x\" onclick=\"broken=1>", "$\\href{javascript:broken=1}{a}$",
    "$\\htmlData{a=b}{x}$ $\\includegraphics{x}$ $\\textcolor{red}{x}$", "`</code><img>`",
    "```\"><img src=x onerror=broken=1>\n```",
    "| <img> |\n|--|\n| <style>*{display:none}</style> |",
    "<form action=x><input name=body></form>", "$" * 400, "[" * 400, "\\(" * 300, "> " * 300 + "a",
]  # fmt: skip


def test_texts_are_never_markup_of_their_own(page):
    ask(page, HOSTILE[0], max_tokens=2)
    ended(page)
    assert page.see("document.querySelector('.user b, .user img')") is None
    assert "<b>bold</b>" in page.see("document.querySelector('.user .words').textContent")
    for text in HOSTILE:
        show(page, text)
        bad = page.see(
            "[...document.querySelectorAll('.assistant .words *')].filter((one) =>"
            " one.matches('img, script, style, svg, form, input, iframe, object') ||"
            " [...one.attributes].some((a) => /^on|style/.test(a.name) ||"
            " (a.name === 'href' && !/^https?:/.test(a.value)))).map((one) => one.outerHTML)"
        )
        assert bad == [], text
    assert page.see("window.broken") is None and page.complaints == []


MARKDOWN = """# Title

Text with **bold**, `code`, $a^2$, \\(\\frac{1}{2}\\); it costs $5 and $6.

| left | right |
|:--|--:|
| 1 | 2 |

- one
- two
  1. three

```python
def f(x):
    return x < 1
```

$$\\int_0^1 x\\,dx$$
"""


def test_markdown_tables_code_and_mathematics_are_drawn(page):
    show(page, MARKDOWN)
    words = "document.querySelector('.assistant .words')"
    for selector, count in {
        "h1": 1, "strong": 1, "table td": 2, "ul li ol li": 1, "pre code": 1, "math": 3,
        "math msup": 1, "math mfrac": 1, "math[display=block] mo": 1, "[align=right]": 2,
    }.items():  # fmt: skip
        assert page.see(f"{words}.querySelectorAll('{selector}').length") == count, selector
    assert "it costs $5 and $6." in page.see(f"{words}.textContent")
    page.see("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    page.see(f"{words}.querySelector('.code .copy').click()")
    assert page.until("window.copied") == "def f(x):\n    return x < 1\n"
    fits = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    assert page.see(fits) and page.complaints == []


def test_chats_are_kept_listed_exported_and_deleted(page, server, tmp_path):
    ask(page, "the first chat", max_tokens=6, seed=1)
    ended(page)
    first = page.see("shownNodes(chat)[1].content")
    page.click("#fresh")
    page.until("shownNodes(chat).length === 0")
    ask(page, "the second chat")
    ended(page)
    opened(page, server)
    titles = "[...document.querySelectorAll('#list .open')].map((one) => one.textContent)"
    assert page.see(titles) == ["the second chat", "the first chat"]
    page.click("#show-chats")
    page.see("document.querySelectorAll('#list .open')[1].click()")
    page.until("shownNodes(chat).length === 2")
    assert page.see("shownNodes(chat)[1].content") == first
    page.see("window.saved = []; download = (name, value) => saved.push([name, value])")
    page.see("document.querySelectorAll('#list .remove')[2].click(); $('export-all').click()")
    (name, chat), (_, every) = page.until("saved.length === 2 && saved")
    (tmp_path / name).write_text(json.dumps(chat))
    _, messages = read_conversation(tmp_path / name)  # `/load` of `cortiq chat` reads it
    assert [m["content"] for m in messages] == ["the first chat", first] and len(every) == 2
    page.see("window.confirm = () => false")
    page.see("document.querySelectorAll('#list .remove')[3].click()")
    assert len(page.see(titles)) == 2
    page.see("window.confirm = () => true")
    page.see("document.querySelectorAll('#list .remove')[3].click()")
    page.until("document.querySelectorAll('#list .open').length === 1")
    page.see("$('delete-all').click()")
    page.until("document.querySelectorAll('#list .open').length === 0")
    assert page.see("store.all().then((all) => all.length)") == 0 and page.complaints == []


def test_an_answer_is_tried_again_a_question_edited_and_branches_are_walked(page):
    ask(page, "one", max_tokens=5)
    ended(page)
    page.click(".assistant .retry")
    page.until("chat.nodes.length === 3")
    ended(page)
    beside = f"{LAST}.querySelector('.below').textContent"
    assert "2 of 2" in page.see(beside) and roles(page) == "user,assistant"
    page.click(".assistant .previous")
    assert "1 of 2" in page.see(beside)
    page.click(".user .edit")
    page.see("document.querySelector('.user textarea').value = 'two'")
    page.press("Enter", 13)
    page.until("chat.nodes.length === 5")
    ended(page)
    assert page.see("shownNodes(chat)[0].content") == "two"
    page.click(".user .previous")
    assert page.see("shownNodes(chat)[0].content") == "one" and roles(page) == "user,assistant"
    page.click(".user .edit")
    page.press("Escape", 27)
    assert page.see("document.activeElement.className") == "edit" and page.complaints == []


def test_thinking_and_tools_are_folded_and_results_go_back(page):
    events = [
        {"choices": [{"delta": {"reasoning_content": "hm"}}]},
        {"choices": [{"delta": {"content": "done"}}]},
        {"choices": [{"delta": {"tool_calls": [
            {"index": 0, "id": "c1", "function": {"name": "look", "arguments": '{"a"'}}]}}]},
        {"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"arguments": ":1}"}}]},
                      "finish_reason": "tool_calls"}]},
    ]  # fmt: skip
    page.see(
        f"""(() => {{
            const asked = addNode(chat, null, "user", "hello");
            const node = addNode(chat, asked.id, "assistant", "");
            const view = render().at(-1), stream = new AnswerStream(node, view);
            for (const event of {json.dumps(events)}) stream.take(event);
            stream.end(""); view.show(); controls(view);
        }})()"""
    )
    folds = page.see("[...document.querySelectorAll('details')].map((one) => one.open)")
    assert folds == [False, False]
    texts = page.see("[...document.querySelectorAll('details div')].map((one) => one.textContent)")
    assert texts == ["hm", '{"a":1}']
    page.see("settings.elements.max_tokens.value = 4")
    page.see("document.querySelector('.results textarea').value = '42'")
    page.see("document.querySelector('.results button').click()")
    page.until("chat.nodes.length === 4")
    ended(page)
    assert roles(page) == "user,assistant,tool,assistant"
    assert page.see("request(shownNodes(chat), false)[1].messages[2]") == {
        "role": "tool", "content": "42", "tool_call_id": "c1",
    }  # fmt: skip


def test_an_answer_that_repeats_itself_says_so(page):
    event = {"choices": [{"delta": {"content": "a a"}, "finish_reason": "stop",
                          "stop_reason": "loop"}]}  # fmt: skip
    page.see(
        f"""(() => {{
            const asked = addNode(chat, null, "user", "hello");
            const node = addNode(chat, asked.id, "assistant", "");
            const view = render().at(-1), stream = new AnswerStream(node, view);
            stream.take({json.dumps(event)}); stream.end(""); controls(view);
        }})()"""
    )
    assert "repeats itself" in page.see(f"{LAST}.querySelector('.below').textContent")
    assert page.see("document.querySelectorAll('button.rest').length") == 1


def test_a_base_model_continues_what_is_written(page):
    page.see("models[0].chat = false; showModel(); settings.elements.max_tokens.value = 4")
    assert "base model" in page.see("document.querySelector('#backend').textContent")
    assert page.see("settings.elements.max_tokens.placeholder") == "256"
    ask(page, "Once upon ")
    ended(page)
    place, body = page.see("request(shownNodes(chat), false)")
    assert place == "v1/completions"
    assert body["prompt"] == "Once upon " + page.see("shownNodes(chat)[1].content") != "Once upon "


def test_a_receipt_comes_with_an_answer_if_it_is_wanted(page):
    page.see("settings.elements.receipt.checked = true")
    ask(page, max_tokens=4)
    ended(page)
    receipt = page.see("shownNodes(chat)[1].receipt")
    assert receipt["format"] == "cortiq-receipt"
    assert page.see("document.querySelector('.assistant a').pathname") == "/receipt"
    page.call("Page.navigate", url=page.see("location.href") + "receipt")
    page.until("document.readyState === 'complete' && typeof check === 'function'")
    assert page.see(f"check({json.dumps(json.dumps(receipt))})")["accepted"]
    assert page.complaints == []


def test_everything_is_reached_by_the_keyboard(page):
    ask(page, max_tokens=4)
    ended(page)
    page.see("$('more').focus()")
    page.press("Enter", 13)
    assert page.see("!settings.hidden && $('more').getAttribute('aria-expanded')") == "true"
    page.see("$('show-chats').focus()")
    page.press("Enter", 13)
    wanted = page.see(
        "[...document.querySelectorAll('button, input, textarea, select, summary, a')]"
        ".filter((one) => one.checkVisibility() && !one.disabled).length"
    )
    seen = page.see("(window.seen = new Set(), document.activeElement.blur(), 0)")
    for _ in range(wanted + 8):
        page.press("Tab", 9)
        seen = page.see(
            "document.activeElement.matches('button, input, textarea, select, summary, a')"
            " && seen.add(document.activeElement), seen.size"
        )
    assert seen == wanted
    for opener, panel in (("more", "settings"), ("show-chats", "chats")):
        page.see(f"$('{panel}').querySelector('button, input').focus()")
        page.press("Escape", 27)
        assert page.see(f"$('{panel}').hidden && document.activeElement.id") == opener


@pytest.mark.skipif(not AXE.exists(), reason="no axe-core: npm install axe-core")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(page, server, scheme):
    scheme = [{"name": "prefers-color-scheme", "value": scheme}]
    page.call("Emulation.setEmulatedMedia", features=scheme)
    ask(page, max_tokens=4)
    ended(page)
    for place in ("chat", "receipt"):
        if place == "chat":
            show(page, MARKDOWN + "> quoted [link](https://example.org)\n")
            page.see("$('more').click(); $('show-chats').click(); tell('a trouble')")
        else:
            page.call("Page.navigate", url=f"{server.url}/receipt")
            page.until("document.readyState === 'complete' && typeof check === 'function'")
        page.see(AXE.read_text("utf-8") + ";0")
        found = page.see(
            "axe.run().then((found) => found.violations.filter((one) =>"
            " ['serious', 'critical'].includes(one.impact)).map((one) =>"
            " [one.id, one.nodes.map((node) => node.html)]))"
        )
        assert found == []
    page.call("Emulation.setEmulatedMedia", features=[])


def test_it_fits_the_screen(page):
    ask(page, "a long line " * 30 + "w" * 300, max_tokens=30)
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
