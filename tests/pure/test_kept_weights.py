"""Weights kept between runs: mapped as they were written, or prepared anew, whatever lies there."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import safetensors.numpy
from click.testing import CliRunner
from folders import write_llama

import cortiq
from cortiq.cli.list import list as list_command
from cortiq.cli.rm import rm
from cortiq.formats import kept_file, kept_writer
from cortiq.formats import kept_folder as folder_module
from cortiq.formats import kept_weights as module
from cortiq.formats.kept_folder import drop_orphans, kept_files, kept_folder, remove_kept
from cortiq.formats.kept_weights import KeptPolicy, KeptWeights
from cortiq.models import weights as conversion

pytest.importorskip("cortiq_cpu")
pytestmark = pytest.mark.skipif(not hasattr(os, "preadv"), reason="nothing is kept there")
PROMPT = [1, 2, 3, 4, 5]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CORTIQ_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "LEAST_BYTES", 0)
    monkeypatch.setattr(kept_file, "PIECE", 1000)  # several pieces a weight


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


def keep(path, names="ab", parts=700, policy=None, done=True):
    """Write weights in parts of so many bytes; return the keeper where it is not done."""
    kept = KeptWeights(path, path.parent, policy)
    for name in names:
        form, data = WEIGHTS[name]
        assert not kept.find(name, form, data.nbytes)
        cut = (data[at : at + parts] for at in range(0, data.nbytes, parts))
        kept.add(name, form, data.nbytes, cut)
    kept.place()
    for name in names:
        assert np.array_equal(kept.data(name), WEIGHTS[name][1])
        assert kept.data(name).ctypes.data % 64 == 0
    if not done:
        return kept
    kept.finish()
    return None


@pytest.fixture
def written(tmp_path):
    path = tmp_path / "x.weights"
    keep(path)
    return path


def read(path, name, form=None, size=None, pool=None, where="auto"):
    kept = KeptWeights(path, path, KeptPolicy(where))
    nbytes = WEIGHTS[name][1].nbytes if size is None else size
    found = kept.find(name, form or WEIGHTS[name][0], nbytes, pool)
    kept.place(pool)
    data = kept.data(name).copy() if found else None
    kept.finish()
    return data


def test_weights_of_another_form_or_size_are_not_found(written):
    with ThreadPoolExecutor(2) as pool:
        for name, (_, data) in WEIGHTS.items():
            for where in ("auto", "mapped", "memory"):
                assert np.array_equal(read(written, name, where=where), data)
                assert np.array_equal(read(written, name, pool=pool, where=where), data)
            assert read(written, name, form="other") is None
            assert read(written, name, size=data.nbytes - 1) is None


@pytest.mark.parametrize("parts", [1, 64, 999, 1000, 1001, 5000])
def test_a_file_does_not_depend_on_the_parts_it_is_written_in(tmp_path, written, parts):
    other = tmp_path / "other.weights"
    keep(other, parts=parts)
    assert other.read_bytes() == written.read_bytes()


def test_what_is_missing_is_added_and_the_rest_moved(tmp_path):
    written = tmp_path / "x.weights"
    keep(written, "a")  # a model that had one weight less
    whole = written.read_bytes()
    form, data = WEIGHTS["c"] = "three", np.full(3000, 9, np.uint8)
    try:
        kept = KeptWeights(written, written.parent)
        assert kept.find("a", *_form_and_size("a")) and not kept.find("c", form, data.nbytes)
        kept.add("c", form, data.nbytes, [data])
        kept.place()
        assert np.array_equal(kept.data("a"), WEIGHTS["a"][1])
        assert np.array_equal(kept.data("c"), data)
        kept.finish()
        assert written.read_bytes() != whole
        assert all(np.array_equal(read(written, name), WEIGHTS[name][1]) for name in "ac")
    finally:
        del WEIGHTS["c"]


def _form_and_size(name):
    return WEIGHTS[name][0], WEIGHTS[name][1].nbytes


def test_two_programs_of_a_model_share_what_they_have_in_common(tmp_path):
    path = tmp_path / "x.weights"
    kept = keep(path, "a", done=False)  # one part of the model, and its place
    first = kept.data("a")
    assert kept.find("a", *_form_and_size("a")) and not kept.find("b", *_form_and_size("b"))
    kept.add("b", *_form_and_size("b"), [WEIGHTS["b"][1]])
    kept.place()
    assert kept.data("a") is first and np.array_equal(kept.data("b"), WEIGHTS["b"][1])
    kept.finish()
    assert all(np.array_equal(read(path, name), WEIGHTS[name][1]) for name in WEIGHTS)


def test_whatever_differs_is_refused_as_a_whole(written):
    good, draw = written.read_bytes(), random.Random(5)
    path = written.with_name("changed.weights")
    for _ in range(200):
        changed = bytearray(good)
        for _ in range(draw.randint(1, 3)):
            changed[draw.randrange(len(good))] = draw.randrange(256)
        path.unlink(missing_ok=True)
        changed = changed[: draw.choice([len(good), draw.randrange(len(good))])]
        path.write_bytes(changed)
        for name, (_, right) in WEIGHTS.items():
            found = read(path, name)
            assert found is None if changed != good else np.array_equal(found, right)


def crafted(weights, checksums, data=bytes(5000), end=None):
    """Return a file whose table says this, with a right checksum of the table."""
    table = json.dumps({"source": "/", "weights": weights, "checksums": checksums}).encode()
    end = 64 + len(data) if end is None else end
    start = kept_file.HEAD.pack(kept_file.MAGIC, end, len(table), zlib.crc32(table))
    return start.ljust(64, b"\0") + data + table


def test_a_crafted_file_of_the_right_form_is_one(tmp_path):
    (path := tmp_path / "x.weights").write_bytes(
        crafted({"a": ["one", 64, 5000]}, [zlib.crc32(bytes(n)) for n in (936, *[1000] * 4, 64)])
    )
    assert np.array_equal(read(path, "a"), np.zeros(5000, np.uint8))


@pytest.mark.parametrize(
    "entry",
    [["one", -64, 5000], ["one", 64, 1 << 60], ["one", 1 << 60, 5000], ["one", 128, 5000],
     ["one", 63, 5000], ["one", 0, 5000], [1, 64, 5000], ["one", 64], ["one", 64, 5000, 1], "one",
     ["one", 64, "x"], ["one", True, 5000], ["one", 64.0, 5000], None, {}],
)  # fmt: skip
def test_entries_outside_the_file_are_none(tmp_path, entry):
    sums = [zlib.crc32(bytes(n)) for n in (936, *[1000] * 4, 64)]
    (path := tmp_path / "x.weights").write_bytes(crafted({"a": entry}, sums))
    assert read(path, "a") is None


@pytest.mark.parametrize(
    "data",
    [crafted({"a": ["one", 64, 5000]}, []), crafted({"a": ["one", 64, 5000]}, [0] * 6),
     crafted({"a": ["one", 64, 5000]}, ["x"] * 6), crafted([], [0] * 6),
     crafted({"a": ["one", 64, 5000]}, [0] * 6, end=0), crafted({}, [0], b""), b"cortiqw2",
     b"cortiqw2" + b"\xff" * 20, b""],
)  # fmt: skip
def test_tables_that_are_wrong_are_none(tmp_path, data):
    (path := tmp_path / "x.weights").write_bytes(data)
    assert read(path, "a") is None


@pytest.mark.skipif(sys.platform != "linux", reason="other systems cannot be asked")
def test_a_file_that_is_shortened_once_it_is_open_is_none(written):
    kept = KeptWeights(written, written)
    os.truncate(written, 64)
    assert not kept.find("a", *_form_and_size("a"))  # an error of the disk looks the same


def test_a_full_disk_in_the_middle_leaves_weights_in_memory(tmp_path, monkeypatch):
    write, path, outcomes = os.pwrite, tmp_path / "x.weights", []
    left = [0, False]

    def full(number, data, at):
        if left[0] < 0:
            left[1] = True
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        left[0] -= 300  # a disk that takes less than it is given
        return write(number, data[:300], at)

    monkeypatch.setattr(os, "pwrite", full)
    for room in range(0, 9000, 250):
        left[:] = room, False
        kept = keep(path, done=False)  # which checks the data
        kept.finish()
        outcomes.append(left[1])
        assert files_in(tmp_path) == ([] if left[1] else ["x.weights"])
        assert ("No space left" in "".join(kept.notes)) == left[1]
        path.unlink(missing_ok=True)
    assert outcomes[0] and not outcomes[-1]


def files_in(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_disk_that_is_nearly_full_is_left_alone(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1999))
    kept = keep(tmp_path / "x.weights", policy=KeptPolicy(size=1000), done=False)
    assert "too little space" in kept.notes[0] and files_in(tmp_path) == []
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=2001))
    keep(tmp_path / "x.weights", policy=KeptPolicy(size=1000))
    assert files_in(tmp_path) == ["x.weights"]


@pytest.mark.parametrize("unnamed", [True, False])
def test_nothing_half_done_stays(tmp_path, monkeypatch, unnamed):
    if not unnamed:
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    elif not hasattr(os, "O_TMPFILE"):
        pytest.skip("files have names there")
    path = tmp_path / "x.weights"
    kept = keep(path, done=False)
    assert len(files_in(tmp_path)) == (not unnamed)
    assert kept_writer.drop_parts(tmp_path) == 0  # it is in use
    data = kept.data("a")
    kept.close()
    assert files_in(tmp_path) == [] and np.array_equal(data, WEIGHTS["a"][1])
    keep(path)
    assert files_in(tmp_path) == ["x.weights"] and np.array_equal(read(path, "a"), data)
    if (child := os.fork()) == 0:  # is killed in the middle
        keep(tmp_path / "y.weights", done=False)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert len(files_in(tmp_path)) == 1 + (not unnamed)
    assert (kept_writer.drop_parts(tmp_path) > 0) == (not unnamed)
    assert files_in(tmp_path) == ["x.weights"]


def test_starts_at_the_same_time_do_not_disturb_each_other(tmp_path):
    path = tmp_path / "x.weights"
    first, second = (keep(path, done=False) for _ in range(2))
    first.finish()
    data = second.data("a")
    second.finish()
    assert np.array_equal(data, WEIGHTS["a"][1]) and np.array_equal(read(path, "a"), data)
    assert files_in(tmp_path) == ["x.weights"]


def test_weights_stay_when_their_file_is_replaced_or_removed(written):
    kept = KeptWeights(written, written, KeptPolicy("mapped"))
    assert kept.find("a", *_form_and_size("a"))
    kept.place()
    data = kept.data("a")
    assert not data.flags.writeable
    kept.finish()
    written.unlink()
    keep(written, "b")
    assert np.array_equal(data, WEIGHTS["a"][1])


@pytest.mark.parametrize(
    ("where", "free", "is_mapped"),
    [("mapped", None, True), ("memory", 1, False), ("auto", None, False), ("auto", 1 << 40, False),
     ("auto", 10_000, True)],
)  # fmt: skip
def test_large_weights_are_mapped_and_small_ones_where_pages_are_huge(
    written, where, free, is_mapped
):
    kept = KeptWeights(written, written, KeptPolicy(where, free=free))
    assert kept.find("a", *_form_and_size("a"))
    kept.place()
    assert kept.data("a").flags.writeable != is_mapped
    kept.close()


def test_files_that_others_may_write_are_not_believed(written):
    written.chmod(0o622)
    assert read(written, "b") is None
    written.chmod(0o600)
    assert read(written, "b") is not None


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
    monkeypatch.setattr(folder_module, "MOST_BYTES", 2 * third.stat().st_size)
    assert digest(folder, keep_weights=True, weight_format="w8")
    assert not first.exists() and not second.exists() and third.exists() and len(files()) == 2
    monkeypatch.setattr(folder_module, "MOST_BYTES", 10)
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
    with cortiq.load(folder, backend="cpu", keep_weights=True) as model:
        assert "weights are not kept" in model.notes[-1]


@pytest.mark.parametrize("where", ["auto", "mapped", "memory"])
def test_bits_do_not_depend_on_where_weights_are(folder, where):
    right = digest(folder, keep_weights=False)
    assert [digest(folder, keep_weights=True, weights=where) for _ in range(2)] == [right] * 2


def test_kept_files_are_listed_and_removed(folder):
    digest(folder, keep_weights=True)
    (entry,) = kept_files()
    assert entry.path in files() and entry.source == str(folder / "model.safetensors")
    assert remove_kept() == entry.nbytes and files() == []


def test_weights_that_are_unsound_are_never_kept(folder):
    weights = safetensors.numpy.load_file(folder / "model.safetensors")
    weights["model.layers.0.mlp.up_proj.weight"][3, 4] = np.nan
    safetensors.numpy.save_file(weights, folder / "model.safetensors")
    for _ in range(2):
        with pytest.raises(cortiq.CortiqError, match="up_proj"):
            digest(folder, keep_weights=True)
    assert files() == []


def test_rm_removes_kept_weights_and_list_shows_them(folder):
    digest(folder, keep_weights=True)
    shown = CliRunner().invoke(list_command, [])
    assert "kept for faster starts: 1 file, " in shown.output + shown.stderr
    assert json.loads(CliRunner().invoke(list_command, ["--json"]).stdout)["kept"][0]["of"]
    assert "freed" in CliRunner().invoke(rm, ["--kept"]).output
    assert files() == []


class _Stored:
    """A tensor of a file, all in memory."""

    def __init__(self, values):
        self.name, self.type = "t", "F32"
        self.raw = np.ascontiguousarray(values, "<f4").view(np.uint8)


@pytest.mark.parametrize("target", ["w4", "w8", "w8b256", "w16"])
@pytest.mark.parametrize("count", [1, 3])
def test_rows_converted_in_passing_are_those_of_the_whole_and_are_not_kept(target, count):
    values = np.random.default_rng(3).standard_normal((count, 7, 512), np.float32)
    weight = conversion.matrix_weight([_Stored(v) for v in values], values.shape, target)
    passing = weight.once()
    for start, stop in ((0, 7 * count), (0, 1), (3, 6), (6, 7), (5, 7 * count), (4, 4)):
        got, right = passing.rows(start, stop), weight.rows(start, stop)
        assert got.parts.keys() == right.parts.keys() and got.origin == right.origin
        assert all(np.array_equal(got.parts[key], right.parts[key]) for key in right.parts)
    assert passing.parts._parts is None


def test_a_fault_found_in_passing_is_named_with_its_row():
    values = np.ones((2, 7, 512), np.float32)
    values[1, 3, 5] = np.inf
    stored = [_Stored(v) for v in values]
    with pytest.raises(cortiq.CortiqError, match="row 3 holds inf"):
        conversion.matrix_weight(stored, values.shape, "w8").once().rows(8, 12)


def test_loading_holds_little_more_than_a_piece_of_a_model(folder, monkeypatch):
    """Neither the packed weights nor what is converted on the way stay in memory."""
    made = []

    def counted(*arguments):
        parts = converted(*arguments)
        made.append(sum(part.nbytes for part in parts.values()))
        return parts

    converted = conversion._converted
    monkeypatch.setattr(conversion, "_converted", counted)
    monkeypatch.setattr("cortiq_cpu.packing.SLICE_BYTES", 1024)
    with cortiq.load(folder, backend="cpu", keep_weights=True, weights="mapped") as model:
        weights = next(iter(model.executable.plans.values())).weights._matrices.values()
        assert not any(matrix.data.flags.writeable for matrix in weights)
        assert len(made) > len(weights) and max(made) <= 16 * (2 * 32 + 4)  # 16 rows of w16
