"""Weights kept between runs: read as they were written, or prepared anew, whatever lies there."""

from __future__ import annotations

import json
import os
import random
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import safetensors.numpy
from folders import write_llama

import cortiq
from cortiq.formats import kept_weights as module
from cortiq.formats.kept_weights import KeptWeights, drop_orphans, kept_folder
from cortiq.models import weights as conversion

pytest.importorskip("cortiq_cpu")
pytestmark = pytest.mark.skipif(not hasattr(os, "preadv"), reason="nothing is kept there")
PROMPT = [1, 2, 3, 4, 5]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CORTIQ_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "LEAST_BYTES", 0)
    monkeypatch.setattr(module, "PIECE", 1000)  # several pieces a weight


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "model"
    made.mkdir()
    write_llama(made, "llama")
    fill(made, 1)
    return made


def fill(folder, seed):
    file = folder / "model.safetensors"
    shapes = {name: a.shape for name, a in safetensors.numpy.load_file(file).items()}
    draw = np.random.default_rng(seed)
    safetensors.numpy.save_file(
        {name: draw.standard_normal(shape, "<f4") for name, shape in shapes.items()}, file
    )


def digest(folder, **options):
    with cortiq.load(folder, backend="cpu", threads=1, **options) as model:
        return model.generate(PROMPT, max_tokens=4, ignore_eos=True).digest


def files():
    return sorted(kept_folder().glob("*")) if kept_folder().exists() else []


def refuse_conversion(monkeypatch):
    def refused(*_):
        raise AssertionError("a weight was converted")

    monkeypatch.setattr(conversion, "_converted", refused)


@pytest.mark.parametrize("form", ["w8", "w16", "f32", "w8b256"])
def test_the_next_start_reads_what_was_prepared_and_has_the_same_bits(folder, monkeypatch, form):
    options = {"weight_format": form}
    plain = digest(folder, keep_weights=False, **options)
    assert files() == []
    assert digest(folder, keep_weights=True, **options) == plain
    (file,) = files()
    before = file.read_bytes()
    if form != "f32":  # whose floats are in the file as they are
        refuse_conversion(monkeypatch)
    assert digest(folder, keep_weights=True, **options) == plain
    assert file.read_bytes() == before and files() == [file]


def test_another_file_another_format_and_other_code_are_prepared_anew(folder, monkeypatch):
    first = digest(folder, keep_weights=True)
    assert digest(folder, keep_weights=True, weight_format="w8") != first
    assert len(files()) == 2
    fill(folder, 2)
    os.utime(folder / "model.safetensors", ns=(0, 0))
    assert digest(folder, keep_weights=True) != first
    plain = digest(folder, keep_weights=False)
    fill(folder, 3)
    os.utime(folder / "model.safetensors", ns=(0, 0))  # size and time of change as before
    assert digest(folder, keep_weights=True) != plain
    assert digest(folder, keep_weights=True) == digest(folder, keep_weights=False)
    count = len(files())
    monkeypatch.setattr(module, "_code", lambda: "other")
    digest(folder, keep_weights=True)
    assert len(files()) == count + 1


