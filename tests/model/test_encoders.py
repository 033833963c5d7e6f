"""Encoders against transformers in double, on every backend, and as the server offers them."""

from __future__ import annotations

import json
import re
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("transformers")

import numpy as np
import torch
import transformers
from encoder_folders import CASES, COMMON, ideal_rows, nomic_name, written
from installed import backends
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors

import cortiq
from cortiq.backend import CompileOptions, Named
from cortiq.errors import FormatError, RequestError, UnsupportedError
from cortiq.explain.observed import open_observed
from cortiq.formats.checkpoint import open_checkpoint
from cortiq.model.embed import encoded_rows
from cortiq.model.rerank import AFTER, BEFORE, INSTRUCTION
from cortiq.models import load_program
from cortiq.plugins import default_plugins
from cortiq.tokenizer.frames import FramedText

sys.path.append(str(Path(__file__).parents[1] / "pure"))
TOLERANCE, BITES = 1e-5, 3e-4
TOKENS = 40
MOVES = {
    "bert": ({"layer_norm_eps": 0.021}, {"hidden_act": "relu"}),
    "roberta": ({"pad_token_id": 2},),
    "nomic": (
        {"layer_norm_eps": 0.021}, {"hidden_act": "gelu"},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 600.0}},
    ),
    "modernbert": (
        {"local_attention": 12}, {"norm_eps": 0.021}, {"layer_types": ["full_attention"] * 5},
        {"hidden_activation": "silu"},
    ),
}  # fmt: skip


def ids_of(count=TOKENS):
    return np.random.default_rng(1).integers(5, 90, count).tolist()


def halves(count=TOKENS):
    return [0] * (count // 2) + [1] * (count - count // 2)


def ideal(folder, want):
    return ideal_rows(folder, ids_of(), want, halves())


def expected(model, name):
    with_types = "modernbert" not in name
    kinds = torch.tensor([halves()])
    if with_types:
        kinds = kinds.clamp(max=model.config.type_vocab_size - 1)
    with torch.no_grad():
        out = model(torch.tensor([ids_of()]), **{"token_type_ids": kinds} if with_types else {})
    return (out.logits if "logits" in out else out.last_hidden_state[0]).numpy()


@pytest.mark.parametrize("name", CASES)
def test_the_graph_is_transformers_model(tmp_path, name):
    model = written(tmp_path, name)
    wanted = expected(model, name)
    classifies = len(wanted) == 1
    made = ideal(tmp_path, "scores" if classifies else "hidden")
    made = made[:1] if classifies else made
    assert np.abs(made - wanted).max() < TOLERANCE * np.abs(wanted).max()


@pytest.mark.parametrize(("name", "change"), [(n, c) for n, all_ in MOVES.items() for c in all_])
def test_an_option_of_the_config_moves_the_rows(tmp_path, name, change):
    written(tmp_path, name)
    before = ideal(tmp_path, "hidden")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    assert np.abs(ideal(tmp_path, "hidden") - before).max() > BITES * np.abs(before).max()


PUBLISHED = {
    "model_type": "nomic_bert", "architectures": ["NomicBertModel"],
    "activation_function": "swiglu", "causal": False, "layer_norm_epsilon": 0.02,
    "mlp_fc1_bias": False, "n_embd": 48, "n_head": 4,
    "n_inner": 80, "n_layer": 3, "n_positions": 64, "prenorm": False, "rotary_emb_base": 500,
    "rotary_emb_fraction": 1.0, "rotary_scaling_factor": None, "type_vocab_size": 2,
    "vocab_size": 96,
}  # fmt: skip


def test_nomics_own_files_are_those_of_transformers(tmp_path):
    """One matrix of queries, keys and values, and other names of keys and tensors."""
    written(tmp_path, "nomic")
    wanted, file = ideal(tmp_path, "hidden"), tmp_path / "model.safetensors"
    held, parts = {}, {}
    for name, values in load_file(file).items():
        if (match := re.search(r"(layers\.\d+)\.self_attn\.([qkv])_proj", name)) is not None:
            parts.setdefault(f"encoder.{match[1]}.attn.Wqkv.weight", {})[match[2]] = values
        else:
            held[nomic_name(name).replace("embeddings.LayerNorm", "emb_ln")] = values
    held |= {name: np.concatenate([found[r] for r in "qkv"]) for name, found in parts.items()}
    save_file(held, file)
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED))
    assert np.array_equal(ideal(tmp_path, "hidden"), wanted)
    for key, value in (("rotary_scaling_factor", 2), ("activation_function", "gelu")):
        (tmp_path / "config.json").write_text(json.dumps(PUBLISHED | {key: value}))
        with pytest.raises(UnsupportedError, match=key):
            load_program(open_checkpoint(tmp_path))


