"""GLM 5 Next: the published form of folders, contexts that need no indexer, and its draft layer."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("transformers")

import safetensors.torch
import torch
from checkpoints import draw_weights, write
from families_streams import GLM5_NEXT, INDEXED, LINEAR, Glm5NextTextForCausalLM
from family_harness import changed, distance, logits_of
from head_folders import IDS, chained

import cortiq
from cortiq.errors import RequestError, UnsupportedError
from cortiq.formats.checkpoint import open_checkpoint
from cortiq.models import load_program

TOLERANCE = 1e-5
SPARSE = "deepseek_sparse_attention"
WHOLE = {"model_type": "glm5_next", "architectures": ["Glm5NextForConditionalGeneration"]}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return write(GLM5_NEXT.case("wide"), tmp_path_factory.mktemp("glm5"))


def test_a_folder_of_the_published_form_is_the_text_model(written, tmp_path):
    """Kinds of layers, sizes of delta layers and prefixes as GLM 5.3 Flash has them."""
    tensors = safetensors.torch.load_file(written.folder / "model.safetensors")
    text = json.loads((written.folder / "config.json").read_text())
    sizes = {
        "head_dim": text.pop("linear_head_dim"), "num_heads": text.pop("linear_num_heads"),
        "short_conv_kernel_size": text.pop("linear_conv_kernel_dim"),
        "gate_lower_bound": text.pop("linear_lower_bound"), "kda_layers": [0],
        "full_attn_layers": [1],
    }  # fmt: skip
    text |= {
        "layer_types": [LINEAR, SPARSE], "linear_attn_config": sizes, "head_dim": 0, "mhc": True,
        "mla_use_nope": True, "scoring_func": "sigmoid", "topk_method": "noaux_tc",
        "index_kpool_compress": True, "index_share_for_mtp_iteration": True,
        "indexer_rope_interleave": True, "moe_router_dtype": "float32", "first_k_dense_replace": 1,
        "model_type": "glm5_next_text",
    }  # fmt: skip
    named = {
        name.replace("model.", "model.language_model.", 1): value for name, value in tensors.items()
    }
    named["model.visual.merger.proj.weight"] = torch.zeros(2, 2)
    safetensors.torch.save_file(named, tmp_path / "model.safetensors")
    whole = WHOLE | {"text_config": text, "vision_config": {"depth": 1}, "image_token_id": 7}
    (tmp_path / "config.json").write_text(json.dumps(whole))
    assert distance(logits_of(open_checkpoint(tmp_path), written.tokens), written.logits) < 1e-5


def test_a_context_that_a_query_sees_whole_needs_no_indexer(written):
    """Two pools of four keys and three of the next: the eleventh row still sees all."""
    checkpoint = open_checkpoint(written.folder)
    short, full = (logits_of(checkpoint, written.tokens[:9], n) for n in (11, 256))
    assert distance(short, full) < 1e-12
    programs = [load_program(checkpoint, context=n).program for n in (11, 12)]
    assert ["layers.1.index" in program.slots for program in programs] == [False, True]


def test_a_safe_gate_without_a_number_has_the_usual_bound(written):
    checkpoint = open_checkpoint(written.folder)
    usual, safe, unsafe = (
        logits_of(changed(checkpoint, {"linear_lower_bound": None, **more}), written.tokens)
        for more in (
            {"linear_lower_bound": -5.0},
            {"linear_attn_config": {}},
            {"linear_attn_config": {"safe_gate": False}},
        )
    )
    assert (usual == safe).all() and distance(usual, unsafe) > 1e-3


NORMS = ("enorm", "hnorm", "shared_head.norm")


@pytest.fixture(scope="module")
def drafting(tmp_path_factory):
    """A folder whose last layer drafts: it has no streams; the model it is taken from, and its
    joint matrix and norms.
    """
    folder, case = tmp_path_factory.mktemp("drafting"), GLM5_NEXT.case("wide")
    case.options.update(
        num_hidden_layers=3, layer_types=[LINEAR, INDEXED, INDEXED],
        mlp_layer_types=["dense", "sparse", "sparse"],
    )  # fmt: skip
    torch.manual_seed(5)
    how = {"experts_implementation": "eager", "attn_implementation": "sdpa"}
    model = Glm5NextTextForCausalLM._from_config(case.build(), **how).eval()
    draw_weights(model)
    model.save_pretrained(folder)
    path, draw = folder / "model.safetensors", torch.Generator().manual_seed(7)
    tensors = safetensors.torch.load_file(path)
    tensors = {name: t for name, t in tensors.items() if "layers.2.hc_" not in name}
    width = model.config.hidden_size
    own = {name: 1 + 0.2 * torch.randn(width, generator=draw) for name in NORMS}
    own["eh_proj"] = torch.randn(width, 2 * width, generator=draw) / (2 * width) ** 0.5
    tensors |= {f"model.layers.2.{name}.weight": value for name, value in own.items()}
    safetensors.torch.save_file(tensors, path)
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "num_hidden_layers": 2, "layer_types": [LINEAR, INDEXED], "indexer_types": ["full"] * 2,
        "mlp_layer_types": ["dense", "sparse"], "num_nextn_predict_layers": 1,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    return folder, model.double(), own


def test_the_draft_layer_is_one_of_the_model_s_without_streams(drafting):
    folder, model, own = drafting
    inner, block = model.model, model.model.layers[2]

    def norm(x, name):
        layer = type(inner.norm)(x.shape[-1], model.config.rms_norm_eps)
        layer.weight.data = own[name].double()
        return layer(x)

    inner.config.num_hidden_layers = 2
    with torch.no_grad():
        hidden = inner(torch.tensor(IDS)[None], use_cache=False).last_hidden_state
        embedded = inner.embed_tokens(torch.tensor(IDS[1:])[None])
        halves = norm(embedded, NORMS[0]), norm(hidden[:, :-1], NORMS[1])
        x = torch.cat(halves, dim=-1) @ own["eh_proj"].double().T
        seen = torch.ones(x.shape[:2], dtype=torch.bool)
        x = x + block.self_attn(block.input_layernorm(x), attention_mask=seen)[0]
        x = x + block.mlp(block.post_attention_layernorm(x))
        logits = model.lm_head(norm(x, NORMS[2]))[0, -1:].numpy()
    ((ours, _),) = chained(folder)
    assert distance(ours[None], logits) < TOLERANCE


def test_drafts_change_no_token(drafting):
    """Over the borders of pools, which drafts that do not hold have been counted in."""
    folder = drafting[0]
    with cortiq.load(folder, backend="cpu", threads=1, heads="auto") as model:
        plain = model.generate(IDS.tolist(), max_tokens=20)
        drafted = model.generate(IDS.tolist(), max_tokens=20, draft="mtp", draft_depth=3)
    assert drafted.token_ids == plain.token_ids and drafted.stats.drafts.drafted > 0


def test_a_draft_layer_with_streams_is_refused(drafting, tmp_path):
    folder = drafting[0]
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    tensors["model.layers.2.hc_attn_fn"] = tensors["model.layers.1.hc_attn_fn"].clone()
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    with pytest.raises(UnsupportedError, match="draft modules with residual streams"):
        load_program(open_checkpoint(tmp_path), heads="auto")
    with pytest.raises(RequestError, match=r"takes one row a token, not layers\.1\.out"):
        load_program(open_checkpoint(folder), heads="mtp:raw")
