"""Downloads: gone on with after any interruption, checked, and never half-done under their name."""

from __future__ import annotations

import hashlib
import os
import random
import urllib.request

import pytest
from servers import one_file

from cortiq.errors import DownloadError, ModelNotFoundError, RequestError
from cortiq.formats import download as module
from cortiq.formats import fetch, url
from cortiq.formats.download import RemoteFile, download

CONTENT = random.Random(7).randbytes(1 << 10) * 300
SHA256 = hashlib.sha256(CONTENT).hexdigest()
SIZE = len(CONTENT)
HALF = SIZE // 2


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CORTIQ_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(module, "RETRY_PAUSES", (0.0, 0.0))
    return tmp_path / "cache" / "models"


@pytest.fixture
def server():
    with one_file(CONTENT) as made:
        yield made


def fetched(server, folder, size=SIZE, sha256=SHA256, headers=None):
    seen = []
    remote = RemoteFile(server.url, size, sha256, headers or {})
    download(remote, folder / "tiny.gguf", lambda done, total: seen.append((done, total)))
    assert (folder / "tiny.gguf").read_bytes() == CONTENT
    assert [path.name for path in folder.iterdir()] == ["tiny.gguf"]
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    return seen


def test_a_file_arrives(server, tmp_path):
    seen = fetched(server, tmp_path)
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert server.asked == [(None, None)]


@pytest.mark.parametrize("known", [True, False])
def test_the_rest_is_asked_for(server, tmp_path, known):
    (tmp_path / "tiny.gguf.part").write_bytes(CONTENT[:HALF])
    seen = fetched(server, tmp_path, len(CONTENT) if known else None)
    assert server.asked == [(f"bytes={HALF}-", None)]
    assert seen[0][0] > HALF and {total for _, total in seen} == {len(CONTENT)}


def test_a_server_without_ranges_begins_again(server, tmp_path):
    (tmp_path / "tiny.gguf.part").write_bytes(CONTENT[:HALF])
    server.ranges = False
    fetched(server, tmp_path)


def test_connections_that_break_off_are_gone_on_from(server, tmp_path):
    server.cut = len(CONTENT) // 5 + 1
    fetched(server, tmp_path)
    assert len(server.asked) == 5
    assert [told for told, _ in server.asked][1:3] == [
        f"bytes={server.cut}-", f"bytes={2 * server.cut}-",
    ]  # fmt: skip


@pytest.mark.parametrize("size", [len(CONTENT), None])
def test_a_part_that_is_whole_needs_a_name_only(server, tmp_path, size):
    (tmp_path / "tiny.gguf.part").write_bytes(CONTENT)
    fetched(server, tmp_path, size)


def test_a_server_that_is_busy_is_asked_again(server, tmp_path):
    server.answers = [503, 429]
    fetched(server, tmp_path)
    server.answers = [503] * 9
    (tmp_path / "tiny.gguf").unlink()
    with pytest.raises(DownloadError, match=r"503.*\n.*resumes"):
        fetched(server, tmp_path)
    assert len(server.asked) == 3 + 3


@pytest.mark.parametrize("status", [401, 403, 404, 410])
def test_a_server_that_refuses_is_asked_once(server, tmp_path, status):
    server.answers = [status]
    with pytest.raises(DownloadError, match=f"answers {status}"):
        fetched(server, tmp_path)
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("part", "size", "sha256", "words"),
    [
        (b"", len(CONTENT) - 1, SHA256, "bytes, expected"),
        (b"", len(CONTENT) + 1, SHA256, "bytes, expected"),
        (b"", None, "0" * 64, "has SHA-256"),
        (b"x" * HALF, len(CONTENT), SHA256, "has SHA-256"),
        (CONTENT + b"x", len(CONTENT), SHA256, "bytes, expected"),
    ],
)
def test_wrong_bytes_are_refused_and_forgotten(server, tmp_path, part, size, sha256, words):
    if part:
        (tmp_path / "tiny.gguf.part").write_bytes(part)
    with pytest.raises(DownloadError, match=words):
        fetched(server, tmp_path, size, sha256)
    assert list(tmp_path.glob("tiny*")) == []
    fetched(server, tmp_path)


