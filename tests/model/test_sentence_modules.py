"""Modules of sentence-transformers, EmbeddingGemma and bidirectional Llama, against torch in double
and on every backend.
"""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("transformers")
pytest.importorskip("gguf")

import gguf_files
import numpy as np
import torch
import transformers
from encoder_folders import ideal_rows
from installed import backends
from safetensors.torch import save_file
from test_encoders import with_tokenizer

import cortiq
from cortiq.convert.run import convert_model
from cortiq.errors import CortiqError, FormatError, RequestError, UnsupportedError
from cortiq.formats.checkpoint import open_checkpoint
from cortiq.model.pooling import POOLINGS, places_of
from cortiq.model.pooling import pooled as own_pooled
from cortiq.models import load_program
from cortiq_reference.ideal import evaluate

sys.path.append(str(Path(__file__).parents[1] / "pure"))
from serving import Server

TOLERANCE = 1e-5
IDS = np.random.default_rng(1).integers(5, 90, 40).tolist()
WIDTH, INNER, OUT = 48, 80, 24
TEXT = "what is paris a city it is a dog"
GEMMA = {
    "vocab_size": 96, "hidden_size": WIDTH, "intermediate_size": 80, "num_hidden_layers": 7,
    "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 16, "rms_norm_eps": 0.02,
    "max_position_embeddings": 128, "query_pre_attn_scalar": 16, "sliding_window": 10,
    "use_bidirectional_attention": True,
}  # fmt: skip
MODES = {
    "cls": "cls_token", "last": "lasttoken", "max": "max_tokens", "mean": "mean_tokens",
    "weightedmean": "weightedmean_tokens", "mean_sqrt_len": "mean_sqrt_len_tokens",
}  # fmt: skip


def shaken(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.float().eval()


def gemma(folder, **changes):
    """EmbeddingGemma's folder, and transformers' model in double."""
    torch.manual_seed(3)
    config = transformers.Gemma3TextConfig(**GEMMA | changes)
    model = shaken(transformers.Gemma3TextModel(config))
    model.save_pretrained(folder)
    return model.double()


def bidirectional_llama(folder):
    """Llama's folder under the name of its bidirectional kind, and the model in double."""
    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        vocab_size=96, hidden_size=WIDTH, intermediate_size=80, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=0.02,
        max_position_embeddings=128,
    )  # fmt: skip
    model = shaken(transformers.LlamaModel(config))
    model.save_pretrained(folder)
    stated = json.loads((folder / "config.json").read_text())
    stated |= {"model_type": "llama_bidirec", "architectures": ["LlamaBidirectionalModel"]}
    (folder / "config.json").write_text(json.dumps(stated | {"pooling": "avg"}))
    return model.double()


def rows_of(model, ids, **given):
    with torch.no_grad():
        return model(torch.tensor([ids]), **given).last_hidden_state[0]


def everything_seen(count):
    """A mask that hides nothing."""
    return {"attention_mask": torch.zeros(1, 1, count, count, dtype=torch.float64)}


def put(folder, name, config, tensors=None):
    (folder / name).mkdir(exist_ok=True)
    (folder / name / "config.json").write_text(json.dumps(config))
    if tensors is not None:
        save_file({k: v.float().contiguous() for k, v in tensors.items()},
                  folder / name / "model.safetensors")  # fmt: skip


def listed(folder, *modules):
    names = [("Transformer", ""), *modules]
    listed = [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for n, (kind, path) in enumerate(names)
    ]
    (folder / "modules.json").write_text(json.dumps(listed))