def test_what_is_not_supported_is_refused(tmp_path):
    written(tmp_path, "bert")
    config = json.loads((tmp_path / "config.json").read_text())
    for change, kind in (
        ({"position_embedding_type": "relative_key"}, UnsupportedError),
        ({"is_decoder": True}, UnsupportedError), ({"type_vocab_size": 3}, FormatError),
        ({"architectures": ["BertForSequenceClassification"]}, FormatError),
    ):  # fmt: skip
        (tmp_path / "config.json").write_text(json.dumps(config | change))
        with pytest.raises(kind):
            load_program(open_checkpoint(tmp_path))


BACKENDS = [name for name in backends() if name in ("cpu", "torch", "mlx")]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["bert classifier", "modernbert classifier"])
def test_every_backend_has_the_references_bits(tmp_path, backend, name):
    """More rows than a chunk, and three tiles."""
    long = {"max_position_embeddings": 300} if name.startswith("bert") else {}
    written(tmp_path, name, **long)
    loaded, made = load_program(open_checkpoint(tmp_path)), []
    for one in ("reference", backend):
        compiling = default_plugins().backends[one]
        executable = compiling.compile(loaded.program, loaded.weights, CompileOptions())
        for wants in ((Named("hidden"), Named("scores")), (Named("scores"),)):
            places = range(300) if len(wants) == 2 else range(1)
            asked = [wants if i in places else () for i in range(300)]
            text = FramedText(tuple(ids_of(300)), tuple(halves(300)))
            rows = encoded_rows(executable, text, asked)
            made.append([np.stack([row[want] for row in rows if row]) for want in wants])
        executable.close()
    first, few, again, less = made
    for one, other in ((first, again), (few, less)):
        assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
    assert np.array_equal(few[0][0], first[1][0]) and np.ptp(first[0]) > 0


def with_tokenizer(folder, single="[CLS] $A [SEP]"):
    """Words as tokens, in BERT's frame."""
    listed = [
        "[PAD]",
        "[CLS]",
        "[SEP]",
        "[UNK]",
        "what",
        "is",
        "paris",
        "a",
        "city",
        "dog",
        "it",
        "barks",
    ]
    words = {word: n for n, word in enumerate(listed)}
    engine = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    engine.pre_tokenizer = pre_tokenizers.Whitespace()
    engine.add_special_tokens(["[PAD]", "[CLS]", "[SEP]"])
    engine.post_processor = processors.TemplateProcessing(
        single=single, pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 1), ("[SEP]", 2)],
    )  # fmt: skip
    engine.save(str(folder / "tokenizer.json"))
    return transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))


