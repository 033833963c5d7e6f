"""The child process of `encoders.ChildEncoder`: answers one question a line, within its limits."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from typing import Any

from cortiq.tokenizer.byte_level import in_one_line
from cortiq.tokenizer.encoders import build, describe

__all__ = ["main"]


def main() -> None:
    """Build the tokenizer of the first line; encode the texts of all others."""
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    engine: Any = None
    answer: dict[str, Any]
    for line in sys.stdin.buffer:
        asked = json.loads(line)
        # The default action of SIGPROF ends the process in any code.
        signal.setitimer(signal.ITIMER_PROF, asked["seconds"])
        try:
            _limit_memory(asked["memory"])
            if engine is None:
                engine = build(asked["file"])
                answer = {"answer": describe(engine)}
            else:
                engine.encode_special_tokens = not asked["parse_special"]
                answer = {"answer": engine.encode(asked["text"], add_special_tokens=False).ids}
        except BaseException as error:  # Rust's panics are not an Exception
            answer = {"error": in_one_line(error)}
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
        sys.stdout.buffer.flush()


def _limit_memory(size: int) -> None:
    """Limit the address space; macOS cannot limit resident memory."""
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (size, resource.RLIM_INFINITY))
