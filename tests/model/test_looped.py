"""Looped models: layers that are passed several times, against Llama's with copies of them."""

from __future__ import annotations

import copy
import json

import pytest

pytest.importorskip("transformers")
pytest.importorskip("gguf")

import torch
import transformers
from family_harness import COMMON, GEOMETRIES, POSITIONS, changed, distance, logits_of
from gguf_files import GGUF, emit, tensors_for_gguf
from sequences import alone, in_chunks, same

from cortiq.backend import CompileOptions, Digest
from cortiq.errors import FormatError, UnsupportedError
from cortiq.formats.checkpoint import open_checkpoint
from cortiq.models import load_program
from cortiq_reference.backend import ReferenceBackend

TOLERANCE = 1e-5
LOOPS = {
    "wide": {"num_loops": 2},
    "odd": {"num_loops": 3, "skip_loop_final_norm": True},
    "switched": {"num_loops": 2, "attention_bias": True, "mlp_bias": True},
}  # fmt: skip
WANTS = (Digest(), Digest("hidden"))
TOKENS = [(7 * n * n + 3 * n) % 96 for n in range(POSITIONS)]


def looped(model, loops, skips):
    """Logits of a Llama whose layers are copied for each pass, in double."""
    trunk = copy.deepcopy(model.model)
    first = list(trunk.layers)
    trunk.layers = torch.nn.ModuleList(copy.deepcopy(one) for _ in range(loops) for one in first)
    for last in range(len(first) - 1, len(trunk.layers) - 1, len(first)):
        if not skips:
            trunk.layers[last].register_forward_hook(lambda module, given, y: model.model.norm(y))
    trunk.config.num_hidden_layers = len(trunk.layers)
    with torch.no_grad():
        hidden = trunk(torch.tensor([TOKENS]), use_cache=False).last_hidden_state
        return model.lm_head(hidden)[0].numpy()


@pytest.fixture(scope="module", params=LOOPS)
def written(request, tmp_path_factory):
    """A folder of Nanbeige's form, its configuration and the logits it should have."""
    own = dict(LOOPS[request.param])
    options = {**COMMON, **GEOMETRIES[request.param], "pad_token_id": 0, **own}
    torch.manual_seed(5)
    given = {key: value for key, value in options.items() if "loop" not in key}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**given))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.15 if parameter.dim() > 1 else 0.5)
    folder = tmp_path_factory.mktemp(request.param)
    model.save_pretrained(folder)
    path = folder / "config.json"
    config = json.loads(path.read_text()) | own | {"model_type": "nanbeige"}
    path.write_text(json.dumps(config))
    right = looped(model.double(), own["num_loops"], own.get("skip_loop_final_norm", False))
    return folder, config, right


def test_every_pass_is_transformers_in_double(written):
    folder, _, right = written
    assert distance(logits_of(open_checkpoint(folder), TOKENS), right) < TOLERANCE


def looped_file(path, folder, config):
    """Write the folder as llama.cpp's converter does."""
    how = GGUF("llama", permuted=True)
    values = {
        "context_length": 256, "embedding_length": config["hidden_size"],
        "block_count": config["num_hidden_layers"], "num_loops": config["num_loops"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": config["head_dim"], "attention.value_length": config["head_dim"],
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "skip_loop_final_norm": config.get("skip_loop_final_norm", False),
        "rope.freq_base": 10000.0, "rope.dimension_count": config["head_dim"],
        "vocab_size": config["vocab_size"],
    }  # fmt: skip
    emit(path, "nanbeige", values, tensors_for_gguf(folder, config, how))


def test_a_gguf_file_is_the_same_model(written, tmp_path):
    folder, config, right = written
    looped_file(tmp_path / "m.gguf", folder, config)
    assert distance(logits_of(open_checkpoint(tmp_path / "m.gguf"), TOKENS), right) < TOLERANCE


def test_every_option_moves_the_logits_or_is_refused(written):
    folder, config, right = written
    opened = open_checkpoint(folder)
    skips = not config.get("skip_loop_final_norm", False)
    for changes in ({"num_loops": 4}, {"num_loops": 1}, {"skip_loop_final_norm": skips}):
        assert distance(logits_of(changed(opened, changes), TOKENS), right) > 30 * TOLERANCE
    for key, value in {"loop_share_kv": True, "enable_mhc": True, "qk_layernorm": True}.items():
        with pytest.raises(UnsupportedError, match=key):
            load_program(changed(opened, {key: value}))
    with pytest.raises(FormatError, match="num_loops"):
        load_program(changed(opened, {"num_loops": 0}))


def test_passes_keep_rows_of_their_own_and_chunks_change_no_bit(written):
    folder, config, _ = written
    loaded = load_program(open_checkpoint(folder), weight_format="w8")
    slots = {name for node in loaded.program.trunk.nodes for name in node.slots.values()}
    assert len(slots) == config["num_hidden_layers"] * config["num_loops"]
    made = ReferenceBackend().compile(loaded.program, loaded.weights, CompileOptions(threads=1))
    whole, _ = alone(made, TOKENS, WANTS)
    state = made.open(len(TOKENS))
    assert same(in_chunks(made, state, TOKENS, (5, 1), WANTS), whole)
    state.release()
