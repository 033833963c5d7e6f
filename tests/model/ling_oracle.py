"""Ling 2.5 in float64, written from the formulas of its authors' module, and tiny folders of it.

That module needs kernels of flash-linear-attention, and transformers has none for this model: the
state of lightning attention goes from one position to the next here, in plain torch.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.numpy import save_file
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

CONFIG: dict[str, Any] = {
    "model_type": "bailing_hybrid", "architectures": ["BailingMoeV2_5ForCausalLM"],
    "vocab_size": 96, "hidden_size": 40, "intermediate_size": 64, "num_hidden_layers": 5,
    "num_attention_heads": 4, "num_key_value_heads": 4, "hidden_act": "silu", "head_dim": 12,
    "use_qkv_bias": False, "use_bias": False, "rms_norm_eps": 0.02, "tie_word_embeddings": False,
    "max_position_embeddings": 256, "rope_theta": 900.0, "rope_scaling": None, "num_experts": 8,
    "num_shared_experts": 1, "num_experts_per_tok": 3, "n_group": 4, "topk_group": 2,
    "moe_intermediate_size": 24, "first_k_dense_replace": 1, "use_qk_norm": True,
    "routed_scaling_factor": 1.7, "layer_group_size": 2, "group_norm_size": 2, "linear_silu": False,
    "kv_lora_rank": 16, "q_lora_rank": 14, "qk_rope_head_dim": 6, "v_head_dim": 10,
    "qk_nope_head_dim": 8, "rope_interleave": True, "partial_rotary_factor": 0.5,
    "score_function": "sigmoid", "router_dtype": "fp32", "moe_router_enable_expert_bias": True,
    "norm_topk_prob": True, "num_nextn_predict_layers": 0, "max_window_layers": 20,
    "moe_shared_expert_intermediate_size": 24, "embedding_dropout": 0.0, "output_dropout": 0.0,
    "mtp_loss_scaling_factor": 0, "num_kv_heads_for_linear_attn": 4,
}  # fmt: skip


def attends(c: dict[str, Any], n: int) -> bool:
    """Whether a layer has latent attention."""
    count, size = c["num_hidden_layers"], c["layer_group_size"]
    return (n + 1) % size == 0 or n >= count // size * size


def shapes(c: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Shapes of all tensors."""
    width, heads, inner = c["hidden_size"], c["num_attention_heads"], c["moe_intermediate_size"]
    rows, nope, rope, dv = (
        heads * c["head_dim"], c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
    )  # fmt: skip

    def gated(name: str, inner: int) -> dict[str, tuple[int, ...]]:
        found = {f"{name}.{p}_proj": (inner, width) for p in ("gate", "up")}
        return found | {f"{name}.down_proj": (width, inner)}

    found = dict.fromkeys(("lm_head", "model.word_embeddings"), (c["vocab_size"], width))
    found["model.norm"] = (width,)
    for n in range(c["num_hidden_layers"]):
        own = {"input_layernorm": (width,), "post_attention_layernorm": (width,)}
        if attends(c, n):
            latent, query = c["kv_lora_rank"], c["q_lora_rank"]
            own |= {
                "attention.kv_a_proj_with_mqa": (latent + rope, width),
                "attention.kv_a_layernorm": (latent,), "attention.dense": (width, heads * dv),
                "attention.kv_b_proj": (heads * (nope + dv), latent),
                "attention.q_a_proj": (query, width), "attention.q_a_layernorm": (query,),
                "attention.q_b_proj": (heads * (nope + rope), query),
            }  # fmt: skip
        else:
            own |= {
                "attention.query_key_value": (3 * rows, width), "attention.g_norm": (rows,),
                "attention.g_proj": (rows, width), "attention.dense": (width, rows),
            }  # fmt: skip
            if c["use_qk_norm"]:
                own |= {f"attention.{p}_layernorm": (c["head_dim"],) for p in ("query", "key")}
        if n < c["first_k_dense_replace"]:
            own |= gated("mlp", c["intermediate_size"])
        else:
            own |= {"mlp.gate": (c["num_experts"], width), "mlp.expert_bias": (c["num_experts"],)}
            for e in range(c["num_experts"]):
                own |= gated(f"mlp.experts.{e}", inner)
            own |= gated("mlp.shared_experts", inner * c["num_shared_experts"])
        found |= {f"model.layers.{n}.{name}": shape for name, shape in own.items()}
    return found


