"""hf: models through the real huggingface_hub, against a loopback server that speaks its API."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from hub_server import COMMIT, Hub
from work import HANG_SECONDS

from cortiq.cli.generate import generate
from cortiq.cli.list import list as list_command
from cortiq.cli.run import run
from cortiq.errors import DownloadError, ModelNotFoundError, SeveralModelsError, UnsupportedError
from cortiq.formats import cache as cache_module
from cortiq.formats import download as download_module
from cortiq.formats import fetch, hub

huggingface_hub = pytest.importorskip("huggingface_hub")
constants = pytest.importorskip("huggingface_hub.constants")

WEIGHTS = bytes(range(256)) * 400
HALF = len(WEIGHTS) // 2
FILES = {
    "config.json": b'{"model_type": "llama"}',
    "tokenizer.json": b"{}",
    "generation_config.json": b'{"eos_token_id": 2}',
    "hf_quant_config.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
    "model.safetensors": WEIGHTS,
    "pytorch_model.bin": b"\x80\x04pickle",
    "modeling_custom.py": b"raise SystemExit",
    "consolidated.safetensors": b"again",
    "onnx/model.safetensors": b"elsewhere",
    "tokenizer.model": b"of SentencePiece",
    "README.md": b"# hello",
}
WANTED = {
    *("config.json", "tokenizer.json", "generation_config.json", "chat_template.jinja"),
    *("model.safetensors", "hf_quant_config.json"),
}
GGUF = {
    "README.md": b"#",
    "config.json": b"{}",
    "Name-Q4_K_M.gguf": b"GGUF four",
    "Name-Q8_0.gguf": b"GGUF eight....",
    "BF16/Name-BF16-00001-of-00002.gguf": b"GGUF first",
    "BF16/Name-BF16-00002-of-00002.gguf": b"GGUF second",
    "Name-UD-IQ1_S.gguf": b"GGUF",
    "mmproj-F16.gguf": b"GGUF projector",
    "imatrix_unsloth.gguf": b"GGUF statistics",
}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Empty caches: ours and the hub's."""
    monkeypatch.setenv("CORTIQ_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr(download_module, "RETRY_PAUSES", (0.0,))
    return tmp_path / "cache" / "models"


@pytest.fixture
def serve(monkeypatch) -> Iterator:
    """Start a hub with these files."""
    servers: list[Hub] = []

    def serve(files: dict[str, bytes], claimed: dict[str, bytes] | None = None) -> Hub:
        servers.append(Hub(files, claimed).start())
        template = "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "ENDPOINT", servers[-1].url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", f"{servers[-1].url}{template}"
        )
        return servers[-1]

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def left_in(cache: Path) -> list[Path]:
    return [path for path in cache.iterdir() if path.suffix != ".lock"]


