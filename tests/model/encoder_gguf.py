"""GGUF files of tiny encoders, written by the `gguf` package in llama.cpp's conventions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf_files
import numpy as np
from encoder_folders import nomic_name
from safetensors.numpy import load_file

from cortiq.formats.checkpoint import open_checkpoint

ARCHITECTURES: Mapping[str, str] = {
    "bert": "bert", "roberta": "bert", "xlm-roberta": "bert", "modernbert": "modern-bert",
    "nomic_bert": "nomic-bert",
}  # fmt: skip
POOLED = {"mean": 1, "cls": 2}
DROPPED = ("pooler.", "cls.", "lm_head.", "decoder.", "embeddings.position_ids")
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PIECES = [
    *SPECIAL, "paris", "is", "a", "city", "##s", "##ity", "c", "un", "##believ", "##able", "!",
    "的", "naive", "caf", "##e", "[unused1]", "Paris", "é",
]  # fmt: skip
SENTENCE = ["<s>", "<pad>", "</s>", "<unk>", "▁paris", "▁is", "▁a", "▁ci", "ty", "▁", *"abcdeip"]
SCORES = [0.0] * 4 + [-3.0, -2.5, -2.0, -4.0, -3.5, -1.0] + [-5.0] * 7
TEXTS = ["Paris is a citys!", "Unbelievable  naïve 的的 café zz", "[unused1] a", " a  paris "]
Change = Callable[[dict[str, Any], dict[str, np.ndarray]], None]


def encoder_values(config: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata as the converter writes it."""
    shift = 1 + config["pad_token_id"] if "roberta" in config["model_type"] else 0
    values: dict[str, Any] = {
        "context_length": config["max_position_embeddings"] - shift,
        "embedding_length": config["hidden_size"], "block_count": config["num_hidden_layers"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"], "attention.causal": False,
    }  # fmt: skip
    if config["model_type"] != "modernbert":
        rope = config.get("rope_parameters") or {}
        return values | {
            "attention.layer_norm_epsilon": config["layer_norm_eps"],
            "rope.freq_base": rope.get("rope_theta"),
            "tokenizer.ggml.token_type_count": config["type_vocab_size"],
        }
    rope = config["rope_parameters"]
    return values | {
        "attention.layer_norm_epsilon": config["norm_eps"],
        "attention.layer_norm_rms_epsilon": config["norm_eps"],
        "attention.sliding_window": config["local_attention"],
        "attention.sliding_window_pattern": 3,
        "rope.freq_base": rope["full_attention"]["rope_theta"],
        "rope.freq_base_swa": rope["sliding_attention"]["rope_theta"], "rope.scaling.type": "none",
        "vocab_size": config["vocab_size"], "hidden_activation": config["hidden_activation"],
        "classifier.pooling_type": POOLED[config["classifier_pooling"]],
    }  # fmt: skip


def encoder_tensors(folder: Path, config: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Tensors by GGUF name; positions of RoBERTa begin with the first row of a text."""
    kind = config["model_type"]
    names = gguf_files.name_map(ARCHITECTURES[kind], config["num_hidden_layers"])
    tensors, parts = {}, {}
    for name, values in load_file(folder / "model.safetensors").items():
        for prefix in ("bert.", "roberta.", "model."):
            name = name.removeprefix(prefix)
        if name.startswith(DROPPED):
            continue
        if "roberta" in kind and name == "embeddings.position_embeddings.weight":
            values = values[1 + config["pad_token_id"] :]
        if kind == "nomic_bert" and re.search("[qkv]_proj", name):
            layer = name.split(".")[-4]  # the authors' files have one matrix of the three
            parts.setdefault(f"blk.{layer}.attn_qkv.weight", {})[name.split(".")[-2]] = values
            continue
        if name.startswith("classifier.") and name.count(".") == 1:
            name = name.replace("classifier.", "classifier.out_proj.")
        mapped = names.get_name(nomic_name(name), try_suffixes=(".weight", ".bias"))
        tensors[mapped] = values
    stacked = {name: [found[f"{r}_proj"] for r in "qkv"] for name, found in parts.items()}
    return tensors | {name: np.concatenate(found) for name, found in stacked.items()}


def word_pieces(pieces: Sequence[str], special: Sequence[str]) -> dict[str, Any]:
    """Metadata of BERT's vocabulary, as the converter writes it: first pieces begin with ▁."""
    texts = [
        piece if piece in special else piece[2:] if piece.startswith("##") else f"▁{piece}"
        for piece in pieces
    ]
    ids = {"bos": "[CLS]", "eos": "[SEP]", "seperator": "[SEP]", "unknown": "[UNK]"}
    return {
        "tokenizer.ggml.model": "bert", "tokenizer.ggml.pre": "jina-v2-en",
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.token_type": [3 if piece in special else 1 for piece in pieces],
        **{f"tokenizer.ggml.{name}_token_id": pieces.index(text) for name, text in ids.items()},
    }  # fmt: skip


def sentence_pieces(pieces: Sequence[str], scores: Sequence[float]) -> dict[str, Any]:
    """Metadata of XLM-R's Unigram, whose first pieces are `<s>`, `<pad>`, `</s>`, `<unk>`."""
    types = [3, 3, 3, 2] + [1] * (len(pieces) - 4)
    ids = {"bos": 0, "eos": 2, "seperator": 2, "unknown": 3, "padding": 1}
    return {
        "tokenizer.ggml.model": "t5", "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": list(pieces), "tokenizer.ggml.scores": list(scores),
        "tokenizer.ggml.token_type": types, "tokenizer.ggml.add_space_prefix": True,
        "tokenizer.ggml.remove_extra_whitespaces": True,
        **{f"tokenizer.ggml.add_{name}_token": True for name in ("bos", "eos", "sep")},
        **{f"tokenizer.ggml.{name}_token_id": token for name, token in ids.items()},
    }  # fmt: skip


def write_encoder(path: Path, folder: Path, change: Change | None = None) -> None:
    """Write the folder's model in F32; `change` edits metadata and tensors before that.

    Metadata of a tokenizer have their whole keys.
    """
    config = dict(open_checkpoint(folder).config)
    values, tensors = encoder_values(config), encoder_tensors(folder, config)
    if change:
        change(values, tensors)
    gguf_files.emit(path, ARCHITECTURES[config["model_type"]], values, tensors)