def tensors(c: dict[str, Any], seed: int = 5) -> dict[str, np.ndarray]:
    """Random tensors by published name: gains around 1."""
    dice, found = np.random.default_rng(seed), {}
    for name, shape in shapes(c).items():
        values = dice.standard_normal(shape)
        values = values * 1.4 / np.sqrt(shape[-1]) if len(shape) > 1 else 0.3 * values
        values = 1 + values if "norm" in name else values
        bare = name.endswith("expert_bias")
        name = name.replace("mlp.", "mlp.gate.") if bare else f"{name}.weight"
        found[name] = values.astype(np.float32)
    return found


def write(folder: Path, c: dict[str, Any], given: dict[str, np.ndarray]) -> None:
    """Write a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(c))
    save_file(given, folder / "model.safetensors")


def slopes(heads: int) -> torch.Tensor:
    """Rates of a power of two of heads: 2^(−8/n), its square, and so on."""
    return 2.0 ** (-8.0 * torch.arange(1, heads + 1, dtype=torch.float64) / heads)


class Model:
    """The model of a configuration and its tensors."""

    def __init__(self, c: dict[str, Any], given: dict[str, np.ndarray]) -> None:
        self.c, self.prefix = c, ""
        self.w = {name: torch.tensor(v, dtype=torch.float64) for name, v in given.items()}

    def on(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """A linear map of the current layer."""
        return F.linear(x, self.w[f"{self.prefix}{name}.weight"])

    def norm(self, name: str, x: torch.Tensor, eps: float | None = None) -> torch.Tensor:
        """An RMSNorm of the current layer."""
        eps = self.c["rms_norm_eps"] if eps is None else eps
        return F.rms_norm(x, x.shape[-1:], self.w[f"{self.prefix}{name}.weight"], eps)

    def rates(self) -> tuple[torch.Tensor, float]:
        """Angles of a position's step, and the factor of what is rotated."""
        dim, said = self.c["qk_rope_head_dim"], self.c["rope_scaling"]
        rate = self.c["rope_theta"] ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
        if said is None:
            return rate, 1.0
        rope = {**said, "rope_theta": self.c["rope_theta"]}
        config = LlamaConfig(head_dim=dim, rope_parameters=rope, max_position_embeddings=256)
        rate, size = ROPE_INIT_FUNCTIONS[said["rope_type"]](config, "cpu")
        return rate.double(), size

    def turned(self, x: torch.Tensor, pairs: str) -> torch.Tensor:
        """The first elements of x [positions, heads, n] rotated: complex numbers from pairs."""
        dim, count = self.c["qk_rope_head_dim"], len(x)
        rate, size = self.rates()
        angle = torch.arange(count, dtype=torch.float64)[:, None, None] * rate
        part = x[..., :dim].reshape(*x.shape[:-1], *((2, -1) if pairs == "half" else (-1, 2)))
        a, b = part.unbind(-2 if pairs == "half" else -1)
        z = torch.complex(a, b) * torch.polar(torch.full_like(angle, size), angle)
        return torch.cat([z.real, z.imag, x[..., dim:]], dim=-1)

    def logits(self, tokens: list[int]) -> np.ndarray:
        """The logits of every position."""
        c, x = self.c, self.w["model.word_embeddings.weight"][tokens]
        for n in range(c["num_hidden_layers"]):
            self.prefix = f"model.layers.{n}."
            read = self.norm("input_layernorm", x)
            x = x + (self.latent(read) if attends(c, n) else self.lightning(read, n))
            read = self.norm("post_attention_layernorm", x)
            dense = n < c["first_k_dense_replace"]
            x = x + (self.mlp("mlp", read) if dense else self.experts(read))
        self.prefix = ""
        return self.on("lm_head", self.norm("model.norm", x)).numpy()

    def mlp(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """A gated MLP."""
        y = F.silu(self.on(f"{name}.gate_proj", x)) * self.on(f"{name}.up_proj", x)
        return self.on(f"{name}.down_proj", y)

    def experts(self, x: torch.Tensor) -> torch.Tensor:
        """Experts of the best groups, by the two best of each, and the shared ones."""
        c, found = self.c, torch.zeros_like(x)
        scores = torch.sigmoid(self.on("mlp.gate", x))
        biased = scores + self.w[f"{self.prefix}mlp.gate.expert_bias"]
        groups = biased.view(len(x), c["n_group"], -1)
        best = groups.topk(2, dim=-1).values.sum(-1).topk(c["topk_group"], dim=-1).indices
        kept = torch.full_like(groups, -torch.inf)
        for t in range(len(x)):
            kept[t, best[t]] = groups[t, best[t]]
        for t, chosen in enumerate(kept.view(len(x), -1).topk(c["num_experts_per_tok"]).indices):
            total = scores[t, chosen].sum() + 1e-20
            for e in chosen.tolist():
                found[t] += scores[t, e] / total * self.mlp(f"mlp.experts.{e}", x[t])
        return found * c["routed_scaling_factor"] + self.mlp("mlp.shared_experts", x)

    def latent(self, x: torch.Tensor) -> torch.Tensor:
        """Latent attention."""
        c, count = self.c, len(x)
        nope, rope, dv = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
        q = self.norm("attention.q_a_layernorm", self.on("attention.q_a_proj", x), 1e-6)
        q = self.on("attention.q_b_proj", q).view(count, -1, nope + rope)
        joint = self.on("attention.kv_a_proj_with_mqa", x)
        low, shared = joint.split([c["kv_lora_rank"], rope], dim=-1)
        low = self.norm("attention.kv_a_layernorm", low, 1e-6)
        kv = self.on("attention.kv_b_proj", low).view(count, -1, nope + dv)
        shared = self.turned(shared[:, None], "neighbours").expand(-1, kv.shape[1], -1)
        k = torch.cat([kv[..., :nope], shared], dim=-1)
        q = torch.cat([q[..., :nope], self.turned(q[..., nope:], "neighbours")], dim=-1)
        q, k, v = (rows.transpose(0, 1) for rows in (q, k, kv[..., nope:]))
        said = c["rope_scaling"] or {}
        grown = 0.1 * said.get("mscale_all_dim", 0) * math.log(said.get("factor", 1)) + 1
        scale = (nope + rope) ** -0.5 * grown**2
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
        return self.on("attention.dense", y.transpose(0, 1).reshape(count, -1))

    def lightning(self, x: torch.Tensor, n: int) -> torch.Tensor:
        """Lightning attention: a state that decays, one position after the other."""
        c, count, heads = self.c, len(x), self.c["num_attention_heads"]
        rows = self.on("attention.query_key_value", x).view(count, 3, heads, c["head_dim"])
        q, k, v = rows.unbind(1)
        if c["use_qk_norm"]:
            q = self.norm("attention.query_layernorm", q)
            k = self.norm("attention.key_layernorm", k)
        q, k = self.turned(q, "half"), self.turned(k, "half")
        later = 1 - (n - 1) / (c["num_hidden_layers"] - 1) + 1e-5
        kept = torch.exp(-slopes(heads) * later)[:, None, None]
        state, found = torch.zeros(heads, c["head_dim"], c["head_dim"], dtype=x.dtype), []
        for t in range(count):
            state = state * kept + k[t, :, :, None] * v[t, :, None, :]
            found.append((q[t, :, :, None] * state).sum(1) * c["head_dim"] ** -0.5)
        y = torch.stack(found).reshape(count, c["group_norm_size"], -1)
        y = F.rms_norm(y, y.shape[-1:], None, c["rms_norm_eps"]).reshape(count, -1)
        y = y * self.w[f"{self.prefix}attention.g_norm.weight"]
        return self.on("attention.dense", y * torch.sigmoid(self.on("attention.g_proj", x)))
