"""What somebody reads who uses cortiq for the first time: waiting, mistaken names, long lists."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from click.testing import CliRunner

import cortiq
from cortiq.cli import render
from cortiq.cli.list import _kind as model_kind
from cortiq.cli.main import COMMANDS, ELSEWHERE, cli, main
from cortiq.errors import ModelNotFoundError
from cortiq.plugins import default_plugins


@pytest.fixture
def late(monkeypatch):
    """Progress bars are due at once."""
    monkeypatch.setattr(render, "BAR_DELAY", 0.0)


def test_a_download_without_a_terminal_says_once_how_much_it_fetches(late, capsys):
    with render.progress_bar(in_bytes=True) as bar:
        for done in (0, 1 << 20, 2 << 20, 3 << 20):
            bar("downloading tiny", done, 3 << 20)
    assert capsys.readouterr().err == "downloading tiny: 3.0 MiB\n"


def test_other_work_and_what_is_done_at_once_says_nothing_there(late, capsys):
    with render.progress_bar() as bar:
        bar("Reading", 1, 3)
    with render.progress_bar(in_bytes=True) as bar:
        bar("downloading tiny", 3, 3)
    assert capsys.readouterr().err == ""


def test_names_of_other_programs_lead_to_commands_of_ours():
    assert set(ELSEWHERE.values()) <= set(COMMANDS) and not set(ELSEWHERE) & set(COMMANDS)
    done = CliRunner().invoke(cli, ["plugins"])
    assert done.exit_code == 2 and "Did you mean 'backends'?" in done.output


def test_a_sound_that_is_not_there_is_an_error_before_anything_is_fetched(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("CORTIQ_CACHE", str(tmp_path))
    with pytest.raises(SystemExit):
        main(["transcribe", "whisper-tiny.en", str(tmp_path / "a.wav")])
    assert "no such file" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("gone.png", "gone.png: no such file"),
        (".", "a folder, not a file"),
        ("https://example.com/a.png", "https://example.com/a.png: an address, not a file"),
        ("data:image/png;base64,AAAA", "an address, not a file"),
    ],
)
@pytest.mark.parametrize("asked", [
    ("generate", "smollm2", "Hi", "--image"), ("run", "smollm2", "Hi", "--audio"),
    ("explain", "smollm2", "Hi", "--image"), ("transcribe", "whisper-tiny.en"),
], ids=" ".join)  # fmt: skip
def test_what_is_no_file_is_an_error_before_anything_is_fetched(
    asked, given, said, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("CORTIQ_CACHE", str(tmp_path))
    with pytest.raises(SystemExit) as ended:
        main([*asked, given])
    assert ended.value.code == 2 and said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("option", ["lora", "adapters"])
def test_a_missing_adapter_is_not_called_a_model(option, tmp_path):
    named = str(tmp_path / "nowhere")
    given = {option: [named if option == "lora" else f"x={named}"]}
    with pytest.raises(ModelNotFoundError, match="no such adapter") as caught:
        cortiq.load("synthetic:tiny-llama", **given)
    assert "PEFT" in caught.value.hint and "known names" not in caught.value.hint


def test_many_matrices_that_a_skill_leaves_out_are_one_line(capsys):
    pytest.importorskip("cortiq_skills")
    from cortiq_skills.commands import _note_skipped

    many = {f"layers.{n}.q": "changes by 0" for n in range(9)}
    _note_skipped(many | {"layers.9.q": "the donor has none"})
    assert capsys.readouterr().err.splitlines() == [
        "left out 9 matrices, layers.0.q to layers.8.q: changes by 0",
        "left out layers.9.q: the donor has none",
    ]


def test_a_backend_of_the_checkout_that_is_not_installed_says_how_to_have_it(monkeypatch):
    from cortiq.plugins import extras, selection

    monkeypatch.chdir(extras.checkout_root())
    none = replace(default_plugins(), backends={})
    error = selection._unknown_backend("triton", none)
    assert "pip install -e backends/triton" in error.hint
    assert "pip install" not in selection._unknown_backend("trito", none).hint


def _gguf_head(architecture):
    key = b"general.architecture"
    counted = struct.pack("<Q", len(key)) + key + struct.pack("<IQ", 8, len(architecture))
    return b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + counted + architecture


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (b'{"model_type": "whisper"}', "speech"), (b'{"model_type": "bert"}', "encoder"),
        (b'{"model_type": "llama"}', "base"), (b"[", "base"), (b"[]", "base"),
        (b'{"model_type": []}', "base"),
    ],
)  # fmt: skip
def test_list_says_what_a_model_is_for(config, kind, tmp_path):
    (tmp_path / "config.json").write_bytes(config)
    assert model_kind(tmp_path) == kind
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    assert model_kind(tmp_path) == "chat"


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (_gguf_head(b"bert"), "encoder"), (_gguf_head(b"llama"), "base"),
        (_gguf_head(b"bert")[:-2], "base"), (_gguf_head(b"bert")[:30], "base"), (b"", "base"),
        (struct.pack("<I", 0x67676D6C), "speech"),
    ],
)  # fmt: skip
def test_list_says_what_a_file_of_one_model_is_for(head, kind, tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(head)
    assert model_kind(path) == kind


def test_list_tells_whisper_in_the_form_of_ctranslate2(tmp_path):
    name = b"WhisperSpec\0"
    (tmp_path / "model.bin").write_bytes(struct.pack("<IH", 6, len(name)) + name)
    (tmp_path / "config.json").write_bytes(b"{}")
    assert model_kind(tmp_path) == "speech"


def test_a_backend_that_does_not_work_has_its_reason_below_the_table(monkeypatch):
    reason = "the kernels were not built\n  install a C compiler"
    monkeypatch.setattr("cortiq.plugins.availability", lambda backend: ((), reason))
    shown = CliRunner().invoke(cli, ["backends"]).output
    assert all(len(line) < 120 for line in shown.splitlines())
    assert f"not available: reference: {reason}\n" in shown
