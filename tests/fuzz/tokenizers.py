"""Made-up and mutated tokenizer.json: our errors only, in bounds, and texts as the library's.

Each case runs in a child of this process with a limit of memory and of processor time, and must
leave nothing on stderr. A text is encoded as the library encodes it; ids are decoded as the library
decodes them, whole or one by one.

    python -m fuzz.tokenizers --seconds 60   (in the folder `tests`)
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from cortiq.errors import CortiqError
from cortiq.tokenizer import Detokenizer, Tokenizer
from cortiq.tokenizer.byte_level import byte_alphabet

MEMORY, SECONDS, BATCH = 1 << 30, 20, 50
LETTERS = [
    *byte_alphabet(),
    "▁",
    "水",
    "##a",
    "ab</w>",
    "▁a",
    *(f"<0x{b:02X}>" for b in range(256)),
]
TEXTS = ["", "ab ba  a", "Åé\u0301 水\n\t 12345", "a" * 300, "<m>a <m> b", "aA\u0301 ' s", " " * 40]
PATTERNS = [r"\p{N}", r"\s+", r"(a|aa)+$", "a*a*a*b", "(?:a{99}){99}", "(", "x", r" ?\p{L}+", ""]
SCHEMES = ["always", "first", "never"]
RARE = 0.04
"""How often a part is one that only an attacker writes."""

ODD: list[Any] = [None, True, -1, 0, 2**32 - 1, 10**12, 0.5, "", "a", "▁", [], ["a"], {}, {"a": 1}]


def pattern(r: random.Random) -> dict[str, str]:
    """A pattern of the library."""
    if r.random() < RARE:
        return {"Regex": r.choice(PATTERNS)}
    return {"String": "" if r.random() < RARE else r.choice([" ", "a", "ab", "▁", "水"])}


def replace(r: random.Random) -> dict[str, Any]:
    """A step that replaces."""
    content = r.choice(["▁", " ", "", "b", "aa"])
    if r.random() < RARE:
        content = "a" * r.choice([99, 999, 10**6])
    return {"type": "Replace", "pattern": pattern(r), "content": content}


def normalizer(r: random.Random) -> dict[str, Any] | None:
    """A step before the text is cut."""
    plain = ["NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt"]
    if r.random() < RARE:
        charsmap = r.choice(["AAAA", "", "AAAAAAAAAAA="])
        return r.choice(
            [
                {"type": "ByteLevel"},
                {"type": "Precompiled", "precompiled_charsmap": charsmap},
                {"type": "Prepend", "prepend": "▁" * 10**5},
            ]
        )
    return r.choice(
        [
            {"type": r.choice(plain)},
            {"type": "Prepend", "prepend": "▁" * r.choice([0, 1, 3])},
            {"type": "Strip", "strip_left": True, "strip_right": r.random() < 0.5},
            replace(r),
        ]
    )


def pre_tokenizer(r: random.Random) -> dict[str, Any]:
    """A step that cuts the text."""
    byte_level = {"add_prefix_space": r.random() < 0.5, "trim_offsets": True}
    if r.random() < RARE:
        return {"type": "FixedLength", "length": r.choice([0, 1, 5])}
    return r.choice(
        [
            {"type": "ByteLevel", "use_regex": r.random() < 0.5, **byte_level},
            {"type": "Digits", "individual_digits": r.random() < 0.5},
            {"type": r.choice(["Whitespace", "WhitespaceSplit", "BertPreTokenizer"])},
            {"type": "Punctuation", "behavior": "Isolated"},
            {"type": "Metaspace", "replacement": "▁", "prepend_scheme": r.choice(SCHEMES)},
            {
                "type": "Split",
                "pattern": pattern(r),
                "behavior": r.choice(["Isolated", "Removed", "MergedWithNext", "Contiguous"]),
                "invert": r.random() < 0.2,
            },
        ]
    )


def decoder(r: random.Random) -> dict[str, Any]:
    """A step from pieces to text."""
    cleanup = r.random() < 0.5
    return r.choice(
        [
            {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "BPEDecoder", "suffix": r.choice(["</w>", "a"])},
            {"type": "WordPiece", "prefix": "##", "cleanup": cleanup},
            {"type": "CTC", "pad_token": "a", "word_delimiter_token": "b", "cleanup": cleanup},
            {"type": "Strip", "content": r.choice(" ▁a"), "start": r.randrange(3), "stop": 0},
            {
                "type": "Metaspace",
                "replacement": "▁",
                "prepend_scheme": r.choice(["first", "never"]),
            },
            replace(r),
        ]
    )


def several(r: random.Random, make: Any, inside: str) -> Any:
    """None, a part, or a sequence of them."""
    count = r.randrange(60) if r.random() < RARE else r.choice([0, 1, 1, 2, 2, 3])
    if count < 2:
        return make(r) if count else None
    return {"type": "Sequence", inside: [make(r) for _ in range(count)]}


def model(r: random.Random) -> dict[str, Any]:
    """A model over LETTERS."""
    vocabulary = {letter: token for token, letter in enumerate(LETTERS)}
    common = {"vocab": vocabulary, "unk_token": r.choice([None, "a"])}
    kind = r.choice(["BPE", "BPE", "WordLevel", "WordPiece"])
    kind = "Unigram" if r.random() < RARE else kind
    if kind == "BPE":
        options = {"byte_fallback": r.random() < 0.5, "fuse_unk": r.random() < 0.5}
        return {"type": kind, "merges": [["▁", "a"]], **options, **common}
    if kind == "WordLevel":
        return {"type": kind, **common, "unk_token": "a"}
    if kind == "WordPiece":
        longest = 10**12 if r.random() < RARE else 100
        options = {"continuing_subword_prefix": "##", "max_input_chars_per_word": longest}
        return {"type": kind, **common, "unk_token": "a", **options}
    scored = [[letter, -1.0] for letter in LETTERS]
    return {"type": kind, "vocab": scored, "unk_id": 0, "byte_fallback": False}


def processor(r: random.Random) -> dict[str, Any]:
    """A step that adds ids around a text."""
    text = {"Sequence": {"id": "A", "type_id": 0}}
    added = {"SpecialToken": {"id": "a", "type_id": 0}}
    ids = {"id": "a", "ids": [0] * r.choice([1, 9999]), "tokens": ["a"]}
    ids["tokens"] = ["a"] * len(ids["ids"])
    texts = r.choice([0, 9]) if r.random() < RARE else 1
    single = [added] * r.choice([0, 1, 999]) + [text] * texts
    pair = [text, {"Sequence": {"id": "B", "type_id": 0}}]
    return r.choice(
        [
            {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True},
            {"type": "BertProcessing", "sep": ["b", 1], "cls": ["a", 0]},
            {
                "type": "TemplateProcessing",
                "single": single,
                "pair": pair,
                "special_tokens": {"a": ids},
            },
        ]
    )


def added_token(r: random.Random, token: int) -> dict[str, Any]:
    """A token beside the model's."""
    content = r.choice(["<m>", "▁▁", "é", "a b", "Å", "水水", " ", "m", ""])
    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    return {"id": token, "content": content, **{flag: r.random() < 0.4 for flag in flags}}


