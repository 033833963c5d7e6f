"""Kimi K3 in float64, written from its published configuration and llama.cpp's graph.

transformers has no such model. Everything is plain torch, one position after the other. llama.cpp
(of llama-cpp-python 0.3.36; one batch, chunks of 7 and of 1) computed tiny F32 files of three
configurations, too, with an `rms_norm_eps` of 1e-6, which it has for the norms of latents as well:
its logits are within 4e-5 of these, of the largest.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F


def logits(c: dict[str, Any], given: dict[str, np.ndarray], tokens: list[int]) -> np.ndarray:
    """What the model computes, in float64."""
    w = {name: torch.tensor(values, dtype=torch.float64) for name, values in given.items()}
    return Model(c, w)(torch.tensor(tokens)).numpy()


class Model:
    """Kimi K3's text model."""

    def __init__(self, c: dict[str, Any], w: dict[str, torch.Tensor]) -> None:
        self.c, self.w, self.prefix = c, w, ""

    def get(self, name: str) -> torch.Tensor:
        """A tensor of the current layer."""
        full = f"{self.prefix}{name}"
        return self.w[full] if full in self.w else self.w[f"{full}.weight"]

    def on(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """A linear map."""
        return F.linear(x, self.get(name))

    def norm(self, name: str, x: torch.Tensor, eps: float | None = None) -> torch.Tensor:
        """An RMSNorm."""
        eps = self.c["rms_norm_eps"] if eps is None else eps
        return F.rms_norm(x, x.shape[-1:], self.get(name), eps)

    def situ(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        """The activation of all MLPs."""
        if self.c["hidden_act"] != "situ":
            return F.silu(gate) * up
        beta, linear = (self.c[f"activation_situ_{k}"] for k in ("beta", "linear_beta"))
        up = up if linear is None else linear * torch.tanh(up / linear)
        return beta * torch.tanh(gate / beta) * torch.sigmoid(gate) * up

    def mix(self, name: str, banked: list[torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        """Attention over the sums kept so far and the current one."""
        if not banked:
            return x
        rows = torch.stack([*banked, x], dim=1)
        share = torch.softmax(self.on(f"{name}_proj", self.norm(f"{name}_norm", rows)), dim=1)
        return (share * rows).sum(dim=1)

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        c, banked, x = self.c, [], self.w["model.embed_tokens.weight"][tokens]
        for n in range(c["num_hidden_layers"]):
            self.prefix = f"model.layers.{n}."
            delta = n + 1 in c["linear_attn_config"]["kda_layers"]
            read = self.norm("input_layernorm", self.mix("self_attention_res", banked, x))
            y = self.kda(read) if delta else self.mla(read)
            if c["attn_res_block_size"] and n % c["attn_res_block_size"] == 0:
                banked, x = [*banked, x], y
            else:
                x = x + y
            read = self.norm("post_attention_layernorm", self.mix("mlp_res", banked, x))
            dense = n < c["first_k_dense_replace"]
            x = x + (self.mlp("mlp", read) if dense else self.moe(read))
        self.prefix = ""
        return self.on(
            "lm_head", self.norm("model.norm", self.mix("model.output_attn_res", banked, x))
        )

    def mlp(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """A gated MLP."""
        y = self.situ(self.on(f"{name}.gate_proj", x), self.on(f"{name}.up_proj", x))
        return self.on(f"{name}.down_proj", y)

    def moe(self, x: torch.Tensor) -> torch.Tensor:
        """Experts in their own space, and the shared ones."""
        c, moe = self.c, "block_sparse_moe"
        scores = torch.sigmoid(self.on(f"{moe}.gate", x))
        biased = scores + self.get(f"{moe}.gate.e_score_correction_bias")
        chosen = biased.topk(c["num_experts_per_token"], dim=-1).indices
        weight = scores.gather(1, chosen)
        if c["moe_renormalize"]:
            weight = weight / (weight.sum(-1, keepdim=True) + 1e-20)
        latent = c["routed_expert_hidden_size"]
        rows = self.on(f"{moe}.routed_expert_down_proj", x) if latent else x
        found = torch.zeros_like(rows)
        for t in range(len(x)):
            for e, share in zip(chosen[t].tolist(), weight[t], strict=True):
                gate, up = (self.on(f"{moe}.experts.{e}.{p}", rows[t]) for p in ("w1", "w3"))
                found[t] += share * self.on(f"{moe}.experts.{e}.w2", self.situ(gate, up))
        found = found * c["routed_scaling_factor"]
        if latent and c["latent_moe_use_norm"]:
            found = self.norm(f"{moe}.routed_expert_norm", found)
        found = self.on(f"{moe}.routed_expert_up_proj", found) if latent else found
        return found + self.mlp(f"{moe}.shared_experts", x)

    def mla(self, x: torch.Tensor) -> torch.Tensor:
        """Latent attention without positions, whose output has a gate."""
        c, count = self.c, len(x)
        nope, rope, dv = (c[k] for k in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
        q = x
        if c["q_lora_rank"]:
            q = self.norm("self_attn.q_a_layernorm", self.on("self_attn.q_a_proj", x), 1e-6)
        q = self.on("self_attn.q_b_proj" if c["q_lora_rank"] else "self_attn.q_proj", q)
        q = q.view(count, -1, nope + rope).transpose(0, 1)
        joint = self.on("self_attn.kv_a_proj_with_mqa", x)
        latent, shared = joint.split([c["kv_lora_rank"], rope], dim=-1)
        latent = self.norm("self_attn.kv_a_layernorm", latent, 1e-6)
        kv = self.on("self_attn.kv_b_proj", latent).view(count, -1, nope + dv).transpose(0, 1)
        k, v = kv.split([nope, dv], dim=-1)
        k = torch.cat([k, shared.expand(len(k), count, rope)], dim=-1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = y.transpose(0, 1).reshape(count, -1)
        if c["mla_use_output_gate"]:
            y = y * torch.sigmoid(self.on("self_attn.g_proj", x))
        return self.on("self_attn.o_proj", y)

    def kda(self, x: torch.Tensor) -> torch.Tensor:
        """Kimi delta attention with decays that have a bound."""
        inner, count, heads = self.c["linear_attn_config"], len(x), self.c["num_attention_heads"]
        dim, kernel = inner["head_dim"], inner["short_conv_kernel_size"]

        def convolved(part: str) -> torch.Tensor:
            rows = F.pad(self.on(f"self_attn.{part}_proj", x).T, (kernel - 1, 0))
            taps = self.get(f"self_attn.{part}_conv1d")
            rows = F.conv1d(rows[None], taps, groups=len(taps))[0].T
            return F.silu(rows).view(count, heads, dim)

        q, k, v = (convolved(part) for part in "qkv")
        q, k = (r * torch.rsqrt(r.square().sum(-1, keepdim=True) + 1e-6) for r in (q, k))
        f = self.on("self_attn.f_b_proj", self.on("self_attn.f_a_proj", x))
        f = (f + self.get("self_attn.dt_bias")).view(count, heads, dim)
        size = self.get("self_attn.A_log")[:heads].exp()[:, None]
        bound = inner["gate_lower_bound"]
        log = -size * F.softplus(f) if bound is None else bound * torch.sigmoid(size * f)
        beta = torch.sigmoid(self.on("self_attn.b_proj", x))
        state, rows = torch.zeros(heads, dim, dim, dtype=x.dtype), []
        for t in range(count):
            state = state * log[t].exp()[:, :, None]
            error = (v[t] - torch.einsum("hk,hkv->hv", k[t], state)) * beta[t][:, None]
            state = state + torch.einsum("hk,hv->hkv", k[t], error)
            rows.append(torch.einsum("hk,hkv->hv", q[t], state) * dim**-0.5)
        y = self.norm("self_attn.o_norm", torch.stack(rows)).reshape(count, -1)
        names = ["g_proj"] if inner["use_full_rank_gate"] else ["g_a_proj", "g_b_proj"]
        gate = x
        for name in names:
            gate = self.on(f"self_attn.{name}", gate)
        return self.on("self_attn.o_proj", y * torch.sigmoid(gate))
