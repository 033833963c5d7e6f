"""Adapters of stacks chosen by request: experts, heads of latent attention, whole tensors.

Oracles are peft's own models in float64, not merged; of experts that are modules of their own,
which transformers no longer has, peft's own merge of such modules.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

pytest.importorskip("peft")

import peft
import torch
import transformers
from checkpoints import case, draw_weights
from test_adapter_overlays import KINDS, LARGEST_ERROR, computed, error, logits_of

import cortiq
from cortiq.errors import FormatError, UnsupportedError

SIZES = {"hidden_size": 48, "intermediate_size": 64}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 24}
LATENT = {
    "n_routed_experts": 4, "kv_lora_rank": 16, "q_lora_rank": 20, "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12, "v_head_dim": 10, "n_shared_experts": 1, "first_k_dense_replace": 1,
    "topk_method": "greedy", "num_key_value_heads": 4, "n_group": None, "topk_group": None,
    "head_dim": 8, **EXPERTS,
}  # fmt: skip
FAMILIES = {
    "mixtral": ("MixtralConfig", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen3_moe": ("Qwen3MoeConfig", {"num_experts": 6, **EXPERTS}),
    "gpt_oss": ("GptOssConfig", {
        "num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16, "sliding_window": 16,
        "layer_types": ["sliding_attention", "full_attention"], "intermediate_size": 48,
    }),
    "deepseek_v2": ("DeepseekV2Config", LATENT),
    "llama": ("LlamaConfig", {}),
}  # fmt: skip
PARAMETERS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
PROJECTIONS = ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"]


@cache
def base_folder(family, root):
    base_model(family).save_pretrained(root / family)
    return root / family


def base_model(family):
    config, options = FAMILIES[family]
    torch.manual_seed(5)
    made = case(family, config, SIZES | options).build()
    made._experts_implementation = "eager"  # the other has no double
    model = transformers.AutoModelForCausalLM.from_config(made).eval()
    draw_weights(model)
    return model


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("bases")


def random_numbers(model):
    torch.manual_seed(7)
    for name, parameter in model.named_parameters():
        if "magnitude" in name:
            parameter.data *= 1 + 0.3 * torch.rand_like(parameter)
        if "ia3_l" in name:
            parameter.data += 0.3 * torch.randn_like(parameter)
        if "modules_to_save" in name:
            parameter.data += 0.1 * torch.randn_like(parameter)
    return model


def adapted(family, folder, config):
    """Write an adapter with random numbers; return peft's logits with it."""
    torch.manual_seed(11)
    model = random_numbers(peft.get_peft_model(base_model(family), config))
    model.save_pretrained(folder)
    return logits_of(model)


def lora(kind, **more):
    usual = {"task_type": "CAUSAL_LM", "init_lora_weights": False}
    return peft.LoraConfig(**(usual | KINDS[kind] | more))


def check(folder, wanted, paths, size=0.05, backend="cpu"):
    """Check that one batch of these adapters, and a row of none, are the oracle's."""
    adapters = [f"{name}={path}" for name, path in paths.items()]
    with cortiq.load(folder, backend=backend, adapters=adapters) as model:
        found = computed(model, [None, *paths])
    for name, want in wanted.items():
        assert error(found[name], want) < LARGEST_ERROR, name
        assert name is None or error(found[name], wanted[None]) > size, name


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe", "gpt_oss", "deepseek_v2"])
def test_parameters_of_experts_are_pefts(family, root, tmp_path):
    """A second a family: peft makes and computes three models of each."""
    wanted, paths = {None: logits_of(base_model(family))}, {}
    for kind in ("lora", "rank-stabilised"):
        paths[kind] = tmp_path / kind
        config = lora(kind, target_parameters=PARAMETERS, target_modules=["o_proj"])
        wanted[kind] = adapted(family, paths[kind], config)
    paths["down"] = tmp_path / "down"
    config = lora("lora", target_parameters=PARAMETERS[1:], target_modules=[])
    wanted["down"] = adapted(family, paths["down"], config)
    check(base_folder(family, root), wanted, paths)


def test_projections_of_latent_attention_are_pefts(root, tmp_path):
    """Products of each head among them, whose key matrices are turned."""
    wanted, paths = {None: logits_of(base_model("deepseek_v2"))}, {}
    for kind in KINDS:
        paths[kind] = tmp_path / kind
        config = lora(kind, target_modules=PROJECTIONS)
        wanted[kind] = adapted("deepseek_v2", paths[kind], config)
    for name, inner in (("ia3", []), ("ia3 of inputs", ["kv_b_proj"])):
        paths[name.replace(" ", "-")] = tmp_path / name
        config = peft.IA3Config(task_type="CAUSAL_LM", target_modules=PROJECTIONS,
                                feedforward_modules=inner)  # fmt: skip
        wanted[name.replace(" ", "-")] = adapted("deepseek_v2", tmp_path / name, config)
    check(base_folder("deepseek_v2", root), wanted, paths)


def experts_as_modules(model):
    """The experts of a Mixtral as modules of their own, as transformers 4 had them."""
    whole = torch.nn.Module()
    whole.model = torch.nn.Module()
    whole.model.layers = torch.nn.ModuleList()
    for layer in model.model.layers:
        stack = layer.mlp.experts
        inner = stack.down_proj.shape[-1]
        own = torch.nn.Module()
        own.block_sparse_moe = torch.nn.Module()
        own.block_sparse_moe.experts = torch.nn.ModuleList()
        for both, down in zip(stack.gate_up_proj.data, stack.down_proj.data, strict=True):
            expert = torch.nn.Module()
            for name, matrix in (("w1", both[:inner]), ("w3", both[inner:]), ("w2", down)):
                linear = torch.nn.Linear(*matrix.shape[::-1], bias=False)
                linear.weight.data = matrix.clone()
                setattr(expert, name, linear)
            own.block_sparse_moe.experts.append(expert)
        whole.model.layers.append(own)
    return whole