def described(r: random.Random) -> Any:
    """A tokenizer.json; often with a value that does not belong where it is."""
    made = {
        "version": "1.0",
        "truncation": None,
        "padding": r.choice([None, None, {"strategy": {"Fixed": 10**9}, "direction": "Right"}]),
        "added_tokens": [added_token(r, len(LETTERS) + i) for i in range(r.randrange(4))],
        "normalizer": several(r, normalizer, "normalizers"),
        "pre_tokenizer": several(r, pre_tokenizer, "pretokenizers"),
        "post_processor": several(r, processor, "processors"),
        "decoder": several(r, decoder, "decoders"),
        "model": model(r),
    }
    while r.random() < 0.15:
        corrupt(made, r)
    return made


def corrupt(value: Any, r: random.Random) -> None:
    """Put an odd value somewhere inside."""
    while True:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        if not keys:
            return
        key = r.choice(keys)
        if not isinstance(value[key], dict | list) or r.random() < 0.2:
            value[key] = r.choice(ODD)
            return
        value = value[key]


def attempt(seed: int, folder: Path) -> str:
    """One case; "fine", the error's name, or an AssertionError."""
    r = random.Random(seed)
    text = json.dumps(described(r))
    if r.random() < RARE:
        at = r.randrange(len(text))
        text = text[:at] + r.choice(['"', "{", "]", "9" * 30, "1e999", "\\ud800"]) + text[at + 1 :]
    (folder / "tokenizer.json").write_text(text)
    (folder / "tokenizer_config.json").write_text('{"bos_token": "a"}')
    try:
        tokenizer = Tokenizer.from_folder(folder)
    except CortiqError as error:
        return type(error).__name__
    quiet = Quiet()
    for words in r.sample(TEXTS, 3):
        try:
            ids = tokenizer.encode(words, add_bos=False, parse_special=True)
        except CortiqError:
            continue
        expected = quiet.encode(text, words)
        assert expected in (None, ids), (seed, words, ids, expected)
    for _ in range(5):
        ids = [r.randrange(tokenizer.vocab_size + 3) for _ in range(r.randrange(9))]
        whole, stream = tokenizer.decode(ids), Detokenizer(tokenizer)
        assert "".join(map(stream.add, ids)) + stream.finish() == whole, (seed, ids)
        b"".join(map(tokenizer.token_bytes, ids))
        expected = quiet.decode(text, [i for i in ids if not tokenizer.is_special(i)])
        # Bytes that are no characters are shown by another rule.
        same = expected in (None, whole) or ("\ufffd" in whole and "\ufffd" in str(expected))
        assert same, (seed, ids, whole, expected)
    return "fine"


