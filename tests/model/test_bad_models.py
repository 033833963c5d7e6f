"""Damaged, hostile and impossible models: our own error at load or at the first step, by name."""

from __future__ import annotations

import dataclasses
import json
import os
import struct

import numpy as np
import pytest

import cortiq
from cortiq.cli.main import main
from cortiq.errors import CortiqError, FormatError, TokenizerError
from cortiq.formats.checkpoint import open_checkpoint
from cortiq.models import load_program
from cortiq.models.config import config_from_json
from cortiq.models.registry import families
from cortiq.models.synthetic import CONFIGS, SyntheticCheckpoint

HUGE = 10**400


# --- the real file, cut and changed ---------------------------------------------------------


@pytest.fixture(scope="module")
def header(smollm2_path):
    """The real file's header, where its tensor table starts, and the size of the file."""
    data = smollm2_path.read_bytes()
    with open_checkpoint(smollm2_path)._tensors as tensors:
        end = min(info.offset for info in tensors.tensors.values())
        names = [data.find(struct.pack("<Q", len(n)) + n.encode()) for n in tensors.tensors]
    return data[:end], min(names), len(data)


def sparse(path, head, size):
    """A file of this size whose beginning is `head`, and nothing after it takes room."""
    path.unlink(missing_ok=True)
    path.write_bytes(head)
    os.truncate(path, size)


def test_the_real_file_cut_anywhere_is_truncated(header, tmp_path):
    head, table, size = header
    path = tmp_path / "model.gguf"
    cuts = [1, 3, 4, 8, 23, 24, 100, 5000, table, table + 50, len(head) - 40, len(head)]
    for cut in [*cuts, len(head) + 1, size // 2, size - 32, size - 1]:
        sparse(path, head[:cut], cut)
        with pytest.raises(FormatError):
            open_checkpoint(path)


def test_the_real_tensor_table_changed_anywhere_is_an_error_or_still_a_model(header, tmp_path):
    head, table, size = header
    path, random = tmp_path / "model.gguf", np.random.default_rng(7)
    refused = 0
    for _ in range(60):
        changed = bytearray(head)
        at = int(random.integers(table, len(head) - 8))
        if random.random() < 0.5:
            changed[at] ^= 1 << int(random.integers(8))
        else:
            changed[at : at + 8] = struct.pack("<Q", int(random.choice([0, 2**31, 2**63, 255])))
        sparse(path, bytes(changed), size)
        try:
            load_program(open_checkpoint(path)).checkpoint.close()
        except CortiqError as error:
            refused += error.where is not None
    assert refused > 40


# --- configurations -------------------------------------------------------------------------

VALUES = [0, -1, 1, 3, 2**31, HUGE, 0.0, -1.0, 1e-320, 1e30, 1e308, float("nan"), float("inf")]
VALUES += [None, True, "", "yarn", [], [1], ["a"], {}, {"a": 1}, {"a": {"b": 1}}]
VALUES += [
    {"rope_type": []}, {"rope_type": "linear", "factor": 0}, {"rope_type": "linear"},
    {"rope_type": "linear", "factor": "x"}, {"rope_type": "linear", "factor": HUGE},
    {"rope_type": "yarn", "factor": 1e308, "beta_fast": 0, "beta_slow": 0},
    {"rope_type": "yarn", "factor": 4, "mscale": 1e300, "mscale_all_dim": 1e-300},
    {"rope_type": "longrope", "short_factor": 3, "long_factor": "x"},
    {"rope_type": "longrope", "short_factor": [0] * 8, "long_factor": [float("nan")] * 8},
    {"full_attention": {"rope_type": "default"}, "sliding_attention": {"rope_theta": "x"}},
]  # fmt: skip
KEYS = [
    "rope_scaling", "rope_theta", "partial_rotary_factor", "head_dim", "rms_norm_eps", "norm_eps",
    "sliding_window", "layer_types", "query_pre_attn_scalar", "attn_logit_softcapping",
    "final_logit_softcapping", "num_attention_heads", "num_key_value_heads", "num_hidden_layers",
    "num_experts_per_tok", "conv_L_cache", "block_ffn_dim_multiplier", "full_attn_idxs",
    "max_position_embeddings", "quantization_config", "rope_local_base_freq", "hidden_act",
]  # fmt: skip


def load_with(name, changes):
    config = {**CONFIGS[name], **changes}
    return load_program(SyntheticCheckpoint(name, 0, "w16", config))


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-gemma3", "tiny-mixtral", "tiny-lfm2"])
def test_any_value_of_any_key_gives_a_model_or_our_error(name):
    outcomes = set()
    for key in KEYS:
        for value in VALUES:
            if key == "conv_L_cache" and value == 2**31:
                continue  # 2³¹ made up taps: a file would have to hold them
            try:
                load_with(name, {key: value})
                outcomes.add("model")
            except CortiqError as error:
                outcomes.add(type(error).__name__)
    assert {"model", "FormatError", "UnsupportedError"} <= outcomes


FEW = [0, -1, HUGE, 2**31 - 1, 0.5, float("nan"), None, True, "x", [], [0], ["a"], {"a": 1}]
MINI = [name for name in CONFIGS if name.startswith("mini-")]


@pytest.mark.parametrize("name", MINI)
def test_any_value_of_any_field_of_a_family_gives_a_graph_or_our_error(name):
    values = CONFIGS[name]
    family = families()[values["model_type"]]
    keys = {f.name for f in dataclasses.fields(family.Config)} - family.Config.not_in_json
    refused = 0
    for key in sorted(keys | {"partial_rotary_factor", "rope_theta"}):
        for value in FEW:
            try:
                config = config_from_json(
                    family.Config, family.KEYS, {**values, key: value}, where="x"
                )
                family.build(config, min(4096, config.max_position_embeddings))
            except CortiqError:
                refused += 1
    assert refused > 5 * len(keys)


@pytest.mark.parametrize(
    ("name", "key", "says"),
    [
        ("mini-nanbeige", "num_loops", "passed 2049 times: at most 4096"),
        ("mini-gemma3n_text", "altup_num_inputs", "altup_num_inputs is more than 64"),
    ],
)
def test_no_key_makes_a_graph_without_limit(name, key, says):
    """It would take minutes and memory before weights are missed."""
    values = CONFIGS[name]
    family = families()[values["model_type"]]
    with pytest.raises(FormatError, match=says):
        config = config_from_json(family.Config, family.KEYS, {**values, key: 2049}, where="x")
        family.build(config, 64)


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("tiny-llama", "rms_norm_eps", 0.0), ("tiny-llama", "rms_norm_eps", 2.0**-41),
        ("tiny-llama", "rms_norm_eps", 1e30), ("tiny-gemma3", "attn_logit_softcapping", 0.0),
        ("tiny-gemma3", "final_logit_softcapping", -1.0), ("tiny-llama", "head_dim", 2**31 - 1),
        ("tiny-gemma3", "query_pre_attn_scalar", -1.0), ("tiny-llama", "rope_theta", "1"),
        ("tiny-gemma3", "query_pre_attn_scalar", 1e-300), ("tiny-llama", "hidden_act", "x"),
        ("tiny-llama", "partial_rotary_factor", 1.5), ("tiny-llama", "num_key_value_heads", 3),
    ],
)  # fmt: skip
def test_what_the_contract_does_not_define_fails_at_load(name, key, value):
    with pytest.raises(CortiqError):
        load_with(name, {key: value})