def blobs(tmp_path: Path) -> set[str]:
    return {path.name for path in (tmp_path / "hub").rglob("blobs/*")}


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_the_environment_says_which_hub_which_token_and_where(serve, tmp_path, cache):
    """In a process of its own: huggingface_hub reads these variables when it is imported."""
    server = serve(FILES)
    server.closed = 401
    program = "import sys; from cortiq.formats import fetch; print(fetch.resolve(sys.argv[1]))"
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    environment |= {"HF_ENDPOINT": server.url, "HF_HOME": str(tmp_path / "home")}
    environment |= {"HF_TOKEN": "hf_secret", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", program, "hf:org/name"]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=HANG_SECONDS
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # no progress bars of somebody else's
    folder = Path(done.stdout.strip())
    assert {path.name for path in folder.iterdir()} == WANTED | {"origin.json"}
    assert (folder / "model.safetensors").resolve().is_relative_to(tmp_path / "home" / "hub")
    own = [t for p, t in zip(server.requests, server.tokens, strict=True) if "/org/name/" in p]
    assert set(own) == {"Bearer hf_secret"}


def test_config_tokenizer_and_safetensors_are_fetched_and_nothing_else(serve, cache):
    server, seen = serve(FILES), []
    folder = fetch.resolve("hf:org/name", progress=lambda *told: seen.append(told))
    assert {path.name for path in folder.iterdir()} == WANTED | {"origin.json"}
    assert all((folder / name).read_bytes() == FILES[name] for name in WANTED)
    assert left_in(cache) == [folder]
    assert not [path for path in server.requests if path.endswith((".bin", ".py", ".md"))]
    assert fetch.cached("hf:org/name") == folder
    assert fetch.list_cached() == {"hf:org/name@main": folder}
    assert fetch.size_of(folder) == sum(p.stat().st_size for p in folder.iterdir())
    counted = [done for what, done, _ in seen if what.startswith("downloading")]
    assert counted == sorted(counted) and counted[-1] == sum(len(FILES[n]) for n in WANTED)


def test_other_files_of_a_tokenizer_are_fetched_where_there_is_no_tokenizer_json(serve, cache):
    others = ("tekken.json", "tokenizer.model", "tiktoken.model", "hy.tiktoken")
    files = {n: data for n, data in FILES.items() if n != "tokenizer.json"}
    serve(files | dict.fromkeys(others, b"tokens"))
    folder = fetch.resolve("hf:org/name")
    found = {path.name for path in folder.iterdir()}
    assert found == (WANTED - {"tokenizer.json"}) | {*others, "origin.json"}


def test_the_revision_is_pinned_and_written_down(serve, cache, tmp_path):
    server = serve(FILES)
    folder = fetch.pull("hf:org/name")
    told = json.loads((folder / "origin.json").read_text())
    assert (told["repository"], told["revision"], told["commit"]) == ("org/name", "main", COMMIT)
    assert told["files"]["model.safetensors"] == sha256(WEIGHTS)
    assert told["files"]["config.json"] == f"git:{server.etag('config.json')}"
    assert set(told["fetched"]) == WANTED
    asked, other = len(server.requests), "f" * 40
    server.commits["main"], server.commits["v1"] = other, COMMIT
    assert fetch.resolve("hf:org/name") == folder and len(server.requests) == asked
    (folder / "config.json").resolve().unlink()  # some program has cleared the hub's cache
    assert fetch.cached("hf:org/name") is None and fetch.list_cached() == {}
    assert fetch.resolve("hf:org/name") == folder
    assert json.loads((folder / "origin.json").read_text())["commit"] == COMMIT
    assert fetch.remove("hf:org/name") > len(WEIGHTS)
    newest = fetch.pull("hf:org/name")
    assert json.loads((newest / "origin.json").read_text())["commit"] == other
    del server.commits["v1"]
    (newest / "config.json").resolve().unlink()
    server.commits["main"] = COMMIT
    with pytest.raises(DownloadError, match=r"commit that was fetched is gone.*cortiq rm"):
        fetch.pull("hf:org/name")


def test_the_list_says_commit_and_size(serve):
    serve(GGUF)
    fetch.pull("hf:org/name:BF16")
    done = CliRunner().invoke(list_command, ["--json"])
    (told,) = json.loads(done.stdout)["models"]
    assert (told["name"], told["commit"]) == ("hf:org/name:BF16@main", COMMIT)
    parts = sum(len(content) for name, content in GGUF.items() if name.startswith("BF16/"))
    assert parts < told["bytes"] < parts + 1000


def test_an_adapter_is_a_repository_too(serve):
    files = {"adapter_config.json": b"{}", "adapter_model.safetensors": WEIGHTS, "README.md": b"#"}
    serve(files)
    folder = fetch.resolve("hf:org/name")
    assert {path.name for path in folder.iterdir()} == {*files, "origin.json"} - {"README.md"}


def test_the_cache_is_shared_with_other_programs(serve, tmp_path):
    server = serve(FILES)
    folder = fetch.pull("hf:org/name")
    asked = len(server.requests)
    for name in WANTED:  # offline, as a program asks that was told of a branch
        there = huggingface_hub.hf_hub_download("org/name", name, local_files_only=True)
        assert Path(there).read_bytes() == FILES[name]
    assert len(server.requests) == asked
    fetch.remove("hf:org/name")
    assert blobs(tmp_path) == set() and not folder.exists()
    theirs = huggingface_hub.hf_hub_download("org/name", "model.safetensors")
    asked = len(server.ranges)
    ours = fetch.pull("hf:org/name")
    assert len(server.ranges) == asked, "what another program fetched is taken"
    assert (ours / "model.safetensors").resolve() == Path(theirs).resolve()
    freed = fetch.remove("hf:org/name")
    assert Path(theirs).read_bytes() == WEIGHTS and 0 < freed < len(WEIGHTS)
    assert len(blobs(tmp_path)) == 1


def test_a_damaged_file_of_the_shared_cache_is_fetched_again(serve):
    server = serve(FILES)
    theirs = Path(huggingface_hub.hf_hub_download("org/name", "model.safetensors"))
    theirs.resolve().write_bytes(WEIGHTS[:-1] + b"?")
    asked = len(server.ranges)
    assert (fetch.pull("hf:org/name") / "model.safetensors").read_bytes() == WEIGHTS
    assert len(server.ranges) == asked + 1 and theirs.read_bytes() == WEIGHTS


def test_files_that_another_model_uses_are_not_removed(serve):
    server = serve(FILES)
    server.commits["v1"] = "a" * 40
    first, second = fetch.pull("hf:org/name"), fetch.pull("hf:org/name@v1")
    assert len([p for p in server.requests if p.startswith("/store/")]) == 1, "the same bytes"
    fetch.remove("hf:org/name")
    assert not first.exists() and (second / "model.safetensors").read_bytes() == WEIGHTS


def test_a_file_that_was_changed_is_an_error(serve, cache):
    server = serve(FILES)
    folder = fetch.pull("hf:org/name")
    asked = len(server.requests)
    assert fetch.resolve("hf:org/name") == folder and len(server.requests) == asked
    (folder / "model.safetensors").write_bytes(WEIGHTS[:-1] + b"?")
    with pytest.raises(DownloadError, match=r"model\.safetensors is not the file") as caught:
        fetch.resolve("hf:org/name")
    assert "cortiq rm hf:org/name" in caught.value.hint
    (cache.parent / "checked" / f"{folder.name}.json").unlink()
    with pytest.raises(DownloadError, match=r"model\.safetensors is not the file"):
        fetch.resolve("hf:org/name")
    (folder / "model.safetensors").write_bytes(WEIGHTS)
    assert fetch.resolve("hf:org/name") == folder and len(server.requests) == asked


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_hub_that_gives_no_hash_is_an_error(serve, cache, name):
    server = serve(FILES)
    listed = server.siblings()
    for one in listed:
        if one["rfilename"] == name:
            one.pop("blobId")
            one["lfs"] = {"size": 1, "pointerSize": 1, "sha256": ""} if "lfs" in one else None
    server.siblings = lambda: listed
    with pytest.raises(DownloadError, match=f"{name}: the hub has no hash of it"):
        fetch.pull("hf:org/name")
    assert left_in(cache) == []


def test_an_interrupted_pull_is_resumed_and_never_trusted(serve, cache, tmp_path):
    server = serve(FILES)

    def interrupt(what: str, done: int, total: int) -> None:
        if done > HALF:
            raise KeyboardInterrupt

    server.cut = HALF + 1000
    with pytest.raises(KeyboardInterrupt):
        fetch.pull("hf:org/name", progress=interrupt)
    assert fetch.list_cached() == {} and fetch.cached("hf:org/name") is None
    assert sha256(WEIGHTS) not in blobs(tmp_path), "no program takes it for the file"
    assert list(fetch.partial_downloads().values()) == [HALF + 1000]
    server.cut, asked = None, len(server.ranges)
    folder = fetch.pull("hf:org/name")
    assert server.ranges[asked:] == [f"bytes={HALF + 1000}-"], "the rest, and no other file"
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert fetch.partial_downloads() == {}


def test_wrong_bytes_are_refused(serve, tmp_path, cache):
    wrong = bytearray(WEIGHTS)
    wrong[5] ^= 1
    server = serve(FILES | {"model.safetensors": bytes(wrong)}, {"model.safetensors": WEIGHTS})
    with pytest.raises(DownloadError, match=r"model\.safetensors has SHA-256") as caught:
        fetch.pull("hf:org/name")
    assert sha256(WEIGHTS) in str(caught.value) and fetch.list_cached() == {}
    assert sha256(WEIGHTS) not in blobs(tmp_path) and left_in(cache) == []
    server.files["model.safetensors"] = WEIGHTS
    asked = len(server.requests)
    fetch.pull("hf:org/name")
    again = [path for path in server.requests[asked:] if "/store/" in path]
    assert again == ["/store/model.safetensors"] * len(again)


def test_wrong_text_is_refused_too(serve, cache):
    changed = FILES | {"config.json": b'{"model_type": "gemma"}'}
    serve(changed, {"config.json": FILES["config.json"]})
    with pytest.raises(DownloadError, match=r"config\.json has the Git id"):
        fetch.pull("hf:org/name")
    assert left_in(cache) == []


@pytest.mark.parametrize(
    ("wanted", "opened", "content"),
    [
        ("Q4_K_M", "Name-Q4_K_M.gguf", b"GGUF four"),
        ("q8_0", "Name-Q8_0.gguf", b"GGUF eight...."),
        ("Name-Q8_0.gguf", "Name-Q8_0.gguf", b"GGUF eight...."),
        ("*IQ1*", "Name-UD-IQ1_S.gguf", b"GGUF"),
        ("UD-IQ1_S", "Name-UD-IQ1_S.gguf", b"GGUF"),
        ("BF16", "Name-BF16-00001-of-00002.gguf", b"GGUF first"),
        ("BF16/*", "Name-BF16-00001-of-00002.gguf", b"GGUF first"),
    ],
)
def test_a_quantisation_is_a_file_or_all_its_parts(serve, cache, wanted, opened, content):
    server = serve(GGUF)
    path = fetch.resolve(f"hf:org/name:{wanted}")
    assert path.name == opened and path.read_bytes() == content
    stored = {p.removeprefix("/store/") for p in server.requests if p.startswith("/store/")}
    assert stored == {n for n, c in GGUF.items() if n.endswith(".gguf") and path.parent.joinpath(
        n.rpartition("/")[2]).exists()}  # fmt: skip
    assert len(stored) == (2 if "BF16" in wanted else 1)
    name = f"hf:org/name:{wanted}@main"
    assert fetch.list_cached() == {name: path} == {fetch.hub.parse(name).name: path}
    assert fetch.remove(name) >= len(content) and left_in(cache) == []


@pytest.mark.parametrize("name", ["hf:org/name", "hf:org/name:Q3_K_S", "hf:org/name:*"])
def test_a_name_of_several_models_lists_them(serve, cache, name):
    server = serve(GGUF)
    with pytest.raises(SeveralModelsError) as caught:
        fetch.resolve(name)
    choices = [choice for choice, _ in caught.value.choices]
    assert choices == [f"hf:org/name:{q}" for q in ("UD-IQ1_S", "Q4_K_M", "Q8_0", "BF16")]
    assert all(choice in str(caught.value) for choice in choices)
    assert dict(caught.value.choices)["hf:org/name:BF16"] == len(b"GGUF firstGGUF second")
    assert left_in(cache) == [] and not [p for p in server.requests if "/resolve/" in p]


def test_models_of_one_quantisation_are_told_apart_by_file(serve):
    serve({"a/X-Q8_0.gguf": b"GGUF1", "b/X-Q8_0.gguf": b"GGUF2", "y.gguf": b"GGUF33"})
    with pytest.raises(SeveralModelsError) as caught:
        fetch.pull("hf:org/name:Q8_0@main")
    listed = [choice for choice, _ in caught.value.choices]
    assert listed == ["hf:org/name:a/X-Q8_0.gguf", "hf:org/name:b/X-Q8_0.gguf"]
    assert fetch.pull(listed[1]).read_bytes() == b"GGUF2"
    assert fetch.pull("hf:org/name:y").read_bytes() == b"GGUF33"


def test_a_repository_of_one_gguf_model_needs_no_choice(serve):
    serve({"only.gguf": b"GGUF", "mmproj-only-F16.gguf": b"GGUF image"})
    assert fetch.resolve("hf:org/name").name == "only.gguf"


def test_commands_take_the_names(serve):
    """A model with a tokenizer, from the hub to its text."""
    pytest.importorskip("gguf")
    from tests.fuzz.files import gguf_files

    server = serve({"m-Q8_0.gguf": gguf_files()["m.gguf"], "m-Q4_0.gguf": b"GGUF"})
    for command, more in ((generate, ["-p", "a b"]), (run, ["a b"])):
        arguments = ["hf:org/name:q8_0", *more, "-n", "2", "-b", "reference", "-t", "0"]
        done = CliRunner().invoke(command, arguments, catch_exceptions=False)
        assert done.exit_code == 0 and done.stdout
    assert server.requests.count("/store/m-Q8_0.gguf") == 1
    assert "/store/m-Q4_0.gguf" not in server.requests


def test_a_missing_part_is_named(serve, cache):
    files = {name: content for name, content in GGUF.items() if "00002-of" not in name}
    serve(files)
    with pytest.raises(DownloadError, match="BF16/Name-BF16: 1 of its 2 parts"):
        fetch.pull("hf:org/name:BF16")


def test_a_pattern_chooses_weights_of_a_folder(serve):
    serve(FILES)
    folder = fetch.pull("hf:org/name:onnx/*")
    assert (folder / "model.safetensors").read_bytes() == b"elsewhere"
    assert (folder / "config.json").read_bytes() == FILES["config.json"]
    other = fetch.pull("hf:org/name@main:consolidated*")
    assert sorted(p.name for p in other.glob("*.safetensors")) == ["consolidated.safetensors"]
    with pytest.raises(UnsupportedError, match="files of , onnx"):
        fetch.pull("hf:org/name:*.safetensors")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {"config.json": b"{}", "pytorch_model.bin": b"x"},
            "has no safetensors and no GGUF files; pickled weights are refused: pytorch_model.bin",
        ),
        ({"model.safetensors": b"x"}, "has no config.json"),
        ({"README.md": b"x"}, "has no safetensors and no GGUF files"),
    ],
)
def test_repositories_without_weights_are_refused(serve, cache, files, message):
    server = serve(files)
    with pytest.raises(UnsupportedError, match=message):
        fetch.pull("hf:org/name")
    assert left_in(cache) == []
    assert not [path for path in server.requests if "/resolve/" in path]


