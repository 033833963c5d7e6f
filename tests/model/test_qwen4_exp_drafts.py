"""The layer that drafts of Qwen 3.8 Flash Next: its network, and that drafts change no token."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("transformers")

import torch
import transformers
from checkpoints import draw_weights
from families_streams import INDEXED, LINEAR, QWEN4_EXP
from family_harness import distance
from head_folders import IDS, chained
from safetensors.torch import load_file, save_file
from transformers.models.qwen4_exp import modeling_qwen4_exp as modelling

import cortiq
from cortiq.errors import RequestError
from cortiq.formats.checkpoint import open_checkpoint
from cortiq.models import load_program


def of_draft_layer(config, draw):
    """Tensors of the layer that drafts but for its block; norms are held less one."""
    width, streams = config.hidden_size, config.hc_count
    mixer = modelling.Qwen4ExpTextGatedResidual(config, use_combine=False)
    shapes = {f"hyper_connection_mixer.{name}": p.shape for name, p in mixer.named_parameters()}
    shapes |= {f"fc_{half}.weight": (width, width) for half in ("embedding", "hidden")}
    shapes["pre_fc_norm_embedding.weight"] = (width,)
    shapes["pre_fc_norm_hidden.weight"] = (streams * width,)
    return {
        name: torch.randn(*shape, generator=draw) * (0.2 if "norm" in name else shape[-1] ** -0.5)
        for name, shape in shapes.items()
    }


@pytest.fixture(scope="module")
def drafting(tmp_path_factory):
    """A folder whose last layer drafts, the model it is taken from, and the layer's tensors."""
    folder, case = tmp_path_factory.mktemp("drafting"), QWEN4_EXP.case("wide")
    case.options.update(num_hidden_layers=3, layer_types=[LINEAR, INDEXED, INDEXED])
    torch.manual_seed(5)
    how = {"experts_implementation": "eager", "attn_implementation": "sdpa"}
    model = transformers.Qwen4ExpForCausalLM._from_config(case.build(), **how).eval()
    draw_weights(model)
    model.save_pretrained(folder)
    own = of_draft_layer(model.config, torch.Generator().manual_seed(7))
    tensors = {
        name.replace("model.layers.2.", "mtp.layers.0."): value
        for name, value in load_file(folder / "model.safetensors").items()
    }
    tensors |= {f"mtp.{name}": value for name, value in own.items()}
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    config |= {"num_hidden_layers": 2, "layer_types": [LINEAR, INDEXED]}
    (folder / "config.json").write_text(json.dumps(config))
    return folder, model.double(), own


def test_the_layer_that_drafts_reads_the_streams_and_the_next_token(drafting):
    """As public servers describe it, with transformers' layer as its block."""
    folder, model, own = drafting
    inner, config = model.model, model.config
    width, streams = config.hidden_size, config.hc_count

    def loaded(module, name):
        given = {k.removeprefix(f"{name}."): v for k, v in own.items() if k.startswith(f"{name}.")}
        module.load_state_dict(given)
        return module.double()

    norms = [
        loaded(modelling.Qwen4ExpTextRMSNorm(streams * width, group_size=width, eps=eps), name)
        if name.endswith("hidden")
        else loaded(modelling.Qwen4ExpTextRMSNorm(width, eps=eps), name)
        for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden")
        for eps in [config.rms_norm_eps]
    ]
    mixer = modelling.Qwen4ExpTextGatedResidual(config, use_combine=False)
    seen = []
    hook = inner.layers[1].register_forward_hook(lambda module, given, out: seen.append(out))
    with torch.no_grad():
        inner(torch.tensor(IDS)[None], use_cache=False)
        hook.remove()
        embedded = norms[0](inner.embed_tokens(torch.tensor(IDS[1:])[None]))
        e = embedded @ own["fc_embedding.weight"].double().T
        rows = norms[1](seen[0][:, :-1]).unflatten(-1, (streams, width))
        x = (rows @ own["fc_hidden.weight"].double().T + e[:, :, None]).flatten(-2)
        count = x.shape[1]
        turned = inner.rotary_emb(x, torch.arange(count).expand(3, 1, -1))
        causal = torch.ones(count, count, dtype=torch.bool).tril()[None, None]
        x = inner.layers[2](x, turned, attention_mask=causal)
        out = loaded(mixer, "hyper_connection_mixer")(x)
        logits = model.lm_head(out)[0, -1:].numpy()
    ((ours, _),) = chained(folder)
    assert distance(ours[None], logits) < 1e-5


def test_rows_that_the_layer_was_not_made_for_are_refused(drafting):
    with pytest.raises(RequestError, match="takes all residual streams, not hidden"):
        load_program(open_checkpoint(drafting[0]), heads="mtp:post")


def test_drafts_change_no_token(drafting):
    with cortiq.load(drafting[0], backend="cpu", threads=1, heads="auto") as model:
        plain = model.generate(IDS.tolist(), max_tokens=20)
        drafted = model.generate(IDS.tolist(), max_tokens=20, draft="mtp", draft_depth=3)
    assert drafted.token_ids == plain.token_ids and drafted.stats.drafts.drafted > 0
