"""RWKV's World tokenizer, from its vocabulary file and from GGUF, against other implementations."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cortiq.errors import TokenizerError
from cortiq.tokenizer import Tokenizer

END = "<|rwkv_tokenizer_end_of_text|>"
WORDS = [
    b"the", b" the", b" th", b"he", b"\n\n", b"\r\n", b"'s", b'""', b"\\\\", b"\\x", b"\\n", b"  ",
    b" " * 5, "ж".encode(), "жы".encode(), "你好".encode(), b"\xd0\xb6\xd1", b"\xff\xfe",
    "\x85".encode(), "\u2028".encode(),
]  # fmt: skip
SMALL = {n: bytes([n - 1]) for n in range(1, 257)} | dict(enumerate(WORDS, 258))
"""By id; id 257 is left out."""
TEXTS = st.text(st.sampled_from("the \n\r's\\xжы你好😀\"\x85\u2028\x00"), max_size=50)
SETTINGS = {
    "bos_token": END, "eos_token": "\n\n",
    "added_tokens_decoder": {"0": {"content": END}, "300": {"content": "\n\n"}},
    "chat_template": "{{ bos_token }}User:",
}  # fmt: skip


def literal(piece):
    """A token as the file writes it: a text where it is one."""
    try:
        return repr(piece.decode("utf-8"))
    except UnicodeDecodeError:
        return repr(piece)


def lines(pieces, end="\n"):
    return "".join(f"{n} {literal(p)} {len(p)}{end}" for n, p in pieces.items()).encode()


def folder(path, data=None, settings=SETTINGS):
    path.mkdir(exist_ok=True)
    (path / "rwkv_vocab_v20230424.txt").write_bytes(lines(SMALL) if data is None else data)
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    (path / "generation_config.json").write_text('{"eos_token_id": 0}')
    return Tokenizer.from_folder(path)


def metadata(pieces, **changes):
    """Return what llama.cpp's converter writes of a vocabulary."""
    size = max(pieces) + 3
    tokens = [repr(pieces[n])[2:-1] if n in pieces else f"[PAD{n}]" for n in range(size)]
    kinds = [1 if n in pieces else 5 for n in range(size)]
    tokens[0], kinds[0] = "<s>", 3
    given = {
        "model": "rwkv", "tokens": tokens, "token_type": kinds, "bos_token_id": 0,
        "eos_token_id": 0, "eot_token_id": 262,
    }  # fmt: skip
    return {f"tokenizer.ggml.{k}": v for k, v in (given | changes).items()}


def longest(pieces, text):
    """The definition, tried piece by piece."""
    data, ids = text.encode(), []
    while data:
        fits = [(len(p), n) for n, p in pieces.items() if data.startswith(p)]
        length, token = max(fits)
        ids.append(token)
        data = data[length:]
    return ids


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    return [folder(tmp_path_factory.mktemp("w")), Tokenizer.from_gguf(metadata(SMALL))]


@given(text=TEXTS)
@example(text="\\x the\n\n\n" + " " * 13)
def test_each_place_takes_the_longest_token(opened, text):
    for tokenizer in opened:
        ids = tokenizer.encode(text)
        assert ids == longest(SMALL, text)
        assert tokenizer.decode(ids) == text
        assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()


def test_special_tokens_are_those_of_the_files(opened):
    ours, gguf = opened
    eos = next(n for n, p in SMALL.items() if p == b"\n\n")
    assert (ours.bos_id, ours.eos_id, ours.eos_ids, ours.vocab_size) == (0, eos, (eos, 0), 278)
    assert (gguf.bos_id, gguf.eos_id, gguf.eos_ids, gguf.vocab_size) == (0, 0, (0, 262), 280)
    assert ours.encode("\n\n", parse_special=True) == [eos]  # not the added token of that text
    assert ours.encode(END + "the", parse_special=True) == [0, 258]
    assert gguf.encode("<s>the", parse_special=True) == [0, 258]
    assert END not in ours.decode([0, 258]) and ours.bos_token == END
    assert 0 not in ours.encode(END) and 0 not in gguf.encode("<s>")
    assert ours.decode([eos]) == "\n\n"  # an end that is part of the text
    assert ours.chat_templates == {"default": SETTINGS["chat_template"]}


def test_lines_may_end_as_on_windows_and_bos_comes_as_asked(tmp_path, opened):
    ours = folder(tmp_path / "w", lines(SMALL, "\r\n"), SETTINGS | {"add_bos_token": True})
    assert ours.encode(" the\r\n") == [0, *opened[0].encode(" the\r\n")]


def test_a_template_may_be_named():
    named = {"tokenizer.chat_template": "rwkv-world"}
    template = Tokenizer.from_gguf(metadata(SMALL) | named).chat_templates["default"]
    jinja2 = pytest.importorskip("jinja2")
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " Hi "}]
    text = jinja2.Template(template).render(messages=turns, add_generation_prompt=True)
    assert text == "System: Be brief.\n\nUser: Hi\n\nAssistant:"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "token twice, or none"),
        (lines({n: p for n, p in SMALL.items() if p != b"z"}), "no token for byte 0x7A"),
        (lines(SMALL | {300: b"a" * 1025}), "1025 bytes"),
        (lines(SMALL | {300: b"the"}), "token twice"),
        (lines(SMALL) + b"1 'qq' 2\n", "line 277 has an id twice"),
        (lines(SMALL) + b"301 'qq' 3\n", "other bytes than it says"),
        (lines(SMALL) + b"9999999 'qq' 2\n", "line 277"),
        (lines(SMALL) + b"301 __import__('os') 2\n", "line 277 is no token"),
        (lines(SMALL) + b"301 '\xff' 1\n", "not UTF-8"),
    ],
)
def test_a_broken_vocabulary_says_what_is_wrong(tmp_path, data, words):
    with pytest.raises(TokenizerError, match=words):
        folder(tmp_path / "w", data)


def test_a_gguf_token_is_any_text():
    """Escapes that no writer makes are bytes all the same."""
    odd = metadata(SMALL)
    odd["tokenizer.ggml.tokens"][257:259] = ["\\xzz\\", "ж\\u0436"]
    tokenizer = Tokenizer.from_gguf(odd | {"tokenizer.ggml.token_type": [3] + [1] * 279})
    assert tokenizer.token_bytes(258) == "жu0436".encode()
    assert tokenizer.decode(tokenizer.encode("xzz\\")) == "xzz\\"


def test_the_published_vocabulary_gives_the_ids_of_its_other_readers(tmp_path):
    package = pytest.importorskip("pyrwkv_tokenizer")
    data = (Path(package.__file__).parent / "rwkv_vocab_v20230424.txt").read_bytes()
    pieces = {}
    for line in data.decode().split("\n")[:-1]:
        number, _, rest = line.partition(" ")
        said = ast.literal_eval(rest.rpartition(" ")[0])
        pieces[int(number)] = said.encode() if isinstance(said, str) else said
    text = Path(__file__).read_text("utf-8") * 2 + "Привет, 世界! 안녕 😀\n\n\u2028\x85" + " " * 99
    wanted = package.RWKVTokenizer().encode(text)
    for tokenizer in (folder(tmp_path / "w", data), Tokenizer.from_gguf(metadata(pieces))):
        assert tokenizer.encode(text) == wanted
        assert tokenizer.decode(wanted) == text
        assert all(tokenizer.token_bytes(n) == piece for n, piece in pieces.items())