# --- folders --------------------------------------------------------------------------------

CONFIG = {
    "model_type": "llama", "vocab_size": 300, "hidden_size": 32, "intermediate_size": 64,
    "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "tie_word_embeddings": True,
}  # fmt: skip
LAYER = "model.layers.0."
SHAPES = {
    "model.embed_tokens.weight": (300, 32), "model.norm.weight": (32,),
    f"{LAYER}input_layernorm.weight": (32,), f"{LAYER}post_attention_layernorm.weight": (32,),
    f"{LAYER}self_attn.q_proj.weight": (32, 32), f"{LAYER}self_attn.k_proj.weight": (16, 32),
    f"{LAYER}self_attn.v_proj.weight": (16, 32), f"{LAYER}self_attn.o_proj.weight": (32, 32),
    f"{LAYER}mlp.gate_proj.weight": (64, 32), f"{LAYER}mlp.up_proj.weight": (64, 32),
    f"{LAYER}mlp.down_proj.weight": (32, 64),
}  # fmt: skip


def tokenizer_json():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = ["<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    engine = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(letters)}, merges=[]))
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder = decoders.ByteLevel()
    engine.add_special_tokens(["<s>", "</s>"])
    return json.loads(engine.to_str())


def bfloats(values):
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def write_folder(folder, tensors):
    """Tensors (name to bfloat16 words) with the small config and tokenizer."""
    table, data = {}, b""
    for name, words in tensors.items():
        span = [len(data), len(data) + words.nbytes]
        table[name] = {"dtype": "BF16", "shape": list(words.shape), "data_offsets": span}
        data += words.tobytes()
    head = json.dumps(table).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + data)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>"}))
    return folder


@pytest.fixture
def tensors():
    random = np.random.default_rng(3)
    return {n: bfloats(random.standard_normal(s) / np.sqrt(s[-1])) for n, s in SHAPES.items()}


@pytest.fixture
def folder(tmp_path, tensors):
    return write_folder(tmp_path, tensors)


def first_token(folder):
    with cortiq.load(str(folder)) as model:
        return model.generate("a", max_tokens=1).token_ids


def test_the_folder_is_a_model(folder):
    assert first_token(folder)


