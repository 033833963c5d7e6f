"""Adapters chosen by request: peft's own model, not merged, in float64 is the oracle."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("peft")
pytest.importorskip("gguf")

import peft
import torch
import transformers
from adapter_folders import write_lora
from checkpoints import case, draw_weights
from gguf_files import GGUF, write_gguf

import cortiq
from cortiq.backend import Batch, Named, Row
from cortiq.errors import UnsupportedError
from cortiq.ir.overlays import overlay_inputs

TOKENS = [3, 7, 11, 50, 9, 2]
LOGITS = Named("logits")
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
MLP = ["gate_proj", "up_proj", "down_proj"]
SIZES = {"hidden_size": 48, "intermediate_size": 64}
FAMILIES = {
    "llama": ("llama", "LlamaConfig", SIZES, [*ATTENTION, *MLP]),
    "biased": ("qwen2", "Qwen2Config", SIZES, [*ATTENTION, *MLP]),
    "fused": ("phi3", "Phi3Config", SIZES | {"pad_token_id": 0},
              ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]),
    "gemma": ("gemma2", "Gemma2Config", SIZES | {"head_dim": 16}, [*ATTENTION, *MLP]),
}  # fmt: skip
KINDS = {
    "lora": {"r": 4, "lora_alpha": 6},
    "rank-stabilised": {"r": 3, "lora_alpha": 5, "use_rslora": True},
    "dora": {"r": 5, "lora_alpha": 6, "use_dora": True},
}
LARGEST_ERROR = 5e-4
"""Of logits, in the largest one: what matrices and rows of 16 bits leave, with and without."""


def base_model(family, **options):
    name, config, usual, _ = FAMILIES[family]
    made = case(name, config, usual | options).build()
    torch.manual_seed(5)
    model = transformers.AutoModelForCausalLM.from_config(made).eval()
    draw_weights(model)
    return model


def adapted(family, folder, kind, targets=None, **options):
    """Write an adapter with random numbers; return peft's model with it, in float64."""
    targets = targets or FAMILIES[family][3]
    if kind == "ia3":
        inner = [target for target in targets if target == "down_proj"]
        config = peft.IA3Config(
            task_type="CAUSAL_LM", target_modules=targets, feedforward_modules=inner
        )
    else:
        config = peft.LoraConfig(
            task_type="CAUSAL_LM", target_modules=targets, init_lora_weights=False, **KINDS[kind]
        )
    torch.manual_seed(7)
    model = peft.get_peft_model(base_model(family, **options), config)
    for name, parameter in model.named_parameters():
        if "magnitude" in name:
            parameter.data *= 1 + 0.3 * torch.rand_like(parameter)
        if "ia3_l" in name:
            parameter.data += 0.3 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    return logits_of(model)


def logits_of(model):
    with torch.no_grad():
        return model.double()(torch.tensor([TOKENS]), use_cache=False).logits[0].numpy()


def computed(model, names):
    """Logits of one batch, a sequence of each adapter."""
    for name in names:
        model.adapters.sync(model.adapters.named(name))
    given = overlay_inputs if model.executable.varied else lambda number: {}
    states = [model.executable.open(len(TOKENS)) for _ in names]
    numbers = [0 if n is None else model.adapters.named(n).number for n in names]
    rows = [
        Row(state, at, token, (LOGITS,), given(number))
        for state, number in zip(states, numbers, strict=True)
        for at, token in enumerate(TOKENS)
    ]
    found = model.executable.forward(Batch(rows)).result().rows
    values = np.array([row[LOGITS] for row in found], np.float64)
    return dict(zip(names, values.reshape(len(names), len(TOKENS), -1), strict=True))


def error(got, want):
    return np.abs(got - want).max() / np.abs(want).max()