def merged_experts(config, folder):
    """Write an adapter of single experts; return logits with it, merged by peft in float64."""
    model = base_model("mixtral").double()
    torch.manual_seed(11)
    made = random_numbers(peft.get_peft_model(experts_as_modules(base_model("mixtral")), config))
    made.save_pretrained(folder)
    whole = made.double().merge_and_unload()
    for layer, own in zip(model.model.layers, whole.model.layers, strict=True):
        for i, expert in enumerate(own.block_sparse_moe.experts):
            both = torch.cat([expert.w1.weight.data, expert.w3.weight.data])
            layer.mlp.experts.gate_up_proj.data[i] = both
            layer.mlp.experts.down_proj.data[i] = expert.w2.weight.data
    return logits_of(model)


def test_modules_of_single_experts_are_pefts(root, tmp_path):
    """Of all experts, and of some alone: the others' parts are zeros and ones."""
    wanted, paths = {None: logits_of(base_model("mixtral"))}, {}
    configs = {
        kind: peft.LoraConfig(target_modules=["w1", "w2", "w3"], init_lora_weights=False, **options)
        for kind, options in KINDS.items()
    }
    configs["some"] = peft.LoraConfig(
        target_modules=r".*experts\.[13]\.w[12]", init_lora_weights=False, **KINDS["dora"]
    )
    configs["ia3"] = peft.IA3Config(target_modules=["w1", "w2"], feedforward_modules=["w2"])
    for kind, config in configs.items():
        paths[kind] = tmp_path / kind
        wanted[kind] = merged_experts(config, paths[kind])
    check(base_folder("mixtral", root), wanted, paths, 0.02)


@pytest.mark.parametrize("module", ["lm_head", "embed_tokens", "k_proj"])
def test_modules_to_save_are_pefts(module, root, tmp_path):
    config = lora("lora", target_modules=["q_proj"], modules_to_save=[module])
    wanted = {None: logits_of(base_model("llama")), "a": adapted("llama", tmp_path / "a", config)}
    config = lora("lora", target_modules=["v_proj"])
    wanted["other"] = adapted("llama", tmp_path / "b", config)
    check(base_folder("llama", root), wanted, {"a": tmp_path / "a", "other": tmp_path / "b"})


SLOW = pytest.param("wgpu", marks=pytest.mark.slow)
"""Ten seconds and more: a device that a processor computes."""


@pytest.mark.parametrize("backend", ["reference", "torch", "mlx", SLOW])
def test_a_batch_of_such_adapters_has_the_cpus_bits(backend, root, tmp_path):
    """Two seconds: experts, heads, vectors of both, and a whole tensor, on every backend."""
    folder = base_folder("deepseek_v2", root)
    adapted("deepseek_v2", tmp_path / "a", lora(
        "lora", target_parameters=PARAMETERS, target_modules=["kv_b_proj"]))  # fmt: skip
    adapted("deepseek_v2", tmp_path / "b", lora("dora", target_modules=PROJECTIONS))
    saved = ["lm_head", "embed_tokens"]
    adapted("deepseek_v2", tmp_path / "c", lora(
        "lora", target_modules=["o_proj"], modules_to_save=saved))  # fmt: skip
    adapters, names = [f"{n}={tmp_path / n}" for n in "abc"], [None, "a", "b", "c"]
    found = {}
    for one in ("cpu", backend):
        try:
            model = cortiq.load(folder, backend=one, adapters=adapters)
        except cortiq.errors.BackendError as why:
            pytest.skip(str(why))
        with model:
            found[one] = computed(model, names)
    for name in names:
        assert np.array_equal(found["cpu"][name], found[backend][name]), name


def test_one_of_several_is_loaded_in_place(root, tmp_path):
    """A bank with room takes another adapter's part of every expert alone."""
    folder, wanted = base_folder("mixtral", root), {}
    for seed, name in enumerate("abc"):
        config = lora("lora", r=2 + seed, target_parameters=PARAMETERS, target_modules=[])
        wanted[name] = adapted("mixtral", tmp_path / name, config)
    for order in ("cab", "bca"):
        with cortiq.load(folder, backend="cpu") as model:
            for name in order:
                model.load_adapter(name, tmp_path / name)
                assert error(computed(model, [name])[name], wanted[name]) < LARGEST_ERROR
            found = computed(model, list(order))
            assert all(error(found[n], wanted[n]) < LARGEST_ERROR for n in order)


def test_what_fits_no_experts_is_refused(root, tmp_path):
    config = lora("lora", target_parameters=PARAMETERS, target_modules=[])
    adapted("mixtral", tmp_path / "a", config)
    for family, kind, words in (
        ("llama", UnsupportedError, "no experts of the model"),
        ("qwen3_moe", FormatError, "made for another model"),
    ):
        with (
            cortiq.load(base_folder(family, root), backend="reference") as model,
            pytest.raises(kind, match=words),
        ):
            model.load_adapter("a", tmp_path / "a")
    with pytest.raises(UnsupportedError, match=r"target_parameters.*not merged"):
        cortiq.load(base_folder("mixtral", root), lora=(str(tmp_path / "a"),))
