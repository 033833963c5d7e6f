"""Tensor names: those of Hugging Face checkpoints are canonical; GGUF's follow from one table.

A stack of experts has one canonical name, `….experts.w1.weight`. GGUF files hold it as one tensor,
Hugging Face folders one tensor an expert, `….experts.0.w1.weight` and so on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cortiq.models.formed_vectors import FormedVector
from cortiq.models.tensor_pieces import FusedTensor, split_name

LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)")
IN_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")
PLAIN = re.compile(r"(.+)\.(weight|bias)")

GGUF_TENSORS: Mapping[str, str] = {
    "lm_head": "output",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
    "mlp.experts.gate_proj": "ffn_gate_exps",
    "mlp.experts.up_proj": "ffn_up_exps",
    "mlp.experts.down_proj": "ffn_down_exps",
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
    "mlp.shared_experts.up_proj": "ffn_up_shexp",
    "mlp.shared_experts.down_proj": "ffn_down_shexp",
    "mlp.experts.gate_up_proj": "ffn_gate_up_exps",
    "self_attn.qkv_proj": "attn_qkv",
    "eh_proj": "nextn.eh_proj",
    "enorm": "nextn.enorm",
    "hnorm": "nextn.hnorm",
    "embed_tokens": "nextn.embed_tokens",
    "shared_head.norm": "nextn.shared_head_norm",
    "shared_head.head": "nextn.shared_head_head",
    "final_layernorm": "layer_output_norm",
}
"""Tensor of a Hugging Face checkpoint, without `model.layers.N.` and `.weight` (or `.bias`), to
GGUF's; an entry for a name with its end has that of GGUF too, one for a name with its layer, or
whole, is outside GGUF's layers."""

GGUF_FUSED = (
    FusedTensor("self_attn.qkv_proj", tuple(f"self_attn.{role}_proj" for role in "qkv")),
    FusedTensor("mlp.experts.gate_up_proj", ("mlp.experts.gate_proj", "mlp.experts.up_proj")),
)
"""Tensors that llama.cpp's converter joins where it is asked to, for any architecture."""

IGNORED = re.compile(r".*\.rotary_emb\.inv_freq|blk\.\d+\.attn_rot_embd(\.weight)?")
"""Tensors of old checkpoints, in folders and in GGUF, that repeat what the config says."""


def in_form(rules: Sequence[tuple[str, str]], name: str) -> str:
    """Return a name in another form: after these patterns' replacements, in order."""
    for pattern, form in rules:
        name = re.sub(pattern, form, name)
    return name


@dataclass(frozen=True)
class Names:
    """Tensor names of a family where they differ from the usual ones.

    Attributes
    ----------
    gguf : entries that replace or extend `GGUF_TENSORS`.
    fused : tensors that hold several weights, for files that have them in place of those.
    joined : weights, named as in `fused`, whose rows a file holds as several tensors.
    formed : vectors, named as in `fused`, that a formula makes of a file's.
    folder : beginnings of names in Hugging Face folders, by those of canonical ones.
    unread : regular expression of tensors that the graph never needs.
    forms : other ways to write names, of which a whole folder has one.
    form : the one that this folder has.
    """

    gguf: Mapping[str, str] = field(default_factory=dict)
    fused: tuple[FusedTensor, ...] = ()
    joined: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    formed: Mapping[str, FormedVector] = field(default_factory=dict)
    folder: Mapping[str, str] = field(default_factory=dict)
    unread: str = ""
    forms: tuple[Callable[[str], str], ...] = ()
    form: Callable[[str], str] | None = None

    def in_gguf(self, name: str) -> str:
        """Return the GGUF name: `blk.3.ffn_up`… for `model.layers.3.mlp.up_proj.weight`.

        Raises
        ------
        KeyError : the table does not know the tensor.
        """
        table = {**GGUF_TENSORS, **self.gguf}
        if name in table:
            return table[name]
        plain = PLAIN.fullmatch(name)
        if plain and plain[1] in table:
            return f"{table[plain[1]]}.{plain[2]}"
        whole = IN_LAYER.fullmatch(name)
        if whole and whole[2] in table:
            return f"blk.{whole[1]}.{table[whole[2]]}"
        layer = LAYER.fullmatch(name)
        if layer is None:
            raise KeyError(name)
        index, tensor, kind = layer.groups()
        return f"blk.{index}.{table[tensor]}.{kind}"

    def formed_as(self, name: str) -> FormedVector | None:
        """Return how the weight is made of vectors of the file; None for one that is in it."""
        return self.formed.get(split_name(name)[1])

    def of_expert(self, name: str, index: int, source: str) -> str:
        """Return the tensor of one expert of a stack, for files that hold them separately."""
        if source == "gguf":
            return self.in_gguf(name).replace("_exps.", f".{index}.")
        return self.in_folder(name).replace(".experts.", f".experts.{index}.")

    def in_file(self, name: str, source: str) -> str:
        """Return the tensor's name in a file of this kind, with stacks as one tensor."""
        return self.in_gguf(name) if source == "gguf" else self.in_folder(name)

    def known(self, name: str, source: str) -> str | None:
        """Return the name as `in_file`, or `None` if no file of this kind has such a tensor."""
        try:
            return self.in_file(name, source)
        except KeyError:
            return None

    def in_folder(self, name: str) -> str:
        """Return the tensor's name in a Hugging Face folder."""
        for canonical, own in self.folder.items():
            if name.startswith(canonical):
                return own + name.removeprefix(canonical)
        return self.form(name) if self.form else name

    def in_form_of(self, folder: Container[str], names: Iterable[str]) -> Names:
        """Return the names in the form in which the folder has most of these tensors."""
        known = [self, *(replace(self, form=form) for form in self.forms)]
        every = [part for name in names for part in (name, *self.joined_as(name))]
        return max(known, key=lambda one: sum(one.in_folder(name) in folder for name in every))

    def joined_as(self, name: str) -> list[str]:
        """Return the tensors whose rows are joined into a weight, if the family has such."""
        prefix, stem, end = split_name(name)
        return [f"{prefix}{tensor}{end}" for tensor in self.joined.get(stem, ())]


USUAL = Names()
"""Those of a family whose files have the usual names."""