def test_a_part_of_another_file_that_was_longer_begins_again(server, tmp_path):
    (tmp_path / "tiny.gguf.part").write_bytes(b"x" * (len(CONTENT) + 5))
    fetched(server, tmp_path, size=None)


def test_what_nobody_answers_is_a_sentence(tmp_path):
    with one_file(CONTENT) as gone:
        pass
    with pytest.raises(
        DownloadError, match=r"could not be fetched: .*[Rr]efused.*\n.*machine online"
    ):
        fetched(gone, tmp_path)


def test_a_full_disk_is_not_taken_for_the_network(server, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_copy", lambda *_: os.open("/dev/full/x", 0))
    monkeypatch.setattr(module, "_DISK_ERRORS", (20,))  # ENOTDIR stands for it
    with pytest.raises(NotADirectoryError):
        fetched(server, tmp_path)
    assert len(server.asked) == 1


def test_a_token_goes_to_its_own_server_only(server, tmp_path):
    with one_file(CONTENT) as second:
        second.elsewhere = server.url
        fetched(second, tmp_path, headers={"authorization": "Bearer secret"})
        assert second.asked == [(None, "Bearer secret")]
    assert server.asked == [(None, None)]


def test_a_token_stays_where_a_server_has_renamed_a_file(server, tmp_path):
    for target in ("/renamed.gguf", server.url.replace("/files/tiny", "/renamed")):
        server.elsewhere = target
        fetched(server, tmp_path, headers={"Authorization": "Bearer secret"})
        (tmp_path / "tiny.gguf").unlink()
    assert server.asked == [(None, "Bearer secret")] * 4


@pytest.mark.parametrize(
    ("header", "value", "words"),
    [
        ("Content-Length", "many", "not valid: a length of many"),
        ("Content-Length", "-5", "not valid: a length of -5"),
        ("Content-Length", "9" * 26, "not valid: a length of 9"),
        ("Content-Length", "\xb2", "not valid: a length of"),
        ("Content-Length", None, "does not say how long.*\n.*#sha256=HEX"),
        ("Transfer-Encoding", "chunked", "could not be fetched"),
    ],
)
def test_answers_that_are_not_valid_are_sentences(server, header, value, words):
    server.headers = {header: value}
    with pytest.raises(DownloadError, match=words):
        fetch.pull(server.url, trust=True)


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("ftp://127.0.0.1/tiny.gguf", "sends on to ftp:"),
        ("http://[::1", "not valid: Invalid IPv6 URL"),
    ],
)
def test_no_redirect_leads_to_other_protocols(server, target, words):
    server.elsewhere = target
    with pytest.raises(DownloadError, match=words):
        fetch.pull(server.url, trust=True)


def test_no_redirect_leads_from_https_to_http():
    def sent_on(source, target):
        request = urllib.request.Request(source)
        return module._Redirects().redirect_request(request, None, 302, "", {}, target)

    with pytest.raises(DownloadError, match="sends on to http://b/c"):
        sent_on("https://a/c", "http://b/c")
    assert sent_on("https://a/c", "https://b/c").full_url == "https://b/c"
    assert sent_on("http://a/c", "https://b/c").full_url == "https://b/c"


@pytest.mark.parametrize("tag", ['"1"', 'W/"1"', None])
def test_without_a_hash_only_the_same_file_is_gone_on_with(server, tmp_path, tag):
    server.cut, server.headers = HALF + 1, {"ETag": tag}
    seen = []

    def report(done, total):
        if done == HALF + 1 and server.cut:  # the file is changed while it is fetched
            server.headers = {"ETag": '"2"'}
            server.content, server.cut = CONTENT[::-1], None
        seen.append(done)

    download(RemoteFile(server.url), tmp_path / "tiny.gguf", report)
    assert (tmp_path / "tiny.gguf").read_bytes() == CONTENT[::-1]
    ranges = [told for told, _ in server.asked]
    assert ranges == [None, f"bytes={HALF + 1}-" if tag == '"1"' else None]


def test_without_a_hash_the_rest_is_asked_for_by_its_tag(server, tmp_path):
    server.cut, server.headers = HALF + 1, {"ETag": '"1"'}
    fetched(server, tmp_path, None, None)
    assert [told for told, _ in server.asked] == [None, f"bytes={HALF + 1}-"]