def test_embeddings_pool_as_the_files_say(tmp_path):
    model, tokenizer = written(tmp_path, "bert"), with_tokenizer(tmp_path)
    encoded = tokenizer("what is paris", return_tensors="pt", return_token_type_ids=True)
    with torch.no_grad():
        rows = model(**encoded).last_hidden_state[0].numpy()
    wanted = {"mean": rows.mean(0), "cls": rows[0], "last": rows[-1]}
    with cortiq.load(str(tmp_path), backend="reference") as loaded:
        assert loaded.pooling() == "mean"
        for pooling, vector in wanted.items():
            made = loaded.embed("what is paris", pooling=pooling)
            np.testing.assert_allclose(made, vector / np.linalg.norm(vector), atol=1e-3)
        with pytest.raises(RequestError, match="encoder"):
            loaded.generate("what is")
        with pytest.raises(RequestError, match="no reranker"):
            loaded.rerank("what", ["paris"], method="classifier")
        with pytest.raises(RequestError, match="embeddings and reranking"):
            loaded.chat([{"role": "user", "content": "what is"}])
        near = loaded.rerank("what is", ["what is", "paris", "is what paris"])
        rows = loaded.embed(["what is", "paris", "is what paris"]).astype(np.float64)
        np.testing.assert_allclose(near, rows @ rows[0], atol=1e-6)
        assert near == loaded.rerank(
            "what is", ["what is", "paris", "is what paris"], method="cosine"
        )
        first = loaded.embed(["what is", "paris"], pooling="cls").astype(np.float64)
    with pytest.raises(RequestError, match="embeddings and reranking"):
        open_observed(str(tmp_path), backend="cpu")
    (tmp_path / "modules.json").write_text('[{"type": "a.Pooling", "path": "1_Pooling"}]')
    (tmp_path / "1_Pooling").mkdir()
    settings = tmp_path / "1_Pooling" / "config.json"
    settings.write_text('{"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false}')
    with cortiq.load(str(tmp_path), backend="cpu") as loaded:
        same = loaded.embed("what is paris", pooling="cls")
        assert loaded.pooling() == "cls" and np.array_equal(loaded.embed("what is paris"), same)
        (near,) = loaded.rerank("what is", ["paris"])
        assert abs(near - first[0] @ first[1]) < 1e-3
    settings.write_text('{"pooling_mode_min_tokens": true}')
    with pytest.raises(FormatError, match="pooling_mode_min_tokens"):
        cortiq.load(str(tmp_path), backend="cpu")


@pytest.mark.parametrize(
    ("name", "changes"),
    [("bert classifier", {}), ("modernbert classifier", {"classifier_pooling": "mean"})],
)
def test_a_cross_encoder_reranks(tmp_path, name, changes):
    model, tokenizer = written(tmp_path, name, num_labels=1, **changes), with_tokenizer(tmp_path)
    query, documents = "what is paris", ["a city", "it is a dog it barks a dog it barks"]
    wanted = []
    for document in documents:
        encoded = tokenizer(query, document, return_tensors="pt",
                            return_token_type_ids="modern" not in name)  # fmt: skip
        with torch.no_grad():
            wanted.append(torch.sigmoid(model(**encoded).logits)[0, 0].item())
    with cortiq.load(str(tmp_path), backend="cpu") as loaded:
        np.testing.assert_allclose(loaded.rerank(query, documents), wanted, atol=2e-3)


def test_a_classifier_of_several_labels_is_no_reranker(tmp_path):
    written(tmp_path, "bert classifier")
    with_tokenizer(tmp_path)
    with (
        cortiq.load(str(tmp_path), backend="cpu") as loaded,
        pytest.raises(RequestError, match="this classifier 3"),
    ):
        loaded.rerank("what", ["paris"])


def test_yes_or_no_is_asked_as_published():
    """On a synthetic model whose tokens are bytes, with words of one byte for yes and no."""
    with cortiq.load("synthetic:tiny-llama?seed=1", backend="reference") as loaded:
        with pytest.raises(RequestError, match="yes and no"):
            loaded.rerank("q", ["d"], method="yes-no")
        usual = loaded.tokenizer.encode
        loaded.tokenizer.encode = lambda text, **how: usual(
            {"yes": "y", "no": "n"}.get(text, text), **how
        )
        (made,) = loaded.rerank("q", ["d"], method="yes-no")
        text = f"{BEFORE}<Instruct>: {INSTRUCTION}\n<Query>: q\n<Document>: d{AFTER}"
        logits = loaded.logits(usual(text, add_bos=False))[-1].astype(np.float64)
        yes, no = logits[ord("y")], logits[ord("n")]
        assert made == pytest.approx(1 / (1 + np.exp(no - yes)), rel=1e-6)


