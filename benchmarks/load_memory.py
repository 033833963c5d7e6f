"""Anonymous memory and time of loading and converting a large checkpoint, made up for the purpose.

    python benchmarks/load_memory.py FOLDER --gigabytes 8 [--formats q4_k fp8 nvfp4 bf16]
        [--backends reference cpu] [--convert w4 w8] [--calibrate TEXT] [--seconds N] [--kill N]

A Llama of random weights is written to FOLDER in each format: a GGUF file in Q4_K, or safetensors
in bf16, FP8 (scales of 128 by 128) or NVFP4 (modelopt's); `experts` is a Mixtral in bf16. Every
load and conversion is a process of its own; on the CPU backend the first one, which packs, the
second, which finds packed weights, and with --not-kept one that keeps none. It prints the largest
`Anonymous` of /proc/self/smaps_rollup, read fifty times a second, over what a process that has
imported everything and loaded a tiny model has, and the seconds beside those of reading the file.
Kept weights go to FOLDER, too. A conversion is left after --seconds; with --kill one is killed
(SIGKILL) after so many, and the same command goes on. Folders that were converted are loaded, too,
and checked against their hashes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from made_models import FOLDERS, write_folder, write_q4_k

CHUNK = 1 << 22


def anonymous() -> int:
    """Return the anonymous memory of this process, in bytes."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return 1024 * int(line.split()[1])
    raise AssertionError("the kernel says nothing of anonymous memory")


def most_anonymous(work: Callable[[], object]) -> tuple[int, object]:
    """Return the largest anonymous memory while something is done, and what it returned."""
    most, stop = [anonymous()], threading.Event()

    def watch() -> None:
        while not stop.wait(0.02):
            most.append(max(most[-1], anonymous()))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        result = work()
    finally:
        stop.set()
        thread.join()
    return max(most[-1], anonymous()), result


class LeftError(Exception):
    """A conversion is left: no error of files, which conversions report in their own way."""


def child(
    what: str, source: str, to: str, text: str = "", tokens: str = "0", limit: str = "0"
) -> None:
    """Do one thing; print what it takes over a process that has everything imported, and times."""
    import cortiq
    from cortiq.convert.run import Calibration, convert_model

    def progress(*report: object) -> None:
        if float(limit) and time.perf_counter() - started[0] > float(limit):
            raise LeftError(*report)

    def conversion() -> str:
        calibration = Calibration(Path(text), int(tokens)) if text else None
        form = Path(to).name
        try:
            made = convert_model(source, to, form, calibration=calibration, progress=progress)
        except LeftError as error:
            label, done, total = error.args
            return f"left: {label}, {done} of {total}"
        return f"{made.resumed} tensors were there" if made.resumed else ""

    if what == "convert":
        before, started = anonymous(), (time.perf_counter(), time.process_time())
        most, said = most_anonymous(conversion)
    else:
        cortiq.load("synthetic:tiny-llama", backend=what).close()
        before, started = anonymous(), (time.perf_counter(), time.process_time())
        loaded: list[cortiq.Model] = []
        most, said = most_anonymous(lambda: loaded.append(cortiq.load(source, backend=what)))
    times = time.perf_counter() - started[0], time.process_time() - started[1]
    print(json.dumps([most - before, *times, said]))


def reading(files: list[Path]) -> float:
    """Return the seconds of reading files, which are dropped from the system's cache first."""
    for file in files:
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    started = time.perf_counter()
    for file in files:
        with file.open("rb", buffering=0) as opened:
            while opened.read(CHUNK):
                pass
    return time.perf_counter() - started