LOADS = [("reference", "f32"), ("reference", "w16"), ("cpu", "f32"), ("cpu", "w8")]


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("weight_format", ["f32", "w16"])
def test_a_server_never_starts_on_unsound_weights(
    backend, weight_format, tensors, tmp_path, monkeypatch, capsys
):
    started = []
    monkeypatch.setattr("cortiq.serve.start.serve_models", lambda *given: started.append(given))
    command = ["serve", str(tmp_path), "--backend", backend, "--weight-format", weight_format]
    write_folder(tmp_path, tensors)
    with pytest.raises(SystemExit) as ended:
        main(command)
    assert started and ended.value.code in (0, None)
    started.clear()
    tensors[f"{LAYER}mlp.down_proj.weight"][31, 63] = 0x7F80
    write_folder(tmp_path, tensors)
    with pytest.raises(SystemExit) as ended:
        main(command)
    assert ended.value.code == 2 and not started
    assert "down_proj.weight: row 31 holds inf" in capsys.readouterr().err


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("word", [0x7FC0, 0xFF80, 0x5F80])  # NaN, −infinity, 2⁶⁴
def test_a_value_no_weight_can_be_is_found_with_its_row(name, word, tensors, tmp_path, capsys):
    row = len(tensors[name]) - 1
    tensors[name][row] = word
    write_folder(tmp_path, tensors)
    row = 0 if tensors[name].ndim == 1 else row
    for backend, weight_format in LOADS:
        with pytest.raises(FormatError, match=f"{name}: row {row} holds"):
            cortiq.load(tmp_path, backend=backend, weight_format=weight_format)
    with pytest.raises(SystemExit) as ended:
        main(["inspect", str(tmp_path), "--check"])
    assert ended.value.code == 2 and f"row {row} holds" in capsys.readouterr().err


def test_rows_are_numbered_in_the_whole_tensor(tmp_path):
    """A product looks at tiles of a weight; the embedding at single rows."""
    from cortiq.numerics.dequantise import embedding_rows
    from cortiq.numerics.layouts import LAYOUTS, Weight, floats, unpack

    raw = np.zeros((5000, 34), np.uint8)
    raw[4321, :2] = 0xFF
    weight = Weight.from_bytes(LAYOUTS["Q8_0"], raw, (5000, 32))
    with pytest.raises(FormatError, match="row 4321 holds"):
        unpack(weight.rows(4000, 5000).rows(300, 400))
    with pytest.raises(FormatError, match="row 4321 holds"):
        embedding_rows(weight, np.array([1, 4321]))
    values = Weight.from_floats(np.array([[1.0], [np.nan]], np.float32))
    with pytest.raises(FormatError, match="row 1 holds nan"):
        floats(values.take(np.array([0, 1])).rows(1, 2))


@pytest.mark.parametrize(
    "changes",
    [
        {"model": {"type": "WordLevel", "vocab": {"z": 0}, "unk_token": "b"}},
        {"post_processor": {
            "type": "TemplateProcessing", "pair": [], "special_tokens": {},
            "single": [{"SpecialToken": {"id": "<zz>", "type_id": 0}}]}},
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
        {"pre_tokenizer": {"type": "Sequence"}}, {"decoder": 1}, {"model": None},
        {"model": tokenizer_json()["model"] | {"dropout": 0.5}},
    ],
    ids=str,
)  # fmt: skip
def test_whatever_a_tokenizer_makes_the_library_do_is_our_error(changes, folder):
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json() | changes))
    with pytest.raises(CortiqError):
        first_token(folder)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer_config.json", b'{"chat_template": [1]}'),
        ("tokenizer_config.json", b'{"chat_template": [{"name": 1}]}'),
        ("tokenizer_config.json", b"[" * 100_000), ("config.json", b"[" * 100_000),
        ("special_tokens_map.json", b'{"a":' + b"[" * 100_000), ("tokenizer.json", b"[" * 100_000),
        ("generation_config.json", b'{"eos_token_id": [[1]]}'), ("chat_template.jinja", b"\xff"),
        ("config.json", b'{"model_type": ["llama"]}'), ("tokenizer.json", b"\xff\xfe"),
    ],
)  # fmt: skip
def test_files_of_a_folder_that_are_not_what_they_should_be(name, content, folder):
    (folder / name).write_bytes(content)
    with pytest.raises(CortiqError):
        first_token(folder)


@pytest.mark.parametrize("how", ["loop", "folder", "pipe"])
@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
             "generation_config.json", "chat_template.jinja", "model.safetensors"],
)  # fmt: skip
def test_names_that_are_no_files_are_errors_not_absent(name, how, folder):
    path = folder / name
    path.unlink(missing_ok=True)
    make = {"loop": lambda: path.symlink_to(name), "folder": path.mkdir}
    make.get(how, lambda: os.mkfifo(path))()
    with pytest.raises(CortiqError):
        first_token(folder)


@pytest.mark.parametrize("value", [np.array([1, 2]), np.array([]), "x", 999, 0.5, -1, ["a"]])
@pytest.mark.parametrize("key", ["add_bos_token", "bos_token_id", "add_space_prefix", "scores"])
def test_tokenizer_metadata_of_other_kinds_is_refused(key, value):
    from cortiq.tokenizer import Tokenizer

    tokens = ["<unk>", "<s>", *[f"<0x{byte:02X}>" for byte in range(256)]]
    given = {"model": "llama", "tokens": tokens, "token_type": [2, 3, *[6] * 256]}
    given |= {"scores": [0.0] * len(tokens), key: value}
    with pytest.raises(TokenizerError, match=key):
        Tokenizer.from_gguf({f"tokenizer.ggml.{name}": v for name, v in given.items()})