def with_modules(folder, mode="mean", act="Identity", biased=False):
    """EmbeddingGemma's modules, and what they make of rows, in double."""
    torch.manual_seed(4)
    first = torch.nn.Linear(WIDTH, INNER, biased).double()
    second = torch.nn.Linear(INNER, OUT, biased).double()
    keys = {f"pooling_mode_{name}": name == MODES[mode] for name in MODES.values()}
    put(folder, "1_Pooling", {"word_embedding_dimension": WIDTH, **keys, "include_prompt": True})
    for name, linear in (("2_Dense", first), ("3_Dense", second)):
        linear.float().double()
        config = {
            "in_features": linear.in_features, "out_features": linear.out_features,
            "bias": biased, "activation_function": f"torch.nn.modules.x.{act}",
        }  # fmt: skip
        tensors = {f"linear.{k}": v for k, v in linear.state_dict().items()}
        put(folder, name, config, tensors)
    parts = [("Pooling", "1_Pooling"), ("Dense", "2_Dense"), ("Dense", "3_Dense")]
    listed(folder, *parts, ("Normalize", "4_Normalize"))
    function = {"Identity": lambda x: x, "Tanh": torch.tanh, "GELU": torch.nn.functional.gelu}[act]
    return lambda row: function(second(function(first(row))))


def pooled(rows, mode):
    """Poolings as sentence-transformers documents them."""
    count = len(rows)
    weights = torch.arange(1, count + 1, dtype=rows.dtype)[:, None]
    return {
        "cls": rows[0], "last": rows[-1], "max": rows.max(0).values, "mean": rows.mean(0),
        "mean_sqrt_len": rows.sum(0) / count**0.5,
        "weightedmean": (rows * weights).sum(0) / weights.sum(),
    }[mode]  # fmt: skip


def ideal_vector(path, row):
    """The entry of the steps in float64, of a pooled row."""
    loaded = load_program(open_checkpoint(path), weight_format="f32")
    inputs = {"pooled": row.numpy()[None]}
    made = evaluate(loaded.program, loaded.weights, [0], ["sentence"], "sentence", inputs)
    return made["sentence"][0]


def distance(made, wanted):
    return np.abs(made - np.asarray(wanted)).max() / np.abs(np.asarray(wanted)).max()


@pytest.mark.parametrize("window", [10, 11, 2, 200])
def test_rows_of_embedding_gemma_see_both_sides(tmp_path, window):
    wanted = rows_of(gemma(tmp_path, sliding_window=window), IDS)
    assert distance(ideal_rows(tmp_path, IDS), wanted) < TOLERANCE


def test_rows_of_a_bidirectional_llama_see_both_sides(tmp_path):
    model = bidirectional_llama(tmp_path)
    made = ideal_rows(tmp_path, IDS)
    assert distance(made, rows_of(model, IDS, **everything_seen(len(IDS)))) < TOLERANCE
    assert distance(made, rows_of(model, IDS)) > 0.01


@pytest.mark.parametrize(("act", "biased"), [("Identity", False), ("Tanh", True), ("GELU", True)])
def test_dense_modules_are_torchs_in_double(tmp_path, act, biased):
    rows = rows_of(gemma(tmp_path), IDS)
    steps = with_modules(tmp_path, act=act, biased=biased)
    with torch.no_grad():
        wanted = steps(rows.mean(0)).numpy()
    assert wanted.shape == (OUT,)
    assert distance(ideal_vector(tmp_path, rows.mean(0)), wanted) < TOLERANCE


@pytest.mark.parametrize("mode", MODES)
def test_vectors_are_those_of_the_modules(tmp_path, mode):
    """From a text to a vector; what is left is the contract's own rounding of rows."""
    model, steps = gemma(tmp_path), with_modules(tmp_path, mode)
    ids = with_tokenizer(tmp_path)(TEXT)["input_ids"]
    with torch.no_grad():
        wanted = steps(pooled(rows_of(model, ids), mode)).numpy()
    with cortiq.load(str(tmp_path), backend="cpu", weight_format="f32") as loaded:
        made = loaded.embed(TEXT)
        raw = loaded.embed(TEXT, normalise=False)
        assert loaded.pooling() == mode and set(MODES) == set(POOLINGS)
        assert distance(raw, wanted) < 1e-3
        assert distance(made, wanted / np.linalg.norm(wanted)) < 1e-3


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("count", [1, 7, 600])
def test_poolings_are_those_of_sentence_transformers(mode, count):
    """One row, few, and more than the lanes of a sum."""
    rows = np.random.default_rng(2).normal(size=(count, 33)).astype(np.float32)
    rows[:, 0] = [-0.0, 0.0][count % 2]
    faults = np.zeros(1, bool)
    made = own_pooled(rows[places_of(mode, count)], mode, faults)
    assert distance(made, pooled(torch.from_numpy(rows).double(), mode)) < 1e-6
    assert not faults[0] and (mode in ("cls", "last") or not np.signbit(made[0]))


