"""Draft heads against models that draft in transformers, and Nemotron H's against its layers."""

from __future__ import annotations

import copy
import json

import pytest

pytest.importorskip("transformers")

import safetensors.torch
import torch
import transformers
from checkpoints import draw_weights
from family_harness import distance
from head_folders import IDS, Folder, chained

import cortiq


@pytest.mark.parametrize("name", ["DeepseekV3Config", "Glm4MoeConfig"])
def test_transformers_own_drafting_model_drafts_the_same(name, tmp_path):
    drafting = getattr(transformers.modeling_layers, "MtpModel", None)
    if drafting is None:
        pytest.skip("transformers drafts with no head yet")
    written = Folder(name, tmp_path)
    main = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, dtype=torch.float32, experts_implementation="eager"
    ).eval()
    layers = range(written.trunk, written.trunk + len(written.layers))
    main._keys_to_ignore_on_load_unexpected = [rf"model\.layers\.{n}\." for n in layers]
    drafter = drafting.from_pretrained(main).eval().double()
    main.double()
    ids = torch.tensor(IDS)[None]
    with torch.no_grad():
        hidden = main.model(ids, use_cache=False).last_hidden_state
        drafts, logits, _ = drafter(
            input_ids=ids[:, 1:], last_hidden_states=hidden[:, :-1], attention_mask=None,
            position_ids=torch.arange(1, len(IDS))[None], mtp_cache=None,
        )  # fmt: skip
    found = chained(tmp_path)
    assert [draft for _, draft in found] == drafts[0].tolist()
    for k, (ours, _) in enumerate(found):
        assert distance(ours[None], logits[0, k : k + 1].numpy()) < 1e-5


NEMOTRON = {
    "vocab_size": 96, "hidden_size": 48, "intermediate_size": 64, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 12, "mamba_num_heads": 4, "mamba_head_dim": 10,
    "n_groups": 2, "ssm_state_size": 6, "conv_kernel": 3, "n_routed_experts": 6,
    "num_experts_per_tok": 2, "moe_intermediate_size": 24, "layer_norm_epsilon": 0.02,
    "moe_shared_expert_intermediate_size": 20, "max_position_embeddings": 256,
    "layers_block_type": [
        "linear_attention", "full_attention", "moe", "full_attention", "moe",
    ],
}  # fmt: skip


def test_nemotron_s_module_is_two_of_its_layers(tmp_path):
    """The published layout: the joint and attention in one layer, experts and the norm in two."""
    config = transformers.NemotronHConfig(**NEMOTRON)
    torch.manual_seed(5)
    how = {"experts_implementation": "eager", "attn_implementation": "sdpa"}
    model = transformers.AutoModelForCausalLM.from_config(config, **how).eval()
    draw_weights(model)
    model.save_pretrained(tmp_path)
    path, draw = tmp_path / "model.safetensors", torch.Generator().manual_seed(7)
    tensors = safetensors.torch.load_file(path)
    for k in range(2):
        spare = f"backbone.layers.{3 + k}."
        for name in [n for n in tensors if n.startswith(spare)]:
            tensors[f"mtp.layers.{k}.{name.removeprefix(spare)}"] = tensors.pop(name)
    norms = ("mtp.layers.0.enorm", "mtp.layers.0.hnorm", "mtp.layers.1.final_layernorm")
    for norm in norms:
        tensors[f"{norm}.weight"] = 1 + 0.2 * torch.randn(48, generator=draw)
    joint = torch.randn(48, 96, generator=draw) / 96**0.5
    tensors["mtp.layers.0.eh_proj.weight"] = joint
    safetensors.torch.save_file(tensors, path)
    given = json.loads((tmp_path / "config.json").read_text())
    given |= {"layers_block_type": NEMOTRON["layers_block_type"][:3], "num_hidden_layers": 3}
    (tmp_path / "config.json").write_text(json.dumps(given | {"num_nextn_predict_layers": 1}))

    inner = copy.copy(model.double().model)
    inner._modules, inner.config = dict(inner._modules), copy.deepcopy(config)

    def run(kinds, layers, **inputs):
        """Return the model's hidden states after these layers, before the last norm."""
        inner.config.layers_block_type = kinds
        inner.config.num_hidden_layers = len(layers)
        inner.layers, inner.norm_f = torch.nn.ModuleList(layers), torch.nn.Identity()
        with torch.no_grad():
            return inner(use_cache=False, **inputs).last_hidden_state[0]

    def norm(x, name):
        layer = copy.deepcopy(model.model.norm_f)
        layer.weight.data = tensors[f"{name}.weight"].double()
        return layer(x)

    kinds, layers = NEMOTRON["layers_block_type"], list(model.model.layers)
    last = copy.deepcopy(model.model.norm_f)
    hidden = last(run(kinds[:3], layers[:3], input_ids=torch.tensor(IDS)[None]))
    embedded = model.model.embeddings(torch.tensor(IDS[1:]))
    halves = norm(embedded, norms[0]), norm(hidden[:-1], norms[1])
    u = torch.cat(halves, dim=-1) @ joint.double().T
    out = norm(run(kinds[3:], layers[3:], inputs_embeds=u[None]), norms[2])
    with torch.no_grad():
        logits = model.lm_head(out)[-1:].numpy()
    ((ours, _),) = chained(tmp_path)
    assert distance(ours[None], logits) < 1e-5
    with cortiq.load(tmp_path, backend="cpu", threads=1, heads="auto") as drafting:
        plain = drafting.generate(IDS.tolist(), max_tokens=12)
        drafted = drafting.generate(IDS.tolist(), max_tokens=12, draft="mtp", draft_depth=2)
    assert drafted.token_ids == plain.token_ids and drafted.stats.drafts.drafted > 0
