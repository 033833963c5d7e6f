"""Kimi delta attention in checkpoints: names, and the two forms of its sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from cortiq.errors import FormatError
from cortiq.ir.layers import KDA
from cortiq.models.config import BaseConfig
from cortiq.models.granitemoehybrid import decay_form
from cortiq.models.parts import activation

DELTA: Mapping[str, str] = {
    "q": "q_proj.weight", "k": "k_proj.weight", "v": "v_proj.weight", "o": "o_proj.weight",
    "f_a": "f_a_proj.weight", "f_b": "f_b_proj.weight", "g_a": "g_a_proj.weight",
    "g_b": "g_b_proj.weight", "b": "b_proj.weight",
    "conv": "conv1d.weight", "A_log": "A_log", "A": "A", "dt_bias": "dt_bias",
    "norm": "o_norm.weight",
}  # fmt: skip
"""Roles of `KDA` to tensor names."""
JOINED: Mapping[str, tuple[str, ...]] = {
    "self_attn.conv1d": tuple(f"self_attn.{part}_conv1d" for part in "qkv")
}
"""Taps, which files hold for queries, keys and values apart."""
INNER: Mapping[str, str] = {
    "head_dim": "linear_head_dim", "num_heads": "linear_num_heads",
    "short_conv_kernel_size": "linear_conv_kernel_dim",
}  # fmt: skip
"""Keys of `linear_attn_config` to the fields that newer files have for them."""


@dataclass(frozen=True, kw_only=True)
class DeltaConfig(BaseConfig):
    """Fields of delta layers; `linear_attn_config` is the older form.

    Attributes
    ----------
    usual_heads : where a file does not say how many.
    """

    rms_norm_eps: float = 1e-5
    hidden_act: str = "silu"
    linear_attn_config: Mapping[str, Any] | None = None
    linear_head_dim: int | None = None
    linear_num_heads: int | None = None
    linear_conv_kernel_dim: int | None = None
    usual_heads: ClassVar[int] = 32

    def size(self, key: str, default: int) -> int:
        """Return a number of the delta layers, by its key of `linear_attn_config`.

        Raises
        ------
        FormatError : it is no count, or the two forms disagree.
        """
        new, inner = getattr(self, INNER[key]), (self.linear_attn_config or {}).get(key)
        if inner is not None and (type(inner) is not int or inner < 1):
            raise FormatError(f"{key} is {inner!r}, not a count", where="linear_attn_config")
        if None not in (new, inner) and new != inner:
            raise FormatError(f"{INNER[key]} is {new}, {key} {inner}", where="linear_attn_config")
        return inner or new or default

    @property
    def convolved(self) -> str:
        """The activation of convolved rows."""
        return activation(self.hidden_act)

    def delta(self) -> KDA:
        """Return the mixer of most layers; both low ranks are the width of a head."""
        dim = self.size("head_dim", 128)
        return KDA(
            width=self.hidden_size, heads=self.size("num_heads", self.usual_heads), key_dim=dim,
            value_dim=dim, kernel=self.size("short_conv_kernel_size", 4), eps=self.rms_norm_eps,
            decay_rank=dim, gate_rank=dim, activation=self.convolved, decay_form=decay_form(self),
        )  # fmt: skip