BACKENDS = [name for name in backends() if name in ("cpu", "torch", "mlx")]


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend_has_the_references_vectors(tmp_path, backend):
    gemma(tmp_path)
    with_modules(tmp_path, "weightedmean", "Tanh", True)
    with_tokenizer(tmp_path)
    made = []
    for name in ("reference", backend):
        with cortiq.load(str(tmp_path), backend=name) as loaded:
            made.append(loaded.embed([TEXT, "a dog"]))
    assert np.array_equal(*made) and np.ptp(made[0]) > 0


def test_the_first_dimensions_are_kept_and_scaled(tmp_path):
    gemma(tmp_path, num_hidden_layers=1)
    with_modules(tmp_path)
    with_tokenizer(tmp_path)
    with cortiq.load(str(tmp_path), backend="cpu") as loaded:
        raw = loaded.embed(TEXT, normalise=False)
        short = loaded.embed(TEXT, dimensions=7)
        assert short.shape == (7,) and np.array_equal(
            loaded.embed(TEXT, dimensions=7, normalise=False), raw[:7]
        )
        np.testing.assert_allclose(short, raw[:7] / np.linalg.norm(raw[:7]), rtol=1e-6)
        with pytest.raises(RequestError, match=f"vectors have {OUT}"):
            loaded.embed(TEXT, dimensions=OUT + 1)


def check_served(server, name, asked, plain):
    """Check fields of `/v1/embeddings` with vectors of a text after the usual prompt and alone."""

    def post(**fields):
        body = json.dumps({"model": name, "input": "a dog", **fields}).encode()
        try:
            with urllib.request.urlopen(f"{server.url}/v1/embeddings", body) as answer:
                return np.float32(json.load(answer)["data"][0]["embedding"])
        except urllib.error.HTTPError as error:
            said = json.load(error)["error"]
            return error.code, said["param"], said["message"]

    for fields, vector in (
        ({}, asked),
        ({"prompt_name": "query"}, asked),
        ({"prompt_name": ""}, plain),
        ({"prompt_name": "document"}, plain),
    ):
        assert np.array_equal(post(**fields), vector)  # fmt: skip
    whole = post(normalise=False)
    assert np.array_equal(post(normalise=False, dimensions=7), whole[:7])
    short = whole[:7] / np.linalg.norm(whole[:7].astype(np.float64))
    np.testing.assert_allclose(post(dimensions=7), short, rtol=1e-6)
    for fields, words in (
        ({"prompt_name": "qurey"}, "query, document"), ({"prompt_name": 5}, "a string"),
        ({"dimensions": OUT + 1}, f"1 to {OUT}"), ({"dimensions": 0}, "an integer from 1"),
        ({"dimensions": "7"}, "an integer from 1"),
    ):  # fmt: skip
        status, param, message = post(**fields)
        assert (status, param) == (400, *fields) and words in message


def test_prompts_go_before_texts(tmp_path):
    gemma(tmp_path, num_hidden_layers=1)
    with_modules(tmp_path)
    with_tokenizer(tmp_path)
    said = {"prompts": {"query": "what is ", "document": "", "none": None}}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(said))
    with cortiq.load(str(tmp_path), backend="cpu") as loaded:
        plain = loaded.embed("a dog")
        asked = loaded.embed("a dog", prompt_name="query")
        assert np.array_equal(asked, loaded.embed("what is a dog"))
        assert not np.array_equal(asked, plain)
        assert np.array_equal(plain, loaded.embed("a dog", prompt_name="document"))
        for given, name, words in (("a", "qurey", "query, document"), ([5], "query", "ids")):
            with pytest.raises(RequestError, match=words):
                loaded.embed(given, prompt_name=name)
    usual = said | {"default_prompt_name": "query"}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(usual))
    server = Server(str(tmp_path), "--threads", "1", "--backend", "cpu")
    try:
        check_served(server, tmp_path.name, asked, plain)
    finally:
        server.stop()
    with cortiq.load(str(tmp_path), backend="cpu") as loaded:
        assert np.array_equal(loaded.embed("a dog"), asked)
        assert np.array_equal(loaded.embed("a dog", prompt_name=""), plain)


