"""Time what happens before the first token: `python benchmarks/start_up.py [MODEL] [--repeats N]`.

Each line is a process of its own; its processor seconds (the least of the repetitions) stand
beside those of `python -c "import numpy"` of the same run, so that machines can be compared.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

OPEN = "from cortiq.formats.gguf import open_gguf; from cortiq.formats.fetch import resolve; "
OPEN += "path = resolve({model!r}); made = open_gguf(path); "
CASES = "from cortiq_conformance.catalogue import cases; list(cases(profile='full'))"
ROPE = "import numpy as np; from cortiq.numerics.rope import RopeTable; "
ROPE += "RopeTable(10000.0, 128).table(np.arange(131072))"


def programs(model: str) -> dict[str, list[str]]:
    """Return the arguments of Python by the name of what they do."""
    cli = "from cortiq.cli.main import main; main()"
    generate = ["generate", model, "-b", "cpu", "-p", "Once upon a time", "--max-tokens", "1"]
    tokenizer = "from cortiq.tokenizer import Tokenizer; Tokenizer.from_gguf(made.metadata)"
    return {
        "import numpy": ["-c", "import numpy"],
        "cortiq --help": ["-c", cli, "--help"],
        "open the file": ["-c", OPEN.format(model=model)],
        "open the file, make the tokenizer": ["-c", OPEN.format(model=model) + tokenizer],
        "list all conformance cases": ["-c", CASES],
        "131,072 rotary positions": ["-c", ROPE],
        "generate one token": ["-c", cli, *generate],
    }


def seconds(arguments: list[str]) -> float:
    """Return the processor seconds of one process."""
    before = os.times()
    subprocess.run([sys.executable, *arguments], capture_output=True, check=True)
    after = os.times()
    return sum(getattr(after, part) - getattr(before, part) for part in CHILDREN)


CHILDREN = ("children_user", "children_system")


def main() -> None:
    """Print a line a program."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    unit = None
    for name, arguments in programs(options.model).items():
        least = min(seconds(arguments) for _ in range(options.repeats))
        unit = unit or least
        print(f"{name:36} {least:6.2f} s  {least / unit:6.1f} × import numpy", flush=True)


if __name__ == "__main__":
    main()
