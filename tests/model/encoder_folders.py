"""Tiny random encoders as transformers saves them."""

from __future__ import annotations

import re

import numpy as np
import torch
import transformers

from cortiq.formats.checkpoint import open_checkpoint
from cortiq.models import load_program
from cortiq_reference.ideal import evaluate

COMMON = {
    "vocab_size": 96, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3,
    "num_attention_heads": 4,
}  # fmt: skip
BERT = {**COMMON, "max_position_embeddings": 64, "layer_norm_eps": 0.02}
ROBERTA = {**BERT, "type_vocab_size": 1, "pad_token_id": 1}
MODERN = {
    **COMMON, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2, "cls_token_id": 2,
    "sep_token_id": 1, "local_attention": 14, "num_hidden_layers": 5, "norm_eps": 0.02,
    "max_position_embeddings": 512,
}  # fmt: skip
BIASED = {"norm_bias": True, "attention_bias": True, "mlp_bias": True, "classifier_bias": True}
CASES = {
    "bert": ("Bert", "Model", BERT),
    "bert classifier": ("Bert", "ForSequenceClassification", {**BERT, "num_labels": 3}),
    "bert of odd widths": ("Bert", "Model", {
        **BERT, "hidden_size": 40, "intermediate_size": 72, "num_attention_heads": 5,
        "hidden_act": "relu"}),
    "roberta": ("Roberta", "Model", ROBERTA),
    "roberta classifier": ("Roberta", "ForSequenceClassification", {**ROBERTA, "num_labels": 1}),
    "xlm-roberta": ("XLMRoberta", "ForSequenceClassification", {
        **ROBERTA, "num_labels": 1, "pad_token_id": 3, "type_vocab_size": 2}),
    "nomic": ("NomicBert", "Model", {
        **BERT, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}),
    "nomic of odd widths": ("NomicBert", "Model", {
        **BERT, "hidden_size": 40, "intermediate_size": 72, "num_attention_heads": 5,
        "type_vocab_size": 3, "hidden_act": "gelu"}),
    "modernbert": ("ModernBert", "Model", MODERN),
    "modernbert of odd widths": ("ModernBert", "Model", {
        **MODERN, "hidden_size": 40, "intermediate_size": 72, "num_attention_heads": 4}),
    "modernbert classifier": ("ModernBert", "ForSequenceClassification", {
        **MODERN, **BIASED, "num_labels": 2, "classifier_activation": "silu"}),
}  # fmt: skip


NOMIC = {
    "embeddings.LayerNorm": "emb_ln", "post_attention_layernorm": "norm1",
    "post_mlp_layernorm": "norm2", "self_attn.o_proj": "attn.out_proj", "up_proj": "fc11",
    "gate_proj": "fc12", "down_proj": "fc2",
}  # fmt: skip


def nomic_name(name: str) -> str:
    """Nomic's own name of a tensor that transformers has renamed."""
    if not re.match(r"layers\.\d+\.(self_attn|mlp\.\w+_proj|post_)", name):
        return name
    for part, own in NOMIC.items():
        name = name.replace(part, own)
    return f"encoder.{name}"


def written(folder, name, **changes):
    """A random encoder's folder, and transformers' model in double."""
    kind, end, options = CASES[name]
    torch.manual_seed(3)
    config = getattr(transformers, f"{kind}Config")(**options | changes)
    model = getattr(transformers, f"{kind}{end}")(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    return model.double()


def ideal_rows(path, ids, want="hidden", segments=None):
    """The value in float64, of every row of a text."""
    loaded = load_program(open_checkpoint(path), weight_format="f32")
    given = loaded.program.facts["encoder"].inputs(segments or [0] * len(ids))
    inputs = {name: np.array([row[name] for row in given]) for name in given[0]}
    return evaluate(loaded.program, loaded.weights, ids, [want], inputs=inputs)[want]
