"""Folders with draft heads: tiny models of transformers whose spare layers become modules.

transformers drops these tensors. So a trunk is written with layers to spare, which become the
modules; a module's block is then transformers' own layer, with its norm and head, in double.
"""

from __future__ import annotations

import copy
import json

import numpy as np
import safetensors.torch
import torch
import transformers
from checkpoints import draw_weights

from cortiq.formats.checkpoint import open_checkpoint
from cortiq.ir import primitives_of
from cortiq.models import load_program
from cortiq_reference.ideal import evaluate

LINEAR, FULL, LOCAL = "linear_attention", "full_attention", "sliding_attention"
ROPE = "rope_parameters"
SMALL = {
    "vocab_size": 96, "hidden_size": 48, "intermediate_size": 64, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 12, "rms_norm_eps": 0.02, "max_position_embeddings": 256,
    "tie_word_embeddings": False,
}  # fmt: skip
DELTA = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
    "linear_value_head_dim": 6, "linear_conv_kernel_dim": 3,
}  # fmt: skip
TURNED = {"rope_type": "default", "rope_theta": 1000.0, "partial_rotary_factor": 0.5}
ROUTED = {
    "n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
    "first_k_dense_replace": 1,
}  # fmt: skip
LATENT = {
    "num_key_value_heads": 4, "head_dim": 6, "kv_lora_rank": 16, "q_lora_rank": 14, "n_group": 2,
    "qk_nope_head_dim": 10, "qk_rope_head_dim": 6, "v_head_dim": 12, "topk_group": 1,
}  # fmt: skip
QWEN = ["mtp.layers.0"], ("mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.fc",
                          "mtp.norm")  # fmt: skip
MIMO = [f"model.mtp.layers.{k}" for k in range(3)], ("enorm", "hnorm", "eh_proj", "final_layernorm")
AFTER = ("enorm", "hnorm", "eh_proj", "shared_head.norm")
KINDS = {
    LOCAL: {"rope_type": "default", "rope_theta": 300.0, "partial_rotary_factor": 0.5},
    FULL: {"rope_type": "default", "rope_theta": 1000.0, "partial_rotary_factor": 0.5},
}

FILES = {
    "Qwen3_5TextConfig": (
        DELTA | {"layer_types": [LINEAR, FULL, FULL], ROPE: TURNED | {"mrope_section": [1, 1, 1]}},
        *QWEN, "chain", "hidden",
    ),
    "Qwen3NextConfig": (
        DELTA | {"layer_types": [LINEAR, FULL, FULL], ROPE: TURNED, "num_experts": 6,
                 "num_experts_per_tok": 2, "moe_intermediate_size": 24,
                 "shared_expert_intermediate_size": 20},
        *QWEN, "chain", "hidden",
    ),
    "Glm4MoeConfig": (ROUTED, ["model.layers.2"], AFTER, "chain", "hidden"),
    "DeepseekV3Config": (
        ROUTED | LATENT, ["model.layers.2", "model.layers.3"], AFTER, "cascade", "hidden"
    ),
    "MiMoV2FlashConfig": (
        {k: v for k, v in ROUTED.items() if k != "first_k_dense_replace"}
        | {"sliding_window": 9, "v_head_dim": 6, ROPE: KINDS,
                  "layer_types": [FULL, LOCAL, *[LOCAL] * 3],
                  "mlp_layer_types": ["dense", "sparse", *["dense"] * 3]},
        *MIMO, "stack", "layers.1.out",
    ),
}  # fmt: skip
"""By configuration: options, the modules' layers, their other tensors, and what is to be found."""