def test_a_full_disk_is_said_before_anything_is_fetched(serve, cache, monkeypatch):
    server = serve(FILES)
    usage = cache_module.shutil.disk_usage("/")
    monkeypatch.setattr(
        cache_module.shutil, "disk_usage", lambda _: usage._replace(free=len(WEIGHTS))
    )
    with pytest.raises(DownloadError, match=r"needs 0\.00 GB of disk, and 0\.00 GB are free"):
        fetch.pull("hf:org/name")
    assert not [path for path in server.requests if "/resolve/" in path]
    assert left_in(cache) == []


def test_a_file_too_large_for_plain_http_is_left_to_the_hubs_client(serve, monkeypatch):
    server = serve(FILES)
    monkeypatch.setattr(constants, "MAX_HTTP_DOWNLOAD_SIZE", HALF)
    with pytest.raises(DownloadError, match="hf_xet"):
        fetch.pull("hf:org/name")
    assert "/store/model.safetensors" not in server.requests


def test_a_missing_repository_is_a_sentence(serve, cache):
    serve(FILES)
    with pytest.raises(DownloadError, match=r"hf:org/absent@main: could not be fetched") as caught:
        fetch.pull("hf:org/absent")
    assert left_in(cache) == [] and "\n\n\n" not in str(caught.value)