def measured(what: str, source: Path, to: str = "", keep: str = "1", *more: str) -> None:
    """Measure in a process of its own, and print a line."""
    files = [source] if source.is_file() else list(source.iterdir())
    size, read = sum(file.stat().st_size for file in files), reading(files)
    command = [sys.executable, __file__, "--child", what, str(source), to, *more]
    environment = {**os.environ, "CORTIQ_KEEP_WEIGHTS": keep}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    what = f"{what} {Path(to).name}" if to else what if keep == "1" else f"{what}, not kept"
    if done.returncode:
        print(f"{what:14} {source.name:10} failed: {done.stderr.strip().splitlines()[-1]}")
        return
    taken, wall, seconds, said = json.loads(done.stdout)
    print(f"{what:14} {source.name:10} {size / 1e9:.2f} GB: {taken / 1e9:.3f} GB anonymous,"
          f" {taken / size:.3f} of it; {wall:.1f} s, {seconds:.1f} s of processor time; reading it"
          f" takes {read:.1f} s{f' ({said})' if said else ''}", flush=True)  # fmt: skip


def killed(source: Path, to: Path, seconds: float) -> None:
    """Kill a conversion after some seconds; say what it leaves."""
    command = [sys.executable, __file__, "--child", "convert", str(source), str(to)]
    with subprocess.Popen(command) as process:
        time.sleep(seconds)
        process.kill()
    journal = to.with_name(f".{to.name}.converting") / "journal"
    whole = journal.read_text().count("\n") if journal.exists() else 0
    there = "is there" if to.exists() else "is not there"
    print(f"killed after {seconds:.0f} s: {to.name} {there}, {whole} tensors are whole", flush=True)


def checked(folder: Path) -> None:
    """Read a converted folder against its hashes."""
    command = [sys.executable, "-m", "cortiq", "inspect", str(folder), "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    print(f"inspect --check of {folder.name}: exit status {done.returncode}", flush=True)


def conversions(source: Path, chosen: argparse.Namespace) -> None:
    """Convert to each format, and load what was made."""
    for form in chosen.convert:
        to = chosen.folder / form
        if chosen.kill:
            killed(source, to, chosen.kill)
        text = [chosen.calibrate or "", str(chosen.calibration_tokens), str(chosen.seconds)]
        measured("convert", source, str(to), "1", *text)
        if to.exists():
            checked(to)
            for backend in chosen.backends:
                measured(backend, to)
        for left in (to, to.with_name(f".{form}.converting"), chosen.folder / "cache"):
            shutil.rmtree(left, ignore_errors=True)


def main() -> None:
    """Print one line a load and conversion."""
    if sys.argv[1:2] == ["--child"]:
        return child(*sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--formats", nargs="*", default=["q4_k", "fp8", "nvfp4", "bf16"])
    parser.add_argument("--backends", nargs="*", default=["reference", "cpu"])
    parser.add_argument("--convert", nargs="*", default=["w4"])
    parser.add_argument("--not-kept", action="store_true", help="load without kept weights, too")
    parser.add_argument("--no-load", action="store_true", help="convert only")
    parser.add_argument("--calibrate", help="a text for error feedback")
    parser.add_argument("--calibration-tokens", type=int, default=4096)
    parser.add_argument("--seconds", type=float, default=0, help="at which a conversion is left")
    parser.add_argument("--kill", type=float, default=0, help="at which a conversion is killed")
    chosen = parser.parse_args()
    os.environ["CORTIQ_CACHE"] = str(chosen.folder / "cache")
    for name in chosen.formats:
        place = chosen.folder / name
        write = write_folder if name in FOLDERS else write_q4_k
        source = write(place if name in FOLDERS else place / "q4_k.gguf", chosen.gigabytes)
        for backend in [] if chosen.no_load else chosen.backends:
            measured(backend, source)
            if backend == "cpu":
                measured(backend, source)
                if chosen.not_kept:
                    measured(backend, source, keep="0")
        shutil.rmtree(chosen.folder / "cache", ignore_errors=True)
        conversions(source, chosen)
        shutil.rmtree(place)
    shutil.rmtree(chosen.folder)
    return None


if __name__ == "__main__":
    main()
