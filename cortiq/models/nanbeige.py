"""Nanbeige 4.2: Llama's layers, passed several times with one set of weights (looped)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cortiq.ir import Program
from cortiq.models import llama
from cortiq.models.config import Keys
from cortiq.models.names import Names
from cortiq.models.parts import Decoder, gated_mlp, passes

ARCHITECTURES = ("nanbeige",)
GGUF = ("nanbeige",)
KEYS = Keys(
    same_as={"kv_channels": "head_dim"},
    harmless=frozenset({"loop_loss_weights"}),
    only={
        "emb_neighbor_num": None, "enable_depth_attention": False,
        "enable_double_loop_split": False, "enable_h_res_identity": False,
        "enable_hyper_connection": False, "enable_mhc": False, "loop_middle_layers": None,
        "loop_share_kv": False, "qk_layernorm": False, "yarn_scale": 1.0,
    },
    gguf={"num_loops": "num_loops", "skip_loop_final_norm": "skip_loop_final_norm"},
    gguf_tensors=llama.KEYS.gguf_tensors,
)  # fmt: skip
NAMES = Names()


@dataclass(frozen=True, kw_only=True)
class Config(llama.Config):
    """Fields of Nanbeige's configuration.

    Attributes
    ----------
    num_loops : passes through the layers, each with rows of keys and values of its own.
    skip_loop_final_norm : the final norm comes after the last pass only, not after every one.
    """

    max_position_embeddings: int = 2048
    num_loops: int = 1
    skip_loop_final_norm: bool = False


def build(config: Config, context: int) -> Program:
    """Build the trunk: every pass has layers of its own in the graph."""
    count, loops = config.num_hidden_layers, config.num_loops
    stored = passes(count, times=loops)
    decoder = Decoder(config, context, family="nanbeige", eps=config.rms_norm_eps, stored=stored)
    mixer = llama.attention(config, context)
    mlp = replace(gated_mlp(config, config.hidden_act), biased=config.mlp_bias)
    x = decoder.embed()
    for n in range(len(stored)):
        if n and n % count == 0 and not config.skip_loop_final_norm:
            x = decoder.norm(x, f"layers.{n - 1}.loop_norm", "model.norm")
        x = decoder.mixer(x, n, mixer)
        x = decoder.feed_forward(x, n, mlp)
    return decoder.finish(x)
