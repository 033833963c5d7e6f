"""The seam, proved from outside: packages of `tests/plugins`, installed and run as a user would."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from folders import write_llama

from cortiq.plugins.checks import HOOKS

PACKAGES = Path(__file__).parents[1] / "plugins"
MODEL = "synthetic:tiny-gemma3?seed=5"
GENERATE = ("generate", MODEL, "-p", "to be or", "--max-tokens", "6", "--seed", "7", "--json")
SENTENCES = {
    "broken-import": "cannot be imported: ModuleNotFoundError: No module named "
    "'the_driver_nobody_installed'",
    "broken-signature": "a hook has the wrong signature",
    "broken-hook": "cortiq has no hook 'cortiq_backend'; did you mean cortiq_backends?",
    "broken-version": "the backend 'future' was built for contract version 99",
    "broken-name": "brings the backend 'reference', which cortiq-reference",
}


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all packages of `tests/plugins` installed by pip, without any network."""
    sources = tmp_path_factory.mktemp("sources") / "plugins"
    shutil.copytree(PACKAGES, sources)  # building leaves files behind
    target = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    folders = sorted(str(p.parent) for p in sources.glob("*/pyproject.toml"))
    command = [*pip, "--no-build-isolation", "--target", str(target), *folders]
    subprocess.run(command, check=True)
    return target


def cortiq(site: Path | None, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
    path = [str(site)] if site else []
    path += [os.environ["PYTHONPATH"]] if "PYTHONPATH" in os.environ else []
    kept = {k: v for k, v in os.environ.items() if not k.startswith("CORTIQ_")}
    return subprocess.run(
        [sys.executable, "-m", "cortiq", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**kept, "PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1", **environment},
    )


def printed(done: subprocess.CompletedProcess) -> dict:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="session")
def expected() -> dict:
    """Return what the reference generates without outside plugins."""
    return printed(cortiq(None, *GENERATE, "--backend", "reference"))


def test_every_broken_package_is_a_sentence_and_breaks_nothing_else(site: Path) -> None:
    done = cortiq(site, "backends", "--json")
    listed = printed(done)
    names = {backend["name"]: backend for backend in listed["backends"]}
    assert {"echo", "partial", "reference"} <= set(names)
    assert names["echo"]["from"] == "echo-reference 0.1.0"
    assert names["reference"]["from"].startswith("cortiq-reference")
    assert "future" not in names
    problems = {p["plugin"]: p["problem"] for p in listed["problems"]}
    for name, sentence in SENTENCES.items():
        assert sentence in problems[name]
    assert "Traceback" not in done.stderr


def test_the_text_form_shows_the_sentences_too(site: Path) -> None:
    done = cortiq(site, "backends")
    assert done.returncode == 0
    assert "broken-hook: cortiq has no hook 'cortiq_backend'" in done.stdout


def test_a_broken_plugin_brings_nothing_at_all(site: Path) -> None:
    assert cortiq(site, "leaked").returncode == 2


def test_the_default_backend_is_not_a_broken_one(site: Path, expected: dict) -> None:
    ours = printed(cortiq(site, *GENERATE, CORTIQ_BACKEND=""))
    assert ours["digest"] == printed(cortiq(None, *GENERATE))["digest"] == expected["digest"]


def test_the_environment_chooses_plugins(site: Path) -> None:
    listed = printed(cortiq(site, "backends", "--json", CORTIQ_PLUGINS="echo"))
    assert [b["name"] for b in listed["backends"]] == ["echo"]
    assert listed["problems"] == []
    listed = printed(cortiq(site, "backends", "--json", CORTIQ_PLUGINS=""))
    assert listed == {"backends": [], "problems": []}


def test_a_backend_from_outside_gives_the_reference_stream(site: Path, expected: dict) -> None:
    ours = printed(cortiq(site, *GENERATE, "--backend", "echo"))
    assert (ours["backend"], ours["device"]) == ("echo", "first")
    assert set(ours["placement"]) == {"echo"}
    for key in ("text", "token_ids", "digest", "fingerprint", "model_hash"):
        assert ours[key] == expected[key]


def test_what_a_backend_declines_is_placed_on_the_reference(site: Path, expected: dict) -> None:
    done = cortiq(site, *GENERATE, "--backend", "partial")
    ours = printed(done)
    assert ours["placement"]["partial"] > 20
    assert ours["placement"]["reference"] > 20
    assert done.stderr.count("declines") == 1
    for key in ("text", "token_ids", "digest", "fingerprint", "model_hash"):
        assert ours[key] == expected[key]


def test_strict_placement_names_the_declined_nodes(site: Path) -> None:
    done = cortiq(site, *GENERATE, "--backend", "partial", "--strict-placement")
    assert done.returncode == 2
    assert "Attend is not written yet" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_is_a_plugin_without_packaging(expected: dict) -> None:
    file = str(PACKAGES / "partial-backend" / "cortiq_partial.py")
    ours = printed(cortiq(None, "--plugin", file, *GENERATE, "--backend", "partial"))
    assert ours["placement"]["partial"] > 20
    assert ours["digest"] == expected["digest"]