def test_a_norm_and_a_scaling_between_are_steps(tmp_path):
    rows = rows_of(gemma(tmp_path, num_hidden_layers=1), IDS)
    steps = with_modules(tmp_path)
    norm = torch.nn.LayerNorm(WIDTH).double()
    with torch.no_grad():
        norm.weight.add_(torch.arange(WIDTH) / 100)
        norm.float().double()
        unit = torch.nn.functional.normalize(rows.mean(0), dim=0)
        wanted = steps(norm(unit)).numpy()
    tensors = {f"norm.{k}": v for k, v in norm.state_dict().items()}
    put(tmp_path, "2_Norm", {"dimension": WIDTH}, tensors)
    listed(
        tmp_path, ("Pooling", "1_Pooling"), ("Normalize", ""), ("LayerNorm", "2_Norm"),
        ("Dense", "2_Dense"), ("Dense", "3_Dense"), ("Dropout", "5_Dropout"),
    )  # fmt: skip
    assert distance(ideal_vector(tmp_path, rows.mean(0)), wanted) < TOLERANCE


POOLING, FIRST = ("Pooling", "1_Pooling"), ("Dense", "2_Dense")


@pytest.mark.parametrize(
    ("modules", "error", "words"),
    [
        ([POOLING, ("WordWeights", "2_Dense")], UnsupportedError, "the module 'WordWeights'"),
        ([("Pooling", "../1_Pooling")], FormatError, "no plain name"),
        ([POOLING, ("Dense", "..")], FormatError, "no plain name"),
        ([POOLING, ("Dense", "/etc")], FormatError, "no plain name"),
        ([POOLING, ("Dense", "")], FormatError, "Dense in no folder"),
        ([POOLING, ("Dense", "3_Dense")], FormatError, "takes 80 values, but is given 48"),
        ([POOLING, FIRST, FIRST], FormatError, "takes 48 values, but is given 80"),
        ([POOLING, ("Dense", "9_Dense")], FormatError, "missing"),
        ([FIRST], UnsupportedError, "before any Pooling"),
        ([POOLING, FIRST, POOLING], FormatError, "after other steps"),
        ([POOLING] * 40, FormatError, "1 to 32"),
    ],
)
def test_lists_of_modules_are_checked(tmp_path, modules, error, words):
    gemma(tmp_path, num_hidden_layers=1)
    with_modules(tmp_path)
    listed(tmp_path, *modules)
    with pytest.raises(error, match=words):
        load_program(open_checkpoint(tmp_path))


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"activation_function": "my.Snake"}, UnsupportedError, "my.Snake"),
        ({"activation_function": None}, UnsupportedError, "activation_function"),
        ({"bias": True}, FormatError, "2_Dense.linear.bias"),
        ({"bias": 1}, FormatError, "bias is 1"),
        ({"out_features": 1 << 40}, FormatError, "out_features"),
        ({"out_features": 79}, FormatError, "2_Dense.linear.weight|3_Dense"),
        ({"in_features": True}, FormatError, "in_features"),
        ({"use_residual": True}, UnsupportedError, "use_residual"),
        ({"module_input_name": "token_embeddings"}, UnsupportedError, "module_input_name"),
        ({"gain": 2}, UnsupportedError, "gain"),
    ],
)
def test_a_dense_modules_settings_are_checked(tmp_path, change, error, words):
    gemma(tmp_path, num_hidden_layers=1)
    with_modules(tmp_path)
    file = tmp_path / "2_Dense" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(error, match=words):
        load_program(open_checkpoint(tmp_path))


def test_pickled_modules_are_refused(tmp_path):
    gemma(tmp_path, num_hidden_layers=1)
    with_modules(tmp_path)
    file = tmp_path / "2_Dense" / "model.safetensors"
    file.rename(file.with_name("pytorch_model.bin"))
    with pytest.raises(UnsupportedError, match="pickled"):
        open_checkpoint(tmp_path)