class Folder:
    """A folder with a draft head, and transformers' model of the spare layers."""

    def __init__(self, name, folder):
        options, self.layers, self.parts, self.style, self.source = FILES[name]
        self.folder, self.trunk = folder, 2
        count = self.trunk + len(self.layers)
        config = getattr(transformers, name)(**{**SMALL, **options, "num_hidden_layers": count})
        exact = transformers.AutoModelForCausalLM._model_mapping[type(config)]._supports_sdpa
        how = {"attn_implementation": "sdpa" if exact else "eager"}
        if hasattr(config, "num_experts_per_tok"):
            how["experts_implementation"] = "eager"
        torch.manual_seed(5)
        self.model = transformers.AutoModelForCausalLM.from_config(config, **how).eval()
        draw_weights(self.model)
        self.model.save_pretrained(folder)
        self.write()
        self.model.double()

    def tensors_of(self, k):
        """Names of a module's norms and matrix: given whole, or below its layer."""
        layer, whole = self.layers[k], self.parts[0].startswith("mtp.")
        return [part if whole else f"{layer}.{part}" for part in self.parts]

    def write(self):
        """Spare layers become modules; what joins the halves is drawn."""
        path = self.folder / "model.safetensors"
        tensors, draw = safetensors.torch.load_file(path), torch.Generator().manual_seed(7)
        for k, layer in enumerate(self.layers):
            spare = f"model.layers.{self.trunk + k}."
            for name in [n for n in tensors if n.startswith(spare)]:
                tensors[f"{layer}.{name.removeprefix(spare)}"] = tensors.pop(name)
            first, second, project, last = self.tensors_of(k)
            centre = tensors["model.norm.weight"]
            for norm in (first, second, last):
                tensors[f"{norm}.weight"] = centre + 0.2 * torch.randn(48, generator=draw)
            joined = torch.randn(48, 96, generator=draw) / 96**0.5
            tensors[f"{project}.weight"] = joined
        safetensors.torch.save_file(tensors, path)
        self.tensors = tensors
        given = json.loads((self.folder / "config.json").read_text())
        given["num_hidden_layers"] = self.trunk
        for key in ("layer_types", "mlp_layer_types"):
            if given.get(key):
                given[key] = given[key][: self.trunk]
        if self.layers[0].startswith("model.layers"):
            given["num_nextn_predict_layers"] = len(self.layers)
        (self.folder / "config.json").write_text(json.dumps(given))

    def norm(self, x, name):
        """transformers' own norm with another weight."""
        norm = copy.deepcopy(self.model.model.norm)
        norm.weight.data = self.tensors[f"{name}.weight"].double()
        return norm(x)

    def module(self, k, tokens, hidden):
        """(output before the norm, logits) of module k, by transformers in double."""
        first, second, project, last = self.tensors_of(k)
        embedded = self.model.model.embed_tokens(torch.tensor(tokens))
        joined = [self.norm(embedded, first), self.norm(torch.tensor(hidden), second)]
        u = torch.cat(joined, dim=-1) @ self.tensors[f"{project}.weight"].double().T
        return self.block(k, u[None], last)

    def block(self, k, u, last):
        inner = copy.copy(self.model.model)
        inner._modules = dict(inner._modules)
        inner.config = copy.deepcopy(inner.config)
        inner.config.num_hidden_layers = 1
        for key in ("layer_types", "mlp_layer_types"):
            if getattr(inner.config, key, None):
                setattr(inner.config, key, getattr(inner.config, key)[self.trunk + k :][:1])
        inner.layers = torch.nn.ModuleList([self.model.model.layers[self.trunk + k]])
        inner.norm = torch.nn.Identity()
        with torch.no_grad():
            out = inner(inputs_embeds=u, use_cache=False).last_hidden_state
            logits = self.norm(out, last) @ self.model.lm_head.weight.T
        return out[0].numpy(), logits[0].numpy()


IDS = np.random.default_rng(3).integers(0, 96, 20)


def chained(folder, entries=None):
    """(logits of the last row, draft) of every module, each going on from the one before."""
    loaded = load_program(open_checkpoint(folder), heads="auto", weight_format="f32")
    head = loaded.program.facts["draft_head"]
    given = evaluate(loaded.program, loaded.weights, IDS, [head.source])[head.source][:-1]
    text, found = IDS.tolist(), []
    for k, entry in enumerate(head.entries):
        shape = primitives_of(loaded.program).graphs[entry].values["recalled"].shape
        tokens, rows = np.array(text[k + 1 :]), {"recalled": given.reshape(-1, *shape)}
        wants = ["logits", head.output(k)]
        values = evaluate(loaded.program, loaded.weights, tokens, wants, entry, rows)
        found.append((values["logits"][-1], int(values["logits"][-1].argmax())))
        text.append(found[-1][1])
        given = values[head.output(k)]
    return found