@pytest.mark.parametrize("status", [401, 403])
def test_a_closed_repository_says_what_opens_it(serve, monkeypatch, status):
    server = serve(FILES)
    server.closed = status
    with pytest.raises(DownloadError, match=r"huggingface\.co/org/name and set HF_TOKEN"):
        fetch.pull("hf:org/name")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert fetch.pull("hf:org/name").is_dir()
    stored = [
        t for p, t in zip(server.requests, server.tokens, strict=True) if p.startswith("/store/")
    ]
    assert "Bearer hf_secret" in server.tokens and len(stored) == 1


def test_a_closed_repository_opens_by_its_earlier_name(serve, monkeypatch):
    """The token stays with requests that the hub redirects to itself."""
    server = serve(FILES)
    server.closed = 401
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert {path.name for path in fetch.pull("hf:org/earlier").iterdir()} == WANTED | {
        "origin.json"
    }
    for path, token in zip(server.requests, server.tokens, strict=True):
        assert token == (None if path.startswith("/store/") else "Bearer hf_secret")


def test_without_huggingface_hub_it_says_what_to_install(monkeypatch, cache):
    monkeypatch.setattr(hub.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DownloadError, match=r"pip install huggingface-hub"):
        fetch.pull("hf:org/name")
    assert left_in(cache) == []