@pytest.mark.parametrize("file", ["broken-hook/cortiq_broken_hook.py", "nothing/here.py"])
def test_a_broken_file_the_user_named_stops_the_command(file: str) -> None:
    done = cortiq(None, "--plugin", str(PACKAGES / file), *GENERATE, "--backend", "reference")
    assert done.returncode == 2
    assert "--plugin" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_backend_is_refused_with_the_list(site: Path) -> None:
    done = cortiq(site, *GENERATE, "--backend", "ecko")
    assert done.returncode == 2
    assert "Did you mean echo?" in done.stderr
    assert "reference" in done.stderr


def test_every_hook_has_an_example_from_outside() -> None:
    sources = "".join(path.read_text() for path in PACKAGES.glob("*/*.py"))
    written = set(re.findall(r"^@hookimpl\ndef (cortiq_\w+)", sources, re.MULTILINE))
    assert set(HOOKS) <= written


def test_a_kernel_from_outside_computes_its_nodes_with_the_same_bits(
    site: Path, expected: dict
) -> None:
    ours = printed(cortiq(site, *GENERATE, "--backend", "reference"))
    assert ours["digest"] == expected["digest"]
    assert any("reference/plain-norm" in owner for owner in ours["placement"])
    done = cortiq(site, "conform", "-b", "reference", "--level", "0", "--only", "level0/RMSNorm")
    assert done.returncode == 0, done.stdout
    assert "nodes computed by reference/plain-norm: 1" in done.stdout
    assert "\nnodes computed by reference: " not in done.stdout


def test_a_family_from_outside_builds_its_models(site: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    write_llama(folder, "echo_llama")
    refused = cortiq(None, "inspect", str(folder))
    assert refused.returncode == 2 and "'echo_llama' is not supported" in refused.stderr
    shown = cortiq(site, "inspect", str(folder))
    assert shown.returncode == 0, shown.stderr
    families = cortiq(site, "inspect", "--families").stdout
    assert re.search("cortiq_echo_family +echo_llama", families)


def test_a_file_of_a_kind_from_outside_is_an_adapter(
    site: Path, expected: dict, tmp_path: Path
) -> None:
    file = tmp_path / "a.louder"
    file.write_text("model.layers.0.mlp.down_proj.weight 2")
    adapter = ("--backend", "reference", "--adapter")
    done = cortiq(site, *GENERATE, *adapter, f"x={file}")
    ours, same = printed(done), printed(cortiq(site, *GENERATE, *adapter, f"x={file}:0"))
    assert "it is louder" in done.stderr
    assert same["digest"] == expected["digest"] != ours["digest"]
    assert len({ours["fingerprint"], same["fingerprint"], expected["fingerprint"]}) == 3
    refused = cortiq(None, *GENERATE, *adapter, f"x={file}")
    assert refused.returncode == 2 and "a.louder" in refused.stderr


def test_a_command_from_outside_runs(site: Path) -> None:
    assert cortiq(site, "greet", "Ada").stdout == "hello, Ada\n"


def test_a_drafter_from_outside_changes_nothing_but_the_statistics(
    site: Path, expected: dict
) -> None:
    drafting = ("--backend", "reference", "--draft", "constant:7", "--draft-depth", "3")
    made = printed(cortiq(site, *GENERATE, *drafting))
    assert made["token_ids"] == expected["token_ids"] and made["digest"] == expected["digest"]
    told = made["stats"]["drafting"]["drafters"]["constant"]
    assert told["rounds"] > 0 and told["drafted"] >= told["accepted"]
    refused = cortiq(site, *GENERATE, "--draft", "nothing")
    assert refused.returncode == 2
    assert "there is no drafter 'nothing'" in refused.stderr
    assert "mtp, mimo, eagle3:PATH, dflash:PATH, dspark[:PATH], constant:TOKEN" in refused.stderr


def test_a_rewriting_from_outside_changes_what_it_says_and_its_name(
    site: Path, expected: dict
) -> None:
    def generated(*options: str) -> dict:
        return printed(cortiq(site, *GENERATE, "--backend", "reference", *options))

    plain, wide, narrow = (generated(*(("--rewrite", a) if a else ())) for a in ("", *WINDOWS))
    assert {plain["fingerprint"]} == {expected["fingerprint"]}
    assert plain["digest"] == expected["digest"] == wide["digest"] != narrow["digest"]
    assert len({made["fingerprint"] for made in (plain, wide, narrow)}) == 3
    for argument, sentence in (
        ("none", "no rewriting is called 'none'"), ("near:x", "a window of 'x' rows"),
    ):  # fmt: skip
        refused = cortiq(site, *GENERATE, "--rewrite", argument)
        assert refused.returncode == 2 and sentence in refused.stderr


WINDOWS = ("near:4096", "near:2")
SPLIT = """
from cortiq.dialects.registry import dialect_of
from cortiq.dialects.splitter import Splitter
from cortiq.plugins import default_plugins

dialect = dialect_of("{{ tools }} <pair> <tool_call>", default_plugins().tool_dialects)
splitter = Splitter(dialect=dialect, tools={"now": {}})
print(dialect.name, splitter.feed('Well <pair>["now", {"zone": 1}]</pair>') + splitter.finish())
"""


def test_a_tool_dialect_from_outside_is_asked_before_ours(site: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SPLIT], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
    )  # fmt: skip
    made = "pairs [AnswerText(text='Well '), ToolCall(name='now', arguments={'zone': 1})]"
    assert done.stdout.strip() == made
