"""The CPU backend's instruction set: from the option, the environment, or the best."""

from __future__ import annotations

import os

import pytest

from cortiq.errors import BackendError

native = pytest.importorskip("cortiq_cpu.native")
try:
    native.library()
except BackendError as error:
    pytest.skip(f"the native kernels weren't built: {error}", allow_module_level=True)


def test_the_emulation_is_never_chosen_by_itself(monkeypatch):
    monkeypatch.delenv(native.ISA_VARIABLE, raising=False)
    pool = native.ThreadPool(1)
    assert pool.isa == native.best_isa() != "amx-emulated"
    pool.close()


def test_the_environment_names_a_set_and_the_option_wins(monkeypatch):
    monkeypatch.setenv(native.ISA_VARIABLE, "portable")
    for asked, got in ((None, "portable"), (native.best_isa(), native.best_isa())):
        pool = native.ThreadPool(1, asked)
        assert pool.isa == got
        pool.close()


def test_a_set_that_does_not_run_here_is_refused_by_name(monkeypatch):
    monkeypatch.setenv(native.ISA_VARIABLE, "avx1024")
    with pytest.raises(BackendError, match="avx1024") as refused:
        native.ThreadPool(1)
    assert "portable" in refused.value.hint


def test_a_library_older_than_the_sources_of_a_checkout_is_refused(tmp_path):
    library, sources = tmp_path / "_native.so", tmp_path / "native"
    sources.mkdir()
    for path, when in ((library, 1000), (sources / "args.h", 900), (sources / "run.c", 1100)):
        path.write_text("")
        os.utime(path, (when, when))
    with pytest.raises(BackendError, match=r"before run\.c changed"):
        native.refuse_older(library, sources)
    os.utime(sources / "run.c", (1000, 1000))
    native.refuse_older(library, sources)
    native.refuse_older(library, tmp_path / "installed")  # no checkout: nothing to compare with


def test_a_library_left_behind_under_another_name_is_not_taken(tmp_path):
    names = ["_native.cpython-311.so", "_native.abi3.so", "_native.so"]
    paths = [tmp_path / name for name in names]
    assert native.newest(paths) is None
    for path, when in zip(paths[:2], (1000, 1100), strict=True):
        path.write_text("")
        os.utime(path, (when, when))
    assert native.newest(paths) == paths[1]