def test_a_damaged_file_is_prepared_anew_and_replaced(folder):
    right = digest(folder, keep_weights=True)
    (file,) = files()
    good = file.read_bytes()
    for at in (0, 9, 17, 40, len(good) // 2, len(good) - 1):
        file.write_bytes(good[:at] + bytes([good[at] ^ 16]) + good[at + 1 :])
        assert digest(folder, keep_weights=True) == right
        assert file.read_bytes() == good, at
    for bad in (good[:-1], good[:30], b"", b"x" * 100):
        file.write_bytes(bad)
        assert digest(folder, keep_weights=True) == right
        assert file.read_bytes() == good


WEIGHTS = {
    "a": ("one", np.arange(2500, dtype=np.uint16).view(np.uint8)),
    "b": ("two", np.arange(7, dtype=np.uint8)),
}


@pytest.fixture
def written(tmp_path):
    path = tmp_path / "x.weights"
    kept = KeptWeights(path, path.parent)
    for name, (form, data) in WEIGHTS.items():
        kept.add(name, form, data)
    kept.finish()
    return path


def read(path, name, form=None, size=None, pool=None):
    kept = KeptWeights(path, path)
    target = np.zeros(WEIGHTS[name][1].nbytes if size is None else size, np.uint8)
    found = kept.read(name, form or WEIGHTS[name][0], target, pool)
    kept.finish()
    return target if found else None


def test_weights_of_another_form_or_size_are_not_read(written):
    with ThreadPoolExecutor(2) as pool:
        for name, (_, data) in WEIGHTS.items():
            assert np.array_equal(read(written, name), data)
            assert np.array_equal(read(written, name, pool=pool), data)
            assert read(written, name, form="other") is None
            assert read(written, name, size=data.nbytes - 1) is None


def test_whatever_lies_there_is_refused_or_read_as_it_was(written):
    good, draw = written.read_bytes(), random.Random(5)
    path, refused = written.with_name("changed.weights"), 0
    for _ in range(200):
        changed = bytearray(good)
        for _ in range(draw.randint(1, 3)):
            changed[draw.randrange(len(good))] = draw.randrange(256)
        path.write_bytes(changed[: draw.choice([len(good), draw.randrange(len(good))])])
        for name, (_, right) in WEIGHTS.items():
            found = read(path, name)
            refused += found is None
            assert found is None or np.array_equal(found, right)
    assert 200 < refused < 400


@pytest.mark.parametrize(
    "entry",
    [["one", -1, 5000, [0]], ["one", 0, 1 << 60, [0]], ["one", 0, 5000, []], [1, 0, 1, [0]],
     ["one", 0], "one", ["one", 0, 5000, ["x"]], ["one", True, 5000, [0] * 5], None],
)  # fmt: skip
def test_entries_outside_the_file_are_none(tmp_path, entry):
    import struct
    import zlib

    header = json.dumps({"source": "/", "weights": {"a": entry}}).encode()
    path = tmp_path / "x.weights"
    start = module.MAGIC + struct.pack("<QI", len(header), zlib.crc32(header))
    path.write_bytes(start + header + bytes(5000))
    assert read(path, "a") is None
    path.write_bytes(module.MAGIC + struct.pack("<QI", 1 << 62, 0))
    assert read(path, "a") is None


def test_another_user_s_file_is_not_believed(written, monkeypatch):
    assert read(written, "b") is not None
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert read(written, "b") is None


def test_those_unused_for_longest_go_first_and_those_of_removed_models(folder, monkeypatch):
    for seed in range(3):
        fill(folder, seed)
        digest(folder, keep_weights=True)
        (newest,) = (p for p in files() if p.stat().st_mtime_ns > 10**10)
        os.utime(newest, ns=(seed, seed))  # used in this order
    first, second, third = sorted(files(), key=lambda path: path.stat().st_mtime_ns)
    digest(folder, keep_weights=True)  # uses the third
    monkeypatch.setattr(module, "MOST_BYTES", 2 * third.stat().st_size)
    assert digest(folder, keep_weights=True, weight_format="w8")
    assert not first.exists() and not second.exists() and third.exists() and len(files()) == 2
    monkeypatch.setattr(module, "MOST_BYTES", 10)
    digest(folder, keep_weights=True, weight_format="f32")
    assert len(files()) == 2  # too large to be kept, and nothing goes for it
    shutil.rmtree(folder)
    assert drop_orphans(kept_folder()) > 0 and files() == []


def test_another_backend_s_code_is_another_form(folder, monkeypatch):
    from cortiq_cpu import packing

    right = digest(folder, keep_weights=True)
    (file,) = files()
    before = file.read_bytes()
    monkeypatch.setattr(packing, "packing_hash", lambda: "other")
    assert digest(folder, keep_weights=True) == right
    assert files() == [file] and file.read_bytes() != before


def test_backends_that_do_not_ask_for_it_get_none(folder):
    with cortiq.load(folder, backend="reference", keep_weights=True) as model:
        model.generate(PROMPT, max_tokens=1)
    assert files() == []


def test_a_cache_that_cannot_be_written_keeps_nothing(folder, tmp_path):
    right = digest(folder, keep_weights=False)
    (tmp_path / "cache").write_text("a file, where a folder is wanted")
    assert digest(folder, keep_weights=True) == right


def test_weights_that_are_unsound_are_never_kept(folder):
    weights = safetensors.numpy.load_file(folder / "model.safetensors")
    weights["model.layers.0.mlp.up_proj.weight"][3, 4] = np.nan
    safetensors.numpy.save_file(weights, folder / "model.safetensors")
    for _ in range(2):
        with pytest.raises(cortiq.CortiqError, match="up_proj"):
            digest(folder, keep_weights=True)
    assert files() == []