@pytest.mark.parametrize("family", FAMILIES)
def test_one_batch_of_every_kind_is_pefts(family, tmp_path):
    """A second a family: peft makes and computes four models of each."""
    base_model(family).save_pretrained(tmp_path / "base")
    wanted = {None: logits_of(base_model(family))}
    for kind in (*KINDS, "ia3"):
        wanted[kind] = adapted(family, tmp_path / kind, kind)
    adapters = [f"{kind}={tmp_path / kind}" for kind in wanted if kind]
    with cortiq.load(tmp_path / "base", backend="cpu", adapters=adapters) as model:
        found = computed(model, list(wanted))
    for kind, want in wanted.items():
        assert error(found[kind], want) < LARGEST_ERROR, kind
        assert kind is None or error(found[kind], wanted[None]) > 0.1


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("targets", [["embed_tokens"], ["lm_head"], ["embed_tokens", "q_proj"]])
def test_tables_and_heads_are_changed_each_for_itself(targets, tied, tmp_path):
    """Peft changes what its target computes, also where a table is the head, too."""
    options = {"tie_word_embeddings": tied}
    base_model("llama", **options).save_pretrained(tmp_path / "base")
    want = adapted("llama", tmp_path / "a", "lora", targets, **options)
    plain = logits_of(base_model("llama", **options))
    with cortiq.load(tmp_path / "base", backend="cpu", adapters=[f"a={tmp_path / 'a'}"]) as model:
        found = computed(model, [None, "a"])
    assert error(found["a"], want) < LARGEST_ERROR < error(found["a"], plain)
    assert error(found[None], plain) < LARGEST_ERROR


@pytest.mark.parametrize("kind", ["lora", "dora"])
def test_the_merged_form_is_the_overlay_within_its_error(kind, tmp_path):
    base_model("llama").save_pretrained(tmp_path / "base")
    adapted("llama", tmp_path / "a", kind)
    path = str(tmp_path / "a")
    with (
        cortiq.load(tmp_path / "base", backend="cpu", adapters=[f"a={path}:0.5"]) as beside,
        cortiq.load(tmp_path / "base", backend="cpu", lora=(f"{path}:0.5",)) as merged,
    ):
        one, other = computed(beside, ["a"])["a"], computed(merged, [None])[None]
        assert error(one, other) < LARGEST_ERROR
        assert beside.generate([1], max_tokens=1, adapter="a").fingerprint != (
            merged.generate([1], max_tokens=1).fingerprint
        )


@pytest.mark.parametrize("kind", ["lora", "dora", "ia3"])
def test_a_peft_adapter_for_a_gguf_file_whose_rows_are_turned(kind, tmp_path):
    base_model("llama").save_pretrained(tmp_path / "base")
    write_gguf(tmp_path / "m.gguf", tmp_path / "base", GGUF("llama", permuted=True))
    want = adapted("llama", tmp_path / "a", kind)
    with cortiq.load(tmp_path / "m.gguf", backend="cpu", adapters=[f"a={tmp_path / 'a'}"]) as model:
        assert error(computed(model, ["a"])["a"], want) < LARGEST_ERROR


def test_what_only_merging_can_do_is_refused(tmp_path):
    base_model("llama").save_pretrained(tmp_path / "base")
    torch.manual_seed(1)
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=["norm"])
    made = peft.get_peft_model(base_model("llama"), config)
    for name, parameter in made.named_parameters():
        if "modules_to_save" in name:
            parameter.data += 1
    made.save_pretrained(tmp_path / "a")
    with (
        cortiq.load(tmp_path / "base", backend="reference") as model,
        pytest.raises(UnsupportedError, match=r"holds .*norm.weight whole.*\n.*--lora PATH"),
    ):
        model.load_adapter("a", tmp_path / "a")


@pytest.mark.slow
def test_64_adapters_of_a_real_model_in_one_batch(smollm2_path, tmp_path):
    """Half a minute: rank 16 on four matrices a layer, drafts and kept prefixes on."""
    with cortiq.load(smollm2_path, backend="cpu", context=256) as model:
        targets, names = ("q_proj", "v_proj", "up_proj", "down_proj"), [f"a{i}" for i in range(64)]
        for i, name in enumerate(names):
            model.load_adapter(name, write_lora(tmp_path / name, model, i, 16, targets, size=0.02))
        model.keep_prefixes(16)
        prompts = [f"Tell me about the number {i}. It is" for i in range(64)]
        options = {"max_tokens": 12, "ignore_eos": True, "draft": "lookup", "temperature": 0}
        together = model.generate_many(prompts, adapters=names, **options)
        assert len({made.digest for made in together}) == 64
        for i in range(0, 64, 9):
            alone = model.generate(prompts[i], adapter=names[i], **options)
            assert alone.step_digests == together[i].step_digests