def test_a_decoder_for_embeddings_ends_a_text_as_its_tokenizer_does(tmp_path):
    """Qwen3-Embedding: the last token, which the post-processor puts behind the text, is pooled."""
    torch.manual_seed(5)
    config = transformers.Qwen3Config(**COMMON, num_key_value_heads=2, head_dim=16)
    model = transformers.Qwen3ForCausalLM(config).eval()
    model.save_pretrained(tmp_path)
    tokenizer = with_tokenizer(tmp_path, single="$A [SEP]")
    (tmp_path / "modules.json").write_text('[{"type": "a.Pooling", "path": "1_Pooling"}]')
    (tmp_path / "1_Pooling").mkdir()
    settings = {"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(settings))
    encoded = tokenizer("what is paris", return_tensors="pt")
    assert encoded["input_ids"][0, -1] == 2
    with torch.no_grad():
        row = model.double().model(encoded["input_ids"]).last_hidden_state[0, -1].numpy()
    with cortiq.load(str(tmp_path), backend="cpu") as loaded:
        made = loaded.embed("what is paris")
        np.testing.assert_allclose(made, row / np.linalg.norm(row), atol=1e-3)
        assert loaded.pooling() == "last" and not np.array_equal(
            made, loaded.embed(loaded.ids("what is paris"))
        )


def test_the_server_embeds_and_reranks_as_python_does(tmp_path):
    folder = tmp_path / "ranker"
    written(folder, "bert classifier", num_labels=1)
    with_tokenizer(folder)
    query, documents = "what is paris", ["a city", "it is a dog"]

    def asked(path, **body):
        given = json.dumps({"model": "ranker", **body}).encode()
        try:
            with urllib.request.urlopen(urllib.request.Request(server.url + path, given)) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            said = json.load(error)["error"]
            return said if path.startswith("/api") else said["message"]

    from serving import Server

    server = Server(str(folder), "--threads", "1")
    try:
        ranked = asked("/v1/rerank", query=query, documents=documents)
        vectors = asked("/v1/embeddings", input=documents)
        refused = asked("/v1/rerank", query=query, documents=documents, method="yes-no")
        drawn = asked("/v1/completions", prompt="what", max_tokens=1)
        older, unit = asked("/api/embeddings", prompt="a city"), asked("/api/embed", input="a city")
        near = asked("/v1/rerank", query=query, documents=documents, method="cosine")
        wrong = asked("/api/embeddings", input="a city")
    finally:
        server.stop()
    with cortiq.load(str(folder), backend="cpu") as loaded:
        scores, embedded = loaded.rerank(query, documents), loaded.embed(documents)
        cosines = loaded.rerank(query, documents, method="cosine")
        raw = loaded.embed("a city", normalise=False).tolist()
    made = {one["index"]: one["relevance_score"] for one in ranked["results"]}
    assert ranked["method"] == "classifier" and made == dict(enumerate(scores))
    assert vectors["pooling"] == "mean" and ranked["usage"]["total_tokens"] == 18
    assert [one["embedding"] for one in vectors["data"]] == embedded.tolist()
    assert older["embedding"] == raw and unit["embeddings"] == [embedded[0].tolist()]
    assert "prompt" in wrong and near["method"] == "cosine" and near["usage"]["total_tokens"] == 15
    made = {one["index"]: one["relevance_score"] for one in near["results"]}
    assert made == dict(enumerate(cosines))
    assert "no reranker" in refused and "ranker:" not in refused and "encoder" in drawn


TEXTS = (
    "Paris is the capital of France.", "The cat sat on the mat, purring; 3.14 naïve façade!",
    "How do I reverse a list in Python? " * 12,
)  # fmt: skip


def test_minilm_embeds_as_sentence_transformers_does(minilm_path):
    """Its documented steps in double: mean of the rows of all tokens, scaled to length 1."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm_path)
    model = transformers.AutoModel.from_pretrained(minilm_path).double().eval()
    with cortiq.load("minilm", backend="cpu") as loaded:
        made = loaded.embed(list(TEXTS))
        short = loaded.embed(TEXTS[0])
        for text, vector in zip(TEXTS, made, strict=True):
            encoded = tokenizer(text, return_tensors="pt", truncation=False)
            assert list(loaded.tokenizer.framed(text).ids) == encoded["input_ids"][0].tolist()
            with torch.no_grad():
                mean = model(**encoded).last_hidden_state[0].mean(0).numpy()
            assert np.abs(vector - mean / np.linalg.norm(mean)).max() < 1e-4
    with cortiq.load("minilm", backend="reference") as loaded:
        assert np.array_equal(loaded.embed(TEXTS[0]), short)
