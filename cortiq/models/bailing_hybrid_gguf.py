"""Ling 3's GGUF metadata and names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cortiq.errors import UnsupportedError
from cortiq.models import kimi_linear
from cortiq.models.config import Amount
from cortiq.models.names import GGUF_TENSORS

KEYS: Mapping[str, str] = {
    **kimi_linear.KEYS.gguf,
    "attention.value_length": "linear_head_dim",
    "expert_shared_feed_forward_length": "moe_shared_expert_intermediate_size",
    "kda.gate_lower_bound": "kda_lower_bound",
    "kda.safe_gate": "kda_safe_gate",
    "nextn_predict_layers": "num_nextn_predict_layers",
    "ssm.conv_kernel": "short_conv_kernel_size",
}
NAMES: Mapping[str, str] = {
    **{name.replace("self_attn.", "attention."): tensor
       for name, tensor in {**GGUF_TENSORS, **kimi_linear.NAMES.gguf}.items()
       if name.startswith("self_attn.")},
    "attention.dense": "attn_output", "attention.f_proj": "ssm_f_a",
    "attention.g_proj": "ssm_g_a", "mlp.gate.expert_bias": "exp_probs_b.bias",
}  # fmt: skip


def gates(layers: Iterable[int]) -> dict[str, str]:
    """Return names of the gates of latent attention, which have another than KDA's."""
    return {f"model.layers.{n}.attention.g_proj": f"blk.{n}.attn_gate" for n in layers}


@dataclass(frozen=True, kw_only=True)
class LingFields(kimi_linear.GGUFConfig):
    """Fields of GGUF files; layers with KV heads have latent attention."""

    linear_conv_kernel_dim: int | None = None  # type: ignore[assignment]
    short_conv_kernel_size: int = 4
    kda_safe_gate: bool = True
    kda_lower_bound: float = -5.0
    num_nextn_predict_layers: Amount = Amount(0)
    moe_shared_expert_intermediate_size: int | None = None

    def config(self, where: str) -> kimi_linear.Config:
        """Return the configuration in a folder's form.

        Raises
        ------
        UnsupportedError : decays without a bound, which llama.cpp does not read.
        """
        if not self.kda_safe_gate:
            raise UnsupportedError("kda.safe_gate = False of a GGUF file", where=where)
        return super().config(where)
