"""Hugging Face folders give the ids, BOS and texts that transformers gives."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Engine
from tokenizers.processors import TemplateProcessing

from cortiq.errors import TokenizerError
from cortiq.tokenizer import Detokenizer, Tokenizer
from cortiq.tokenizer.byte_level import LONG, encoded

CORPUS = ["the cat sat on the mat", "it's 12345 o'clock, isn't it?", "Café déjà vu — naïve 😊"] * 40
TEXTS = [
    *CORPUS[:3],
    "",
    " leading",
    "  two  spaces  ",
    "<s>the cat</s>",
    "a[x]the<|end|> cat",
    "機械学習 \x00\x07",
]
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
SPECIAL = ["<unk>", "<s>", "</s>", "<|end|>"]


def byte_level_engine() -> Engine:
    engine = Engine(models.BPE())
    split = pre_tokenizers.Split(Regex(r"\p{N}{1,3}|\s+(?!\S)| ?[^\s\p{N}]+|\s+"), "isolated")
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    engine.pre_tokenizer = pre_tokenizers.Sequence([split, letters])
    engine.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    engine.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(vocab_size=320, special_tokens=SPECIAL, initial_alphabet=alphabet),
    )
    engine.add_tokens([AddedToken("[x]", normalized=False)])
    return engine


def space_mark_engine(metaspace: bool) -> Engine:
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    engine = Engine(models.BPE(unk_token="<unk>", byte_fallback=True))
    if metaspace:
        engine.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
        engine.decoder = decoders.Sequence(
            [decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first")]
        )
    else:
        steps = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        engine.normalizer = normalizers.Sequence(steps)
        engine.decoder = decoders.Sequence(
            [
                decoders.Replace("▁", " "),
                decoders.ByteFallback(),
                decoders.Fuse(),
                decoders.Strip(" ", 1, 0),
            ]
        )
    trainer = trainers.BpeTrainer(vocab_size=380, special_tokens=[*SPECIAL, *bytes_])
    engine.train_from_iterator(CORPUS[:2] * 20, trainer)
    described = json.loads(engine.to_str())
    # Byte tokens belong to the model, not to the special tokens that the trainer made of them.
    described["added_tokens"] = [
        token for token in described["added_tokens"] if token["content"] in SPECIAL
    ]
    engine = Engine.from_str(json.dumps(described))
    engine.add_tokens([AddedToken("[x]", normalized=False)])
    return engine


ENGINES = {
    "byte-level": byte_level_engine,
    "metaspace": lambda: space_mark_engine(True),
    "prepend": lambda: space_mark_engine(False),
}


@pytest.fixture(scope="module", params=ENGINES)
def engine(request) -> Engine:
    return ENGINES[request.param]()


def save(folder: Path, engine: Engine, bos: bool | None = False, **settings: object) -> Path:
    if bos:
        ids = [("<s>", engine.token_to_id("<s>"))]
        engine.post_processor = TemplateProcessing(single="<s> $A", special_tokens=ids)
    else:
        engine.post_processor = TemplateProcessing(single="$A", special_tokens=[])
    if bos is None:
        described = json.loads(engine.to_str()) | {"post_processor": None}
        engine = Engine.from_str(json.dumps(described))
    engine.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **TOKENS, **settings}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def load_with_transformers(folder: Path):
    transformers = pytest.importorskip("transformers")
    return transformers.AutoTokenizer.from_pretrained(str(folder))


@pytest.mark.parametrize("settings", [{}, {"add_bos_token": True}, {"add_bos_token": False}])
@pytest.mark.parametrize("bos", [False, True, None])
def test_ids_and_bos_equal_transformers(tmp_path, engine, bos, settings):
    folder = save(tmp_path, engine, bos, **settings)
    ours, theirs = Tokenizer.from_folder(folder), load_with_transformers(folder)
    assert ours.bos_id == theirs.bos_token_id
    assert ours.eos_id == theirs.eos_token_id
    for text in TEXTS:
        assert ours.encode(text, parse_special=True) == theirs(text)["input_ids"]
        plain = theirs(text, add_special_tokens=False)["input_ids"]
        assert ours.encode(text, add_bos=False, parse_special=True) == plain


def test_texts_equal_the_library_and_stream_alike(tmp_path, engine):
    ours = Tokenizer.from_folder(save(tmp_path, engine))
    for text in TEXTS:
        ids = ours.encode(text, parse_special=True)
        expected = engine.decode(ids, skip_special_tokens=True)
        assert ours.decode(ids) == expected
        detokenizer = Detokenizer(ours)
        assert "".join(map(detokenizer.add, ids)) + detokenizer.finish() == expected


def test_a_long_text_goes_another_way_to_the_same_ids(engine):
    text = "Many words, é and 水, and more of them. " * (2 * LONG // 40)
    assert len(text) > LONG
    assert encoded(engine, text) == engine.encode(text, add_special_tokens=False).ids


def test_control_tokens_are_read_only_when_asked(tmp_path, engine):
    ours = Tokenizer.from_folder(save(tmp_path, engine))
    end, added = ours.token_id("<|end|>"), ours.token_id("[x]")
    ids = ours.encode("a[x]the<|end|>")
    assert end not in ids
    assert added in ids
    assert ours.decode(ids).replace(" ", "") == "a[x]the<|end|>"
    assert end in ours.encode("a[x]the<|end|>", parse_special=True)
    assert ours.is_special(end)
    assert not ours.is_special(added)


def test_end_tokens_come_from_every_config(tmp_path):
    folder = save(tmp_path, byte_level_engine())
    (folder / "generation_config.json").write_text('{"eos_token_id": [2, 7]}')
    (folder / "config.json").write_text('{"eos_token_id": 9}')
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.eos_ids == (2, 7, 9, 3)  # and <|end|>, known by its text


def test_chat_templates_are_found(tmp_path):
    named = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    folder = save(tmp_path, byte_level_engine(), chat_template=named)
    assert Tokenizer.from_folder(folder).chat_template(tools=True) == "b"
    (folder / "chat_template.jinja").write_text("from the file")
    assert Tokenizer.from_folder(folder).chat_template() == "from the file"


def test_special_tokens_may_be_described_at_length_and_elsewhere(tmp_path):
    folder = save(tmp_path, byte_level_engine())
    (folder / "tokenizer_config.json").unlink()
    described = {"bos_token": {"content": "<s>", "lstrip": False}, "eos_token": "</s>"}
    (folder / "special_tokens_map.json").write_text(json.dumps(described))
    tokenizer = Tokenizer.from_folder(folder)
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.bos_token) == (1, 2, "<s>")


def test_bytes_without_a_token_are_refused_not_dropped(tmp_path):
    engine = Engine(models.BPE(vocab={"a": 0, "b": 1}, merges=[]))
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder = decoders.ByteLevel()
    tokenizer = Tokenizer.from_folder(save(tmp_path, engine))
    with pytest.raises(TokenizerError, match="0x63"):
        tokenizer.encode("abc")


def test_a_folder_without_a_tokenizer_is_an_error(tmp_path):
    with pytest.raises(TokenizerError, match=r"no tokenizer\.json"):
        Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("content", [b"{", b"\xff", b"[]"])
def test_broken_files_are_named(tmp_path, name, content):
    folder = save(tmp_path, byte_level_engine())
    (folder / name).write_bytes(content)
    with pytest.raises(TokenizerError) as caught:
        Tokenizer.from_folder(folder)
    assert str(caught.value.where).endswith(name)


def test_words_are_joined_as_the_library_joins_them(tmp_path):
    engine = Engine(models.WordPiece(vocab={"a": 0, "##b": 1, "[UNK]": 2}, unk_token="[UNK]"))
    engine.decoder = decoders.WordPiece()
    ours = Tokenizer.from_folder(save(tmp_path, engine))
    assert ours.encode("ab") == [0, 1]
    assert ours.decode([0, 1, 0]) == engine.decode([0, 1, 0]) == "ab a"
    assert ours.decode([0, 1], continuation=True) == " ab"
