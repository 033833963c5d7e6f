"""The page that checks receipts, in a browser: from a file and from a server, without a network."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest
from browser import BROWSER, Browser

import cortiq
from cortiq.numerics.contract import CONTRACT_VERSION
from cortiq.receipts.record import ALWAYS, RECORDED, VERSION, Claim, Receipt, canonical

pytest.importorskip("cryptography")
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from cortiq.receipts.ed25519 import LOW_ORDER, PRIME
from cortiq.receipts.signing import DOMAIN, fingerprint_of

PAGE = Path(str(files("cortiq.serve") / "page" / "receipt.html"))
ENCODING, PUBLIC = serialization.Encoding, serialization.PublicFormat


@pytest.fixture(scope="module")
def key():
    return ed25519.Ed25519PrivateKey.from_private_bytes(bytes(range(32)))


@pytest.fixture(scope="module")
def receipt(key, tmp_path_factory):
    file = tmp_path_factory.mktemp("key") / "key.pem"
    file.write_bytes(
        key.private_bytes(
            ENCODING.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    with cortiq.load("synthetic:tiny-llama", backend="reference") as model:
        made = model.generate(
            "Grüße, 漢字", max_tokens=5, temperature=2.5, seed=2**53 - 1, top_p=0.95, min_p=1e-7,
            logit_bias={70: 2, 5: -1.5e-9}, repetition_penalty=1048576.0, stop=["\u007f\u2028"],
        )  # fmt: skip
    return made.receipt().sign(file)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    if BROWSER is None:
        pytest.skip("no Chromium: apt-get install chromium-headless-shell")
    browser = Browser(tmp_path_factory.mktemp("browser"), 360)
    browser.call("Network.setBlockedURLs", urls=["http://*", "https://*", "ws://*", "wss://*"])
    browser.call("Page.navigate", url=PAGE.as_uri())
    browser.until("document.readyState === 'complete' && typeof check === 'function'")
    yield browser
    assert browser.complaints == []
    browser.close()


def text_of(receipt):
    return json.dumps(receipt.as_object())


def checked(page, text, key=""):
    """Return whether the page accepts a text, and the sentences that say why not."""
    found = page.see(f"check({json.dumps(text)}, {json.dumps(key)})")
    return found["accepted"], [sentence for right, sentence in found["lines"] if right is False]


def test_a_good_receipt_is_accepted_and_shown(page, receipt, key):
    assert checked(page, text_of(receipt)) == (True, [])
    for form in (ENCODING.PEM, ENCODING.OpenSSH):
        kind = PUBLIC.OpenSSH if form == ENCODING.OpenSSH else PUBLIC.SubjectPublicKeyInfo
        public = key.public_key().public_bytes(form, kind).decode()
        assert checked(page, text_of(receipt), public) == (True, [])
    named = receipt.signature.public_key
    assert checked(page, text_of(receipt), named) == (True, [])
    assert checked(page, text_of(receipt), fingerprint_of(named)) == (True, [])
    accepted, why = checked(page, text_of(receipt), "ab" * 32)
    assert not accepted and "another key" in why[0]
    page.click("#text")
    page.type(text_of(receipt))
    page.until("document.querySelector('#verdict').textContent === 'Accepted'")
    assert fingerprint_of(named) in page.see("document.querySelector('#checks').textContent")
    assert receipt.claim.chain in page.see("document.querySelector('#facts').textContent")
    wide = page.see("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide <= 0
    page.type("x")
    page.until("document.querySelector('#verdict').textContent === 'Refused'")


def test_a_changed_byte_anywhere_is_refused(page, receipt, tmp_path):
    receipt.write(tmp_path / "r.json")
    data = (tmp_path / "r.json").read_bytes()
    missed = page.see(
        f"""(async () => {{
            const data = Uint8Array.from({list(data)}), missed = [];
            if (!(await check(data)).accepted) return ["the receipt itself"];
            for (let at = 0; at < data.length; at += 1) {{
                data[at] ^= 1;
                if ((await check(data)).accepted) missed.push(at);
                data[at] ^= 1;
            }}
            for (const more of [data.subarray(1), data.subarray(0, data.length / 2)])
                if ((await check(more)).accepted) missed.push(more.length);
            return missed;
        }})()"""
    )
    assert missed == []


def forged(receipt, key, **changes):
    """The receipt of a signer who lies: claim changed, seals and signature made anew."""
    claim = Claim(**{**vars(receipt.claim), **changes})
    made = Receipt(claim, receipt.stated, claim.seals())
    value = key.sign(DOMAIN + made.signed_bytes()).hex()
    public = key.public_key().public_bytes_raw().hex()
    signature = {"algorithm": "ed25519", "public_key": public, "value": value}
    return json.dumps(made.as_object() | {"signature": signature})


def test_parts_that_do_not_agree_are_refused_though_they_are_signed(page, receipt, key):
    claim = receipt.claim
    options = claim.options
    for changes, words in (
        ({"chain": "0" * 64}, "chain"),
        ({"digests": claim.digests[::-1]}, "chain"),
        ({"token_ids": claim.token_ids[:-1]}, "digests"),
        ({"context": 6}, "context"),
        ({"finish_reason": "stop", "options": replace(options, stop=())}, "nothing stops"),
        ({"options": replace(options, max_tokens=3)}, "max_tokens"),
        ({"options": replace(options, max_tokens=50)}, "room for more"),
        ({"finish_reason": "loop"}, "loop"),
        ({"end_ids": (claim.token_ids[0],)}, "ends the text"),
        ({"contract": CONTRACT_VERSION + 1}, "contract"),
        ({"text": "", "options": replace(options, stop=())}, ""),
    ):
        accepted, why = checked(page, forged(receipt, key, **changes))
        if words:
            assert not accepted and words in why[0], (changes, why)
        else:  # only recomputing shows that
            assert accepted


def test_weak_keys_foreign_forms_and_unsigned_receipts(page, receipt, key):
    for y in [*sorted(LOW_ORDER), PRIME + 3]:
        value = json.loads(text_of(receipt))
        value["signature"]["public_key"] = y.to_bytes(32, "little").hex()
        accepted, why = checked(page, json.dumps(value))
        assert not accepted and "low order" in why[0]
    value = json.loads(text_of(receipt))
    del value["signature"]
    assert checked(page, json.dumps(value)) == (True, [])
    shown = page.see(f"check({json.dumps(json.dumps(value))})")["lines"][-1]
    assert shown[0] is None and "not signed" in shown[1]
    assert not checked(page, json.dumps(value), receipt.signature.public_key)[0]
    for text in ("", "{", "[]", "null", '{"a": 1, "a": 1}', '{"a": "\\ud800"}', "[" * 999):
        assert not checked(page, text)[0]
    twice = text_of(receipt).replace('"version": 1', '"version": 1, "version": 1')
    assert "twice" in checked(page, twice)[1][0]
    assert (
        "unknown"
        in checked(page, text_of(receipt).replace('"version"', '"other": 1, "version"'))[1][0]
    )


def test_canonical_json_is_that_of_python(page):
    values = [0.0, -0.0, 1.0, 0.1, 1e15, 1e16, 123456789012345680.0, 1e-4, 1.5e-5, 5e-324, -2.5e300]
    values += [
        3,
        -7,
        2**53,
        'é\u2028\U0001f600"\\\n\x7f\x01',
        True,
        None,
        {"b": 1, "a": [], "é": {}},
    ]
    text = json.dumps(values)
    assert (
        page.see(f"canonical(new Reader({json.dumps(text)}).read())") == canonical(values).decode()
    )


def test_the_page_knows_the_fields_of_this_version(page):
    assert VERSION == 1 and {*page.see("CLAIM"), *page.see("OPTIONAL")} == {
        *Claim.__dataclass_fields__
    }
    assert set(page.see("OPTIONS")) == set(ALWAYS) == set(RECORDED)


def test_the_policy_of_the_page_names_its_own_script():
    place = Path(__file__).parents[2] / "tools" / "page_hashes.py"
    spec = importlib.util.spec_from_file_location("page_hashes", place)
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    page = PAGE.read_text("utf-8")
    assert tool.with_hashes(page) == page
    assert tool.with_hashes(page.replace("use strict", "use  strict")) != page.replace(
        "use strict", "use  strict"
    )
    assert "http://" not in page and "https://" not in page
