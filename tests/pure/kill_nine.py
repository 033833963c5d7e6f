"""Children that are killed at random moments of what they write; run by `test_kill_nine.py`.

`python kill_nine.py SCENE FOLDER SEED` forks a child that does the work of the scene over and over,
kills it with SIGKILL after a random while, and looks at what is left, as a later start would.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

KILLS = 12
LONGEST = 0.12
"""Seconds after which a child is killed at the latest."""


def killed_children(
    work: Callable[[], None], look: Callable[[], str], seed: int, longest: float = LONGEST
) -> dict[str, int]:
    """Kill children in the middle of `work`; how often each thing was found by `look`."""
    chance, found = random.Random(seed), {}
    for _ in range(KILLS):
        ready, tell = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(tell, b"x")
            while True:
                work()
        os.read(ready, 1)
        time.sleep(chance.uniform(0, longest))
        os.kill(child, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        os.close(ready)
        os.close(tell)
        what = look()
        found[what] = found.get(what, 0) + 1
    return found


def receipts(folder: Path, seed: int) -> dict[str, int]:
    """A file that always holds one receipt or the other."""
    import cortiq

    file, texts = folder / "r.json", {}
    with cortiq.load("synthetic:tiny-llama", backend="reference") as model:
        made = [
            model.generate(text, max_tokens=40, ignore_eos=True).receipt() for text in ("a", "b")
        ]
    for name, one in zip("ab", made, strict=True):
        one.write(file)
        texts[file.read_bytes()] = name

    def work() -> None:
        for one in made:
            one.write(file)

    def look() -> str:
        cortiq.Receipt.read(file)
        return texts[file.read_bytes()]

    return killed_children(work, look, seed)


def prefixes(folder: Path, seed: int) -> dict[str, int]:
    """A prefix that loads, whichever of two it is."""
    import cortiq
    from cortiq.engine.prefix_file import write_prefix
    from cortiq.engine.session import Session

    file = folder / "p.prefix"
    model = cortiq.load("synthetic:tiny-llama", backend="reference")
    exported = []
    for ids in ([1] * 300, [2] * 200):
        with Session(model.executable, len(ids)) as session:
            session.read_rows(session.feed(ids, ()))
            exported.append(session.state.export())
    write_prefix(file, exported[0], model.fingerprint)

    def work() -> None:
        for one in exported:
            write_prefix(file, one, model.fingerprint)

    return killed_children(work, lambda: str(len(model.load_prefix(file))), seed)


def pulls(folder: Path, seed: int) -> dict[str, int]:
    """A model from an address: whole or absent, and each attempt goes on from the last."""
    from servers import one_file

    from cortiq.formats import fetch

    content, kept = random.Random(seed).randbytes(3 << 20), [0]
    with one_file(content) as server:
        server.pause = 0.01  # half a second in all
        name = f"{server.url}#sha256={hashlib.sha256(content).hexdigest()}"

        def look() -> str:
            path = fetch.cached(name)
            assert path is None or path.read_bytes() == content
            assert list(fetch.list_cached()) == ([] if path is None else [name])
            kept.extend(part.stat().st_size for part in folder.rglob("*.part"))
            return "absent" if path is None else "whole"

        found = killed_children(lambda: time.sleep(1) if fetch.pull(name) else None, look, seed)
        server.pause = 0.0
        assert fetch.pull(name).read_bytes() == content and fetch.partial_downloads() == {}
        assert kept == sorted(kept)
        assert "whole" in found or kept[-1] == 0 or server.asked[-1][0] == f"bytes={kept[-1]}-"
    return found


def conversions(folder: Path, seed: int) -> dict[str, int]:
    """A converted model: whole or absent, and each attempt goes on from the last."""
    import shutil

    from cortiq.convert.run import convert_model
    from cortiq.convert.work_folder import WorkFolder
    from cortiq.errors import CortiqError, RequestError
    from cortiq.formats.checkpoint import open_checkpoint
    from tests.fuzz.files import gguf_files

    source, out, write = folder / "m.gguf", folder / "out", WorkFolder.write
    source.write_bytes(gguf_files()["m.gguf"])
    whole = convert_model(str(source), folder / "whole", "w4").path / "model.safetensors"

    def slowly(self: WorkFolder, at: int, data: memoryview | bytes) -> None:
        for start in range(0, len(data), 4096):
            write(self, at + start, data[start : start + 4096])
            time.sleep(0.001)

    def work() -> None:
        WorkFolder.write = slowly  # type: ignore[method-assign]
        try:
            convert_model(str(source), out, "w4")
        except RequestError:
            time.sleep(1)  # it is there

    def look() -> str:
        left = out if out.exists() else out.with_name(".out.converting")
        try:
            there = open_checkpoint(left)
        except CortiqError:
            assert left != out
            return "absent"
        assert not list(there.own.damaged())  # type: ignore[union-attr]
        assert (left / "model.safetensors").read_bytes() == whole.read_bytes()
        if left != out:  # whole, and yet to be renamed
            return "absent"
        shutil.rmtree(out)
        return "whole"

    return killed_children(work, look, seed)


def containers(folder: Path, seed: int) -> dict[str, int]:
    """A CMF file: whole or absent, and each attempt goes on from the last."""
    from converted import write_model

    from cortiq.convert.run import convert_model
    from cortiq.convert.work_folder import WorkFolder
    from cortiq.errors import RequestError
    from cortiq.formats.cmf.reader import open_cmf

    source, out, write = folder / "model", folder / "m.cmf", WorkFolder.write
    write_model("folder", source)
    config = json.loads((source / "config.json").read_text())
    config.pop("rope_scaling")
    (source / "config.json").write_text(json.dumps(config))
    whole = convert_model(str(source), folder / "whole.cmf", "w8").path.read_bytes()

    def slowly(self: WorkFolder, at: int, data: memoryview | bytes) -> None:
        for start in range(0, len(data), 2048):
            write(self, at + start, data[start : start + 2048])
            time.sleep(0.001)

    def work() -> None:
        WorkFolder.write = slowly  # type: ignore[method-assign]
        try:
            convert_model(str(source), out, "w8")
        except RequestError:
            time.sleep(1)  # it is there

    def look() -> str:
        if not out.exists():
            return "absent"
        with open_cmf(out) as file:
            assert not list(file.problems())
        assert out.read_bytes() == whole
        out.unlink()
        return "whole"

    return killed_children(work, look, seed, 0.4)


def hub_pulls(folder: Path, seed: int) -> dict[str, int]:
    """A model of the hub: whole or absent, for other programs, too."""
    import huggingface_hub.file_download
    import huggingface_hub.hf_api  # here, and not in every child
    from hub_server import COMMIT, Hub
    from huggingface_hub import constants

    from cortiq.formats import fetch

    chance, name = random.Random(seed), "hf:org/name:Q8_0"
    parts = [f"x-Q8_0-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    server = Hub({part: chance.randbytes(1 << 20) for part in parts}).start()
    server.pause = 0.003
    constants.ENDPOINT, constants.HF_HUB_CACHE = server.url, str(folder / "hub")
    constants.HUGGINGFACE_CO_URL_TEMPLATE = server.url + "/{repo_id}/resolve/{revision}/{filename}"

    def look() -> str:
        path = fetch.cached(name)
        assert list(fetch.list_cached()) == ([] if path is None else [f"{name}@main"])
        for part in parts:
            assert path is None or path.with_name(part).read_bytes() == server.files[part]
            there = huggingface_hub.try_to_load_from_cache("org/name", part, revision=COMMIT)
            assert there is None or Path(there).read_bytes() == server.files[part]
        return "absent" if path is None else "whole"

    pull = partial(fetch.pull, name)
    found = killed_children(lambda: time.sleep(1) if pull() else None, look, seed, 3 * LONGEST)
    server.pause = 0.0
    assert pull() and look() == "whole" and fetch.partial_downloads() == {}
    return found


def removals(folder: Path, seed: int) -> dict[str, int]:
    """A repository that is removed has all of its files or no name."""
    import shutil

    from cortiq.formats import fetch, hub

    kept = folder / "copy"
    kept.mkdir()
    for number in range(300):
        (kept / f"{number}.safetensors").write_bytes(b"x" * 100)
    model = hub.parse("hf:org/name").folder

    def work() -> None:
        shutil.rmtree(folder / "next", ignore_errors=True)
        shutil.copytree(kept, folder / "next", copy_function=os.link)
        os.replace(folder / "next", model)
        fetch.remove("hf:org/name")

    def look() -> str:
        path = fetch.cached("hf:org/name")
        if path is None:
            return "absent"
        assert len(list(path.iterdir())) == 300
        fetch.remove("hf:org/name")
        return "whole"

    model.parent.mkdir(parents=True)
    found = killed_children(work, look, seed)
    fetch.remove_partial()
    assert not list(model.parent.glob(".*.partial"))
    return found


def conversations(folder: Path, seed: int) -> dict[str, int]:
    """A saved chat, whichever of two it is."""
    from types import SimpleNamespace

    from cortiq.model.conversation import Conversation, read_conversation

    file = folder / "chat.json"
    model = SimpleNamespace(name="m", prefixes=object(), chat_ids=lambda *_, **__: [1])
    talks = [Conversation(model, system=text * 50_000) for text in "ab"]
    talks[0].save(file)

    def work() -> None:
        for talk in talks:
            talk.save(file)

    return killed_children(work, lambda: read_conversation(file)[0][0], seed)


if __name__ == "__main__":
    SCENES = {
        f.__name__: f
        for f in (
            receipts,
            prefixes,
            pulls,
            hub_pulls,
            removals,
            conversions,
            containers,
            conversations,
        )
    }
    print(json.dumps(SCENES[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3]))))