def test_a_model_by_its_address(server, cache):
    name = f"{server.url}#sha256={SHA256}"
    seen = []
    path = fetch.resolve(name, progress=lambda *told: seen.append(told))
    assert path.name == "tiny.gguf" and path.read_bytes() == CONTENT
    assert seen[-1] == ("downloading tiny.gguf", len(CONTENT), len(CONTENT))
    assert fetch.cached(name) == fetch.resolve(name) == path and len(server.asked) == 1
    assert fetch.list_cached() == {name: path}
    assert fetch.cached(name.upper().replace("HTTP", "http").replace("SHA256", "sha256")) is None
    path.unlink()
    assert fetch.list_cached() == {} and fetch.pull(name) == path
    assert fetch.remove(name) >= len(CONTENT) and fetch.list_cached() == {}
    assert [p for p in cache.iterdir() if p.suffix != ".lock"] == []


def test_a_file_of_an_address_that_was_changed_is_fetched_again(server, cache):
    name = f"{server.url}#sha256={hashlib.sha256(CONTENT).hexdigest()}"
    path = fetch.resolve(name)
    assert fetch.resolve(name) == path and len(server.asked) == 1
    path.write_bytes(CONTENT[:-1] + b"?")
    assert fetch.verified(name) is None
    assert fetch.resolve(name).read_bytes() == CONTENT and len(server.asked) == 2


def test_an_address_is_gone_on_with_and_can_be_given_up(server, cache, monkeypatch):
    name = f"{server.url}#sha256={SHA256}"
    server.cut, server.answers = HALF, []
    real = module._receive

    def once(*arguments):
        if arguments[2]:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(module, "_receive", once)
    with pytest.raises(KeyboardInterrupt):
        fetch.pull(name)
    assert fetch.list_cached() == {} and list(fetch.partial_downloads().values()) == [HALF]
    monkeypatch.setattr(module, "_receive", real)
    server.cut = None
    assert fetch.pull(name).read_bytes() == CONTENT
    assert server.asked[-1] == (f"bytes={HALF}-", None)
    assert fetch.partial_downloads() == {} and fetch.remove_partial() == 0


def test_what_is_unfinished_can_be_cleared(server, cache):
    folder = cache / ".hf%3Aa%2Fb@main.partial" / "commit"
    folder.mkdir(parents=True)
    (folder / "x.part").write_bytes(b"123")
    assert fetch.partial_downloads() == {"hf%3Aa%2Fb@main": 3}
    assert fetch.remove_partial() == 3
    assert fetch.partial_downloads() == {} and not folder.exists()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("https://host/x.gguf", "has no SHA-256"),
        ("https://host/x.gguf#sha256=12", "has no SHA-256"),
        (f"https://host/x.bin#sha256={SHA256}", "not the URL of a GGUF file"),
        (f"https://host/#sha256={SHA256}", "not the URL"),
        (f"https://host/..%2f..%2fx.gguf.gguf%00#sha256={SHA256}", "not the URL"),
        (f"https://[host/x.gguf#sha256={SHA256}", "is not a valid URL"),
    ],
)
def test_addresses_that_name_no_file_are_refused(name, words):
    for call in fetch.resolve, fetch.pull, fetch.cached:
        with pytest.raises(ModelNotFoundError, match=words):
            call(name)


def test_no_address_leads_out_of_the_cache(cache):
    source = url.parse(f"https://h/a/..%2f..%2fx.gguf#sha256={SHA256}")
    assert source.path.resolve().is_relative_to(cache.resolve())
    assert source.file == "x.gguf"


def test_from_is_not_for_addresses(tmp_path):
    with pytest.raises(RequestError, match="--from"):
        fetch.pull(f"https://h/x.gguf#sha256={SHA256}", source_dir=tmp_path)


def test_removing_what_is_not_there_lists_what_is(cache):
    with pytest.raises(ModelNotFoundError, match="no model in it"):
        fetch.remove("smollm2")
    (cache / "hf%3Aa%2Fb@main").mkdir(parents=True)
    with pytest.raises(ModelNotFoundError, match="there are: hf:a/b@main"):
        fetch.remove("smollm2")
    assert fetch.remove("hf:a/b") == 0 and fetch.list_cached() == {}
