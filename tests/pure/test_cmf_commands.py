"""CMF files on the command line: what `inspect` lists, and what `--lenient` lets through."""

from __future__ import annotations

import json
import struct

import pytest
from click.testing import CliRunner
from cmf_files import ARCH, cmf_bytes, header_of, masks_section, tensors_of, values_of

import cortiq
from cortiq.cli.main import cli
from cortiq.errors import FormatError
from cortiq.formats.cmf.encode import encode
from cortiq.formats.cmf.reader import open_cmf
from cortiq.formats.cmf.writer import TrailingSections, file_parts
from cortiq.receipts.file_signature import signature_path

SECTIONS = TrailingSections(masks=masks_section())
SKILL = {"id": "chess", "layers": [0], "quality": None}
MORE = {
    "skills": [SKILL], "calibration": {"temperature": 1.5},
    "routing": {"temperature": 2.0, "novelty_theta": 0.25, "samples": 12, "target_fpr": 0.1},
}  # fmt: skip


def run(*arguments):
    made = CliRunner().invoke(cli, list(map(str, arguments)))
    assert made.exception is None or isinstance(made.exception, (SystemExit, cortiq.CortiqError))
    return made.exit_code, f"{made.output}{made.exception or ''}"


@pytest.fixture
def overlapping(tmp_path):
    """A file of which two matrices are the same bytes, which strict readers refuse."""
    tensors = tensors_of(values_of(), ("f16",))
    data = b"".join(file_parts(header_of(), tensors))
    names = [tensor[0].split("layers.0.")[-1] for tensor in tensors]
    first = struct.unpack_from("<Q", data, 0x20)[0] + 16
    places = [first + 56 * names.index(f"self_attn.{n}_proj.weight") + 32 for n in "qo"]
    at = struct.unpack_from("<Q", data, places[0])
    path = tmp_path / "m.cmf"
    path.write_bytes(data[: places[1]] + struct.pack("<Q", *at) + data[places[1] + 8 :])
    return path


def test_a_lenient_load_takes_what_the_original_takes(overlapping, monkeypatch):
    with pytest.raises(FormatError, match="overlap"):
        cortiq.load(str(overlapping), backend="reference")
    with cortiq.load(str(overlapping), backend="reference", lenient=True) as model:
        made = model.generate([5, 9, 200], max_tokens=4, ignore_eos=True)
    assert len(made.token_ids) == 4
    monkeypatch.setenv("CORTIQ_LENIENT", "1")
    cortiq.load(str(overlapping), backend="reference").close()


@pytest.mark.parametrize(
    "command",
    [
        ("generate", "{}", "--ids", "5 9", "-b", "reference", "-n", "2"), ("inspect", "{}"),
        ("verify", "{}"), ("convert", "{}", "{}.folder", "--format", "keep"),
        ("convert", "{}", "{}.new.cmf", "--format", "keep"),
        ("requant", "{}", "{}.new.cmf", "--kind", "q4tp-quantize"),
    ],
)  # fmt: skip
def test_every_command_that_opens_a_file_takes_lenient(command, overlapping):
    given = [word.replace("{}", str(overlapping)) for word in command]
    code, text = run(*given)
    assert code and "overlap" in text
    code, text = run(*given, "--lenient")
    assert "overlap" not in text
    assert not code or (command[0] == "verify" and "o_proj.weight' differs from its hash" in text)


def test_what_a_lenient_file_computes_with_is_checked(tmp_path):
    """A ladder of no numbers opens leniently, and is refused where its matrix is used."""
    tensors = tensors_of(values_of(), ("q4tp",))
    place = next(i for i, tensor in enumerate(tensors) if tensor[1] == "q4tp")
    name, dtype, (rows, columns), data = tensors[place]
    at = 16 * rows * (columns // 32)
    tensors[place] = name, dtype, (rows, columns), data[:at] + b"\0\x7e" + data[at + 2 :]
    path = tmp_path / "m.cmf"
    path.write_bytes(b"".join(file_parts(header_of(), tensors)))
    with open_cmf(path, strict=False) as file:
        assert len(file.entries) == len(tensors)
        with pytest.raises(FormatError, match="q_proj"):
            file.tensor(name)
    with pytest.raises(FormatError, match="q_proj"):
        cortiq.load(str(path), backend="reference", lenient=True)


def test_inspect_lists_the_sections(tmp_path):
    path = tmp_path / "m.cmf"
    overlaid = "skill.chess.model.layers.0.mlp.up_proj.weight"
    values = values_of()
    tensors = tensors_of(values, ("q8_row", "q4tp"))
    tensors.append((overlaid, "f16", (96, 64), encode("f16", values[overlaid[12:]])))
    path.write_bytes(b"".join(file_parts(header_of(**MORE), tensors, SECTIONS)))
    code, text = run("inspect", path, "--full")
    assert not code, text
    for part in (
        "container: CMF 2, 'llama', 1 file of", "tensors: 12, of these q8_row 4 (", "q4tp 4 (",
        "vocabulary: none, with a chat template", "mask: 'task', 10% sparse, 1 layers active",
        "skill: 'chess', 1 tensor\n", "calibration: probabilities at the temperature 1.5",
        "routing: temperature 2, novel above 0.25, from 12 samples", "signature: none",
        f"  '{overlaid}': f16 [96, 64]",
    ):  # fmt: skip
        assert part in text, part
    assert overlaid not in run("inspect", path)[1]


def test_inspect_lists_what_cortiq_does_not_run(tmp_path):
    """The sections of a family that is not known are listed before it is refused."""
    path = tmp_path / "m.cmf"
    path.write_bytes(cmf_bytes(("f16",), arch=ARCH | {"num_loops": 2}))
    signature_path(path).write_text(json.dumps({"alg": "none"}))
    code, text = run("inspect", path)
    assert code and "container: CMF 2" in text and "passed 2 times" in text
    assert "signature of m.cmf: " in text and "is signed by 'none'" in text
