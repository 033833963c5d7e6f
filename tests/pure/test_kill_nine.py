"""A kill -9 in the middle of anything leaves nothing half-written that a later start trusts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from kill_nine import KILLS
from work import HANG_SECONDS

from cortiq.atomic import write_atomically

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
SCENES = {
    "receipts": {"a", "b"},
    "prefixes": {"200", "300"},
    "pulls": {"absent", "whole"},
    "hub_pulls": {"absent", "whole"},
    "removals": {"absent", "whole"},
    "conversions": {"absent", "whole"},
    "containers": {"absent", "whole"},
    "conversations": {"a", "b"},
}


@pytest.mark.parametrize("scene", SCENES)
def test_what_is_left_is_whole_or_absent(scene, tmp_path):
    if scene == "hub_pulls":
        pytest.importorskip("huggingface_hub")
    seed = int.from_bytes(os.urandom(4))
    variables = os.environ | {
        "CORTIQ_CACHE": str(tmp_path / "cache"), "NO_PROXY": "127.0.0.1,localhost",
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]),
    }  # fmt: skip
    script = str(Path(__file__).with_name("kill_nine.py"))
    command = [sys.executable, script, scene, str(tmp_path), str(seed)]
    done = subprocess.run(
        command, env=variables, capture_output=True, text=True, timeout=HANG_SECONDS
    )
    assert done.returncode == 0, f"seed {seed}\n{done.stderr}"
    found = json.loads(done.stdout)
    assert sum(found.values()) == KILLS
    assert set(found) <= SCENES[scene], f"seed {seed}"


def test_what_killed_processes_have_left_is_cleared_and_nothing_else(tmp_path):
    names = (".a[1].json.x.part", ".a[1].json.y.part", ".a1.json.x.part", "a[1].json.part")
    for number, name in enumerate(names):
        (tmp_path / name).write_text("half")
        if number != 1:  # somebody writes that one just now
            os.utime(tmp_path / name, (1, 1))
    write_atomically(tmp_path / "a[1].json", [b"whole"])
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(["a[1].json", *names[1:]])


def test_a_file_keeps_its_permissions_and_links_and_survives_errors(tmp_path):
    file, link = tmp_path / "f", tmp_path / "link"
    write_atomically(file, [b"one"])
    mask = os.umask(0)
    os.umask(mask)
    assert file.stat().st_mode & 0o777 == 0o666 & ~mask
    file.chmod(0o640)
    link.symlink_to(file)
    write_atomically(link, [b"t", b"wo"])
    assert link.is_symlink() and file.read_bytes() == b"two"
    assert file.stat().st_mode & 0o777 == 0o640

    def fails():
        yield b"thr"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomically(file, fails())
    assert file.read_bytes() == b"two"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["f", "link"]
