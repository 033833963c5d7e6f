"""GGUF models in several parts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf_bytes import File, parts, scalar, small, tensor

from cortiq.errors import FormatError
from cortiq.formats.gguf import open_gguf

F32 = 0


@pytest.fixture
def write(tmp_path):
    """Write a File (or bytes) and give its path."""

    def write(content: File | bytes, name: str = "model.gguf") -> Path:
        path = tmp_path / name
        path.write_bytes(bytes(content))
        return path

    return write


def refusal(path: Path) -> str:
    """The message with which a file is refused; it names the file."""
    with pytest.raises(FormatError) as caught:
        open_gguf(path)
    assert caught.value.where == str(path)
    return str(caught.value)


def write_parts(write, files: list[File]) -> list[Path]:
    names = [f"m-{n:05}-of-{len(files):05}.gguf" for n in range(1, len(files) + 1)]
    return [write(file, name) for file, name in zip(files, names, strict=True)]


@pytest.mark.parametrize("opened", [0, 1, 2])
def test_any_part_opens_the_whole_model(write, opened):
    paths = write_parts(write, parts(3))
    model = open_gguf(paths[opened])
    assert model.path == paths[0] and model.paths == paths
    assert model.metadata["general.architecture"] == "llama"
    assert list(model.tensors) == ["t0", "t1", "t2"]
    for number in range(3):
        assert model.raw(f"t{number}").view(np.float32).tolist() == [number] * 4


def test_parts_that_do_not_belong_together_are_refused(write, tmp_path):
    paths = write_parts(write, parts(3))
    paths[1].rename(tmp_path / "aside")
    assert "1 of 3 parts are missing, the first: m-00002-of-00003.gguf" in refusal(paths[0])
    paths[1].write_bytes(paths[2].read_bytes())
    with pytest.raises(FormatError, match="is not part 1 of 3"):
        open_gguf(paths[0])
    swapped = parts(3)
    swapped[1].tensors = [tensor("t0", [4], F32, 0)]
    with pytest.raises(FormatError, match="'t0' is also in m-00001-of-00003"):
        open_gguf(write_parts(write, swapped)[0])
    fewer = parts(3)
    fewer[2].tensors = []
    assert "promises 3 tensors" in refusal(write_parts(write, fewer)[0])


def test_a_part_must_be_named_as_one(write):
    assert "not named NAME-00001-of-00003" in refusal(write(parts(3)[0], "model.gguf"))
    assert "has no split.count" in refusal(write(small(), "m-00001-of-00002.gguf"))
    assert open_gguf(write(small(), "m-00001-of-00001.gguf")).tensors
    strange = File([scalar("split.no", "H", 3), scalar("split.count", "H", 2)])
    assert "part 3 of 2" in refusal(write(strange, "m-00004-of-00002.gguf"))
