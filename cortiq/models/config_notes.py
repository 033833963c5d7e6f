"""Keys of config.json that change no graph: notes of tools, token ids, sampling defaults.

transformers writes the fields of its `PretrainedConfig` and, up to version 4, those of its
`GenerationConfig` into every config.json; trainers and exporters add notes of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

MODEL = frozenset({
    "_auto_class", "_commit_hash", "_diffusers_version", "_from_model_config", "_name_or_path",
    "adapters", "architectures", "auto_map", "base_model_pp_plan", "base_model_tp_plan",
    "cache_implementation", "chunk_size_feed_forward", "custom_pipelines", "dtype",
    "finetuning_task", "fp32", "bf16", "fp16", "id2label", "is_llama_config", "label2id",
    "license", "model_name", "model_type", "num_labels", "onnx", "output_attentions",
    "output_hidden_states", "params_dtype", "pretraining_tp", "problem_type", "return_dict",
    "tf_legacy_loss", "tokenizer_class", "torch_dtype", "torchscript", "transformers.js_config",
    "transformers_version", "use_bfloat16", "use_cache",
})  # fmt: skip
"""Fields of `PretrainedConfig` and of exporters: names, labels, types of numbers, forms of answers.
"""

TRAINING = frozenset({
    "attention_dropout", "attention_probs_dropout_prob", "attn_dropout", "attn_pdrop",
    "aux_loss_alpha", "aux_loss_coef", "classifier_dropout",
    "embd_pdrop", "embedding_dropout", "ffn_dropout", "freeze_router",
    "gradient_checkpointing", "hidden_dropout", "hidden_dropout_prob", "init_method",
    "init_std", "initializer_range", "label_smoothing", "output_router_logits", "resid_pdrop",
    "residual_dropout", "router_aux_loss_coef", "router_jitter_noise", "router_z_loss_coef",
    "seq_aux", "summary_first_dropout", "z_loss_coef",
})  # fmt: skip
"""Keys that only training reads."""

GENERATION = frozenset({
    "bad_words_ids", "begin_suppress_tokens", "bos_token_id", "decoder_start_token_id",
    "diversity_penalty", "do_sample", "early_stopping", "encoder_no_repeat_ngram_size",
    "encoder_repetition_penalty", "eos_token_id", "exponential_decay_length_penalty",
    "forced_bos_token_id", "forced_eos_token_id", "length_penalty", "max_length",
    "max_new_tokens", "min_length", "min_new_tokens", "min_p", "no_repeat_ngram_size",
    "num_beam_groups", "num_beams", "num_return_sequences", "output_scores", "pad_token_id",
    "prefix", "remove_invalid_values", "repetition_penalty", "return_dict_in_generate",
    "sep_token_id", "suppress_tokens", "task_specific_params", "temperature", "top_k", "top_p",
    "typical_p", "unk_token_id",
})  # fmt: skip
"""Keys that say how a text is drawn, not what a model computes; cortiq's own options say it."""

PATTERNS = (
    "_attn_implementation*", "_experts_implementation*", "_mcore_*", "axolotl_*", "lora_*",
    "neuron*", "peft_*", "trl_*", "unsloth*", "use_flash_attn*", "use_flash_attention*",
)  # fmt: skip
"""Notes of tools by the form of their name."""

ONLY: Mapping[str, Any] = {
    "add_cross_attention": False,
    "cross_attention_hidden_size": None,
    "is_decoder": False,
    "is_encoder_decoder": False,
    "pruned_heads": {},
    "quantization_config": None,
    "rope_interleaved": False,
    "sliding_window": None,
    "tie_encoder_decoder": False,
    "use_bidirectional_attention": False,
}
"""Keys that would change the graph, accepted with the one value that does not (or null)."""


def is_note(key: str) -> bool:
    """Return whether a key of config.json changes no graph in any family."""
    listed = key in MODEL or key in TRAINING or key in GENERATION
    return listed or any(fnmatchcase(key, pattern) for pattern in PATTERNS)