class Quiet:
    """The library itself; it answers None where it fails, and its panics go nowhere."""

    def __init__(self) -> None:
        self._nowhere = os.open(os.devnull, os.O_WRONLY)

    def encode(self, text: str, words: str) -> Any:
        """Ids of a text."""

        def ids(engine: Any) -> Any:
            engine.no_padding()
            engine.no_truncation()
            return engine.encode(words, add_special_tokens=False).ids

        return None if "Regex" in text else self._answer(text, ids)

    def decode(self, text: str, ids: list[int]) -> Any:
        """The text of ids."""
        return self._answer(text, lambda engine: engine.decode(ids, skip_special_tokens=False))

    def _answer(self, text: str, question: Any) -> Any:
        from tokenizers import Tokenizer as Engine

        before = os.dup(2)
        os.dup2(self._nowhere, 2)
        try:
            return question(Engine.from_str(text))
        except BaseException:
            return None
        finally:
            os.dup2(before, 2)
            os.close(before)


def batch(first: int, folder: Path) -> tuple[dict[str, int], str]:
    """BATCH cases in a child process: how often each outcome came, and what failed."""
    results, seen = folder / "results", folder / "stderr"
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.dup2(os.open(seen, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            limit = pages * resource.getpagesize() + MEMORY
            resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
            with open(results, "w", buffering=1) as out:
                for seed in range(first, first + BATCH):
                    out.write(f"{seed} ")
                    signal.setitimer(signal.ITIMER_PROF, SECONDS)
                    out.write(attempt(seed, folder) + "\n")
            status = 0
        except BaseException as error:
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
            sys.stderr.flush()
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    lines = results.read_text().splitlines()
    counts: dict[str, int] = {}
    for line in lines:
        _, _, outcome = line.partition(" ")
        counts[outcome] = counts.get(outcome, 0) + 1
    noise = seen.read_text(errors="replace")
    failed = f"case {lines[-1]}: ended with {status}: {noise}" if status or noise else ""
    return counts, failed


def main(count: int | None = None, seconds: float | None = None, first: int = 0) -> int:
    """Run cases from seed `first` on; 0 when none failed."""
    end, total, failures = time.monotonic() + (seconds or 1e9), 0, 0
    counts: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        for start in itertools.count(first, BATCH):
            if time.monotonic() > end or (count is not None and total >= count):
                break
            outcomes, failed = batch(start, Path(folder))
            total += BATCH
            for name, times in outcomes.items():
                counts[name] = counts.get(name, 0) + times
            if failed:
                print(failed[:4000])
                failures += 1
    print(f"{total} cases: {counts}, {failures} failed batches")
    return 1 if failures or not counts.get("fine") else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    if given.count is None and given.seconds is None:
        given.seconds = 60.0
    sys.exit(main(given.count, given.seconds, given.first))
