"""hf: models through huggingface_hub, against a loopback server that imitates the hub."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlparse

import pytest
from work import HANG_SECONDS

from cortiq.errors import DownloadError, ModelNotFoundError
from cortiq.formats import fetch, hub
from cortiq.formats.download import git_blob_id

COMMIT = "0123456789abcdef0123456789abcdef01234567"
WEIGHTS = bytes(range(256)) * 400
FILES = {
    "config.json": b'{"model_type": "llama"}',
    "tokenizer.json": b"{}",
    "generation_config.json": b'{"eos_token_id": 2}',
    "chat_template.jinja": b"{{ messages }}",
    "model.safetensors": WEIGHTS,
    "pytorch_model.bin": b"\x80\x04pickle",
    "modeling_custom.py": b"raise SystemExit",
    "consolidated.safetensors": b"again",
    "onnx/model.safetensors": b"elsewhere",
    "README.md": b"# hello",
}
WANTED = {
    *("config.json", "tokenizer.json", "generation_config.json", "chat_template.jinja"),
    "model.safetensors",
}


class Hub(ThreadingHTTPServer):
    """One repository, org/name, at main; every request is written down."""

    daemon_threads = True

    def __init__(self, files: dict[str, bytes], claimed: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.claimed, self.requests = files, claimed, []

    def siblings(self) -> list[dict[str, object]]:
        """The file list; digests of what is claimed, not of what will be sent."""
        listed = []
        for name, content in (self.files | self.claimed).items():
            digest = hashlib.sha256(content).hexdigest()
            size = {"rfilename": name, "size": len(content), "blobId": git_blob_id(content)}
            lfs = {"lfs": {"sha256": digest, "size": len(content), "pointerSize": 130}}
            listed.append(size | (lfs if name.endswith((".safetensors", ".bin")) else {}))
        return listed


class Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_GET(self) -> None:
        self.answer(body=True)

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def answer(self, body: bool) -> None:
        path = unquote(urlparse(self.path).path)
        self.server.requests.append(path)
        info = {"id": "org/name", "sha": COMMIT, "siblings": self.server.siblings()}
        if path == "/api/models/org/name/revision/main":
            return self.send(200, json.dumps(info).encode(), body, "application/json")
        name = path.removeprefix(f"/org/name/resolve/{COMMIT}/")
        if name in self.server.files:
            return self.send(200, self.server.files[name], body, "application/octet-stream")
        return self.send(404, b"", body, "text/plain", {"X-Error-Code": "RepoNotFound"})

    def send(
        self,
        status: int,
        content: bytes,
        body: bool,
        kind: str,
        extra: dict[str, str] | None = None,
    ) -> None:
        self.send_response(status)
        etag = hashlib.sha256(content).hexdigest()
        headers = {"Content-Type": kind, "Content-Length": str(len(content)), "ETag": f'"{etag}"'}
        for key, value in (headers | {"X-Repo-Commit": COMMIT} | (extra or {})).items():
            self.send_header(key, value)
        self.end_headers()
        if body:
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def serve() -> Iterator:
    """Start a hub with these files; `claimed` are listed in place of what is sent."""
    servers = []

    def serve(files: dict[str, bytes], claimed: dict[str, bytes] | None = None) -> Hub:
        servers.append(Hub(files, claimed or {}))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return servers[-1]

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CORTIQ_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


def pull(server: Hub, name: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """Pull in a process of its own: huggingface_hub reads its settings when it is imported."""
    pytest.importorskip("huggingface_hub")
    program = (
        "import sys\n"
        "from cortiq.formats import fetch\n"
        "from cortiq.errors import CortiqError\n"
        "try: print(fetch.resolve(sys.argv[1]))\n"
        "except CortiqError as error: sys.exit(f'{type(error).__name__}: {error}')\n"
    )
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    environment |= {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}"}
    environment |= {"HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1"}
    environment |= {"NO_PROXY": "127.0.0.1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", program, name]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=HANG_SECONDS
    )


def left_in(cache: Path) -> list[Path]:
    return [path for path in cache.iterdir() if path.suffix != ".lock"]


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_hub_that_gives_no_hash_is_an_error(serve, tmp_path, cache, name):
    server = serve(FILES)
    listed = server.siblings()
    for one in listed:
        if one["rfilename"] == name:
            one.pop("blobId")
            one["lfs"] = {"size": 1, "pointerSize": 1, "sha256": ""} if "lfs" in one else None
    server.siblings = lambda: listed
    made = pull(server, "hf:org/name", tmp_path)
    assert made.returncode == 1 and f"{name}: the hub has no hash of it" in made.stderr
    assert not any(path.is_dir() and not path.name.startswith(".") for path in cache.iterdir())


def test_a_repository_in_the_cache_is_the_one_that_was_fetched(serve, tmp_path, cache, monkeypatch):
    server = serve(FILES)
    folder = Path(pull(server, "hf:org/name", tmp_path).stdout.strip())
    asked = len(server.requests)
    assert fetch.resolve("hf:org/name") == folder and len(server.requests) == asked
    (folder / "model.safetensors").write_bytes(WEIGHTS[:-1] + b"?")
    with pytest.raises(DownloadError, match=r"model\.safetensors is not the file") as caught:
        fetch.resolve("hf:org/name")
    assert "cortiq rm hf:org/name" in caught.value.hint
    (cache.parent / "checked" / f"{folder.name}.json").unlink()  # as an earlier cortiq left it
    assert fetch.resolve("hf:org/name") == folder
    (folder / "config.json").unlink()
    with pytest.raises(DownloadError, match=r"config\.json"):
        fetch.resolve("hf:org/name")


def test_config_tokenizer_and_safetensors_are_fetched_and_nothing_else(serve, tmp_path, cache):
    server = serve(FILES)
    done = pull(server, "hf:org/name", tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # no progress bars of somebody else's
    folder = Path(done.stdout.strip())
    assert {str(path.relative_to(folder)) for path in folder.rglob("*")} == WANTED
    assert all((folder / name).read_bytes() == FILES[name] for name in WANTED)
    assert left_in(cache) == [folder]
    assert not [path for path in server.requests if path.endswith((".bin", ".py", ".md"))]
    assert fetch.cached("hf:org/name") == folder
    assert fetch.list_cached() == {"hf:org/name@main": folder}


def test_what_is_cached_needs_no_server(serve, tmp_path):
    server = serve(FILES)
    first = pull(server, "hf:org/name@main", tmp_path)
    asked = len(server.requests)
    second = pull(server, "hf:org/name@main", tmp_path)
    assert first.stdout == second.stdout and asked == len(server.requests) > 0


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {"config.json": b"{}", "pytorch_model.bin": b"x"},
            "UnsupportedError: hf:org/name@main: has no safetensors; "
            "pickled weights are refused: pytorch_model.bin",
        ),
        ({"model.gguf": b"GGUF"}, "UnsupportedError: hf:org/name@main: has no config.json"),
    ],
)
def test_repositories_without_safetensors_are_refused(serve, tmp_path, cache, files, message):
    server = serve(files)
    assert message in pull(server, "hf:org/name", tmp_path).stderr
    assert left_in(cache) == []
    assert not [path for path in server.requests if path.endswith((".bin", ".gguf"))]


def test_wrong_bytes_are_refused(serve, tmp_path, cache):
    wrong = bytearray(WEIGHTS)
    wrong[5] ^= 1
    server = serve(FILES | {"model.safetensors": bytes(wrong)}, {"model.safetensors": WEIGHTS})
    message = pull(server, "hf:org/name", tmp_path).stderr
    assert message.startswith("DownloadError: hf:org/name@main: model.safetensors has SHA-256")
    assert hashlib.sha256(WEIGHTS).hexdigest() in message
    assert fetch.list_cached() == {}
    assert "model.safetensors" not in str(list(cache.rglob("*")))
    server.files["model.safetensors"] = WEIGHTS
    asked = len(server.requests)
    assert pull(server, "hf:org/name", tmp_path).returncode == 0
    again = [path for path in server.requests[asked:] if "/resolve/" in path]
    assert again == [f"/org/name/resolve/{COMMIT}/model.safetensors"], "the others were there"


def test_wrong_text_is_refused_too(serve, tmp_path, cache):
    changed = FILES | {"config.json": b'{"model_type": "gemma"}'}
    server = serve(changed, {"config.json": FILES["config.json"]})
    message = pull(server, "hf:org/name", tmp_path).stderr
    assert message.startswith("DownloadError: hf:org/name@main: config.json has the Git id")
    assert left_in(cache) == []


def test_a_missing_repository_is_a_sentence(serve, tmp_path, cache):
    done = pull(serve(FILES), "hf:org/absent", tmp_path)
    assert "DownloadError: hf:org/absent@main: could not be fetched" in done.stderr
    assert "Traceback" not in done.stderr and left_in(cache) == []


def test_without_huggingface_hub_it_says_what_to_install(monkeypatch, cache):
    monkeypatch.setattr(hub.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DownloadError, match=r"pip install 'cortiq\[hub\]'"):
        fetch.pull("hf:org/name")
    assert left_in(cache) == []


@pytest.mark.parametrize(
    "name", ["hf:", "hf:a", "hf:a/b/c", "hf:../x", "hf:a/..", "hf:a/b@", "hf:a/b@-x"]
)
def test_malformed_names_are_refused(name):
    for call in fetch.resolve, fetch.cached, fetch.pull:
        with pytest.raises(ModelNotFoundError, match="ORGANISATION/NAME@REVISION"):
            call(name)


def test_a_revision_is_part_of_the_name_in_the_cache(cache):
    for name in "hf:org/name@refs/pr/1", "hf:org/name@main":
        hub.parse(name).folder.mkdir(parents=True)
        assert fetch.cached(name) == hub.parse(name).folder
    assert list(fetch.list_cached()) == ["hf:org/name@main", "hf:org/name@refs/pr/1"]
    assert all(path.parent == cache for path in cache.iterdir())