def test_the_hash_of_a_model_covers_its_modules(tmp_path):
    gemma(tmp_path, num_hidden_layers=1)
    with_modules(tmp_path)
    found = {open_checkpoint(tmp_path).model_hash()}
    file = tmp_path / "2_Dense" / "config.json"
    file.write_text(file.read_text().replace("Identity", "Tanh"))
    found.add(open_checkpoint(tmp_path).model_hash())
    file = tmp_path / "3_Dense" / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    found.add(open_checkpoint(tmp_path).model_hash())
    assert len(found) == 3


def gemma_file(path, folder, change=lambda values, tensors: None):
    """The folder's model as llama.cpp's converter writes it, dense modules included."""
    from safetensors.numpy import load_file

    config = json.loads((folder / "config.json").read_text())
    names = gguf_files.name_map("gemma-embedding", config["num_hidden_layers"])
    tensors = {}
    for name, values in load_file(folder / "model.safetensors").items():
        values = values + np.float32(name.endswith("norm.weight"))
        tensors[names.get_name(f"model.{name}", try_suffixes=(".weight",))] = values
    for name in ("dense_2", "dense_3"):
        file = folder / f"{name[-1]}_Dense" / "model.safetensors"
        tensors[f"{name}.weight"] = load_file(file)["linear.weight"]
    full = config["rope_parameters"]["full_attention"]["rope_theta"]
    values = {
        "context_length": 128, "embedding_length": WIDTH, "feed_forward_length": 80,
        "block_count": config["num_hidden_layers"], "attention.head_count": 4,
        "attention.head_count_kv": 1, "attention.key_length": 16, "attention.value_length": 16,
        "attention.layer_norm_rms_epsilon": 0.02, "rope.freq_base": full,
        "attention.sliding_window": config["sliding_window"], "pooling_type": 1,
        "dense_2_feat_in": WIDTH, "dense_2_feat_out": INNER, "dense_3_feat_in": INNER,
        "dense_3_feat_out": OUT,
    }  # fmt: skip
    change(values, tensors)
    gguf_files.emit(path, "gemma-embedding", values, tensors)


def test_a_file_of_embedding_gemma_has_the_vectors_of_its_folder(tmp_path):
    folder, file = tmp_path / "folder", tmp_path / "model.gguf"
    model = gemma(folder)
    with_modules(folder)
    gemma_file(file, folder)
    found, wanted = ideal_rows(file, IDS), ideal_rows(folder, IDS)
    assert distance(found, wanted) < 1e-6
    row = rows_of(model, IDS).mean(0)
    assert distance(ideal_vector(file, row), ideal_vector(folder, row)) < 1e-12
    gemma_file(file, folder, lambda _, tensors: tensors.update({"dense_2.weight": np.ones(48)}))
    with pytest.raises(CortiqError, match="dense_2"):
        load_program(open_checkpoint(file))


def test_a_file_of_a_bidirectional_llama_has_the_rows_of_its_folder(tmp_path):
    folder, file = tmp_path / "folder", tmp_path / "model.gguf"
    bidirectional_llama(folder)
    how = gguf_files.GGUF("llama-embed", permuted=True)
    prefixed(folder)
    gguf_files.write_gguf(file, folder, how)
    assert distance(ideal_rows(file, IDS), ideal_rows(folder, IDS)) < 1e-6


def prefixed(folder):
    """Give tensors the prefix that the converter gives them."""
    from safetensors.numpy import load_file
    from safetensors.numpy import save_file as save

    file = folder / "model.safetensors"
    save({f"model.{name}": values for name, values in load_file(file).items()}, file)


def test_a_converted_folder_has_the_vectors_of_its_source(tmp_path):
    source, out = tmp_path / "source", tmp_path / "out"
    gemma(source, num_hidden_layers=1)
    with_modules(source, "max", "Tanh", True)
    with_tokenizer(source)
    said = {"prompts": {"query": "what is "}, "default_prompt_name": "query"}
    (source / "config_sentence_transformers.json").write_text(json.dumps(said))
    convert_model(str(source), out, "w16")
    made = []
    for folder in (source, out):
        with cortiq.load(str(folder), backend="cpu") as loaded:
            assert loaded.pooling() == "max"
            made.append(loaded.embed("a dog"))
    assert np.array_equal(*made)
