"""Mutated tokenizer.json, config.json, tokenizer metadata and chat templates: only our errors."""

from __future__ import annotations

import json
import random
from collections import Counter

from fuzzing import ROUNDS, memory_limit, mutate
from vocabularies import byte_level_metadata, score_metadata

from cortiq.errors import CortiqError
from cortiq.models import load_program
from cortiq.models.synthetic import CONFIGS, SyntheticCheckpoint
from cortiq.tokenizer import Tokenizer, render

PIECES = [b"{", b"}", b'"', b"[", b"]", b"null", b"1e999", b"-1", b'"x"', b"\xff", b"9" * 30]
TAGS = [b"{{", b"}}", b"{%", b"%}", b" for m in messages ", b" endfor ", b"messages[0]", b"|join"]
TAGS += [b"|tojson(indent=9)", b" * 99999", b".__class__", b" if ", b" set x = ", b"~", b"("]
TEMPLATE = (
    b"{{ bos_token }}{% for m in messages %}{% if loop.index0 > 3 %}{{ raise_exception('no') }}"
    b"{% endif %}<{{ m['role'] }}>{{ m.content | trim }}{% endfor %}{% set n = namespace(a=1) %}"
    b"{% macro f(x) %}{{ x ~ n.a }}{% endmacro %}{{ f('b' * 3) }}{{ messages | tojson }}"
)
ODD = [None, True, -1, 2**70, 0.5, float("nan"), "", "x", [], ["a"], [1, 1], [[]], {}, b"\xff"]


def tally(attempts):
    """Count the outcomes; errors other than ours are raised."""
    counts = Counter()
    for attempt in attempts:
        try:
            attempt()
            counts["fine"] += 1
        except CortiqError as error:
            counts[type(error).__name__] += 1
    return counts


def test_chat_templates():
    random_ = random.Random(5)
    messages = [{"role": "user", "content": " a "}, {"role": "assistant", "content": "b"}]

    def attempt():
        source = mutate(TEMPLATE, random_, TAGS).decode(errors="replace")
        render(source, messages, bos_token="<s>")

    with memory_limit(512):
        counts = tally(attempt for _ in range(ROUNDS // 3))
    assert counts["fine"] and counts["TokenizerError"] and len(counts) == 2


def test_tokenizer_metadata():
    random_ = random.Random(6)
    bases = [byte_level_metadata(), score_metadata()]

    def attempt():
        given = dict(random_.choice(bases))
        for _ in range(random_.randint(1, 2)):
            key = random_.choice(list(given))
            value = given[key]
            if isinstance(value, list) and value and random_.random() < 0.7:
                value = list(value)
                value[random_.randrange(len(value))] = random_.choice(ODD)
                given[key] = value
            else:
                given[key] = random_.choice(ODD)
        tokenizer = Tokenizer.from_gguf(given)
        tokenizer.decode(tokenizer.encode("ab <s> ∑"))

    counts = tally(attempt for _ in range(ROUNDS // 10))
    assert counts["fine"] and counts["TokenizerError"]


def test_configurations():
    random_ = random.Random(7)
    names = [name for name in CONFIGS if name.startswith("tiny")]

    def attempt():
        name = random_.choice(names)
        data = mutate(json.dumps(dict(CONFIGS[name])).encode(), random_, PIECES)
        try:
            config = json.loads(data)
        except (ValueError, RecursionError):
            return
        sizes = [v for v in config.values() if type(v) is int] if isinstance(config, dict) else []
        if max(sizes, default=HUGE) < HUGE and isinstance(config.get("model_type"), str):
            load_program(SyntheticCheckpoint(name, 0, "w16", config))

    counts = tally(attempt for _ in range(ROUNDS))
    assert counts["fine"] and counts["UnsupportedError"] and counts["FormatError"]


HUGE = 1 << 20
"""Sizes above this would be made up by formula; a file would have to hold them."""


def test_tokenizer_json(tmp_path):
    from tokenizers import Tokenizer as Engine
    from tokenizers import decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    engine = Engine(models.BPE({c: i for i, c in enumerate(letters)}, [("a", "b")][:0]))
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder = decoders.ByteLevel()
    seed, random_ = engine.to_str().encode(), random.Random(8)
    head = seed.index(b'"vocab"')

    def attempt():
        changed = mutate(seed[:head], random_, PIECES) + seed[head:]
        (tmp_path / "tokenizer.json").write_bytes(changed)
        tokenizer = Tokenizer.from_folder(tmp_path)
        tokenizer.decode(tokenizer.encode("ab ∑"))

    counts = tally(attempt for _ in range(ROUNDS // 10))
    assert counts["fine"] and counts["TokenizerError"]