@pytest.mark.parametrize(
    "listed",
    [
        *(
            {"rfilename": name}
            for name in ("../../../../x.gguf", "/x.gguf", "a\\b.gguf", "a//b.gguf")
        ),
        *(
            {"rfilename": name}
            for name in ("C:x.gguf", "a\n.gguf", "./x.gguf", "x" * 300 + ".gguf")
        ),
        *({"size": size} for size in (-1, None)),
    ],
)
def test_a_listing_leads_nowhere_outside(serve, cache, tmp_path, listed):
    server = serve({"x.gguf": b"GGUF"})
    (tmp_path / "x.gguf").write_bytes(b"somebody's")
    entries = [entry | listed for entry in server.siblings()]
    server.siblings = lambda: entries
    with pytest.raises(DownloadError, match="list of files is damaged"):
        fetch.pull("hf:org/name:*")
    assert left_in(cache) == [] and (tmp_path / "x.gguf").read_bytes() == b"somebody's"
    assert not (tmp_path / "hub").exists()


@pytest.mark.parametrize(
    "name",
    [
        *("hf:", "hf:a", "hf:a/b/c", "hf:../x", "hf:a/..", "hf:a/b@", "hf:a/b@-x"),
        *(
            "hf:a/b:/x",
            "hf:a/b:../x",
            "hf:a/b:x/../../y",
            "hf:a/b@v@w:x",
            "hf:a/b@v:x@w",
            "hf:a/b@v/../../w",
        ),
    ],
)
def test_malformed_names_are_refused(name):
    for call in fetch.resolve, fetch.cached, fetch.pull:
        with pytest.raises(ModelNotFoundError, match="ORGANISATION/NAME:FILES@REVISION"):
            call(name)


def test_a_revision_is_part_of_the_name_in_the_cache(cache):
    for name in "hf:org/name@refs/pr/1", "hf:org/name@main":
        folder = hub.parse(name).folder
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
        assert fetch.cached(name) == folder
    assert list(fetch.list_cached()) == ["hf:org/name@main", "hf:org/name@refs/pr/1"]
    assert all(path.parent == cache for path in cache.iterdir())
    assert hub.parse("hf:a/b:Q4@v1") == hub.parse("hf:a/b@v1:Q4")
