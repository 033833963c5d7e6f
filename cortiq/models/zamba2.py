"""Zamba 2: Mamba-2 in every layer; some read one of few shared blocks, each use with a LoRA."""

from __future__ import annotations

from dataclasses import dataclass

from cortiq.ir import Program, Value, ops
from cortiq.ir.layers import Linear, Mamba2, Residual, RMSNorm
from cortiq.models.config import BaseConfig, Keys, check_derived
from cortiq.models.granitemoehybrid import LINEAR, MAMBA
from cortiq.models.layer_kinds import layer_list
from cortiq.models.names import Names
from cortiq.models.parts import Decoder, activation
from cortiq.models.rope import rope_table
from cortiq.numerics.rope import RopeTable

ARCHITECTURES = ("zamba2",)
GGUF: tuple[str, ...] = ()
KEYS = Keys(
    aliases={"layers_block_type": "layer_types", "attention_head_dim": "head_dim"},
    harmless=frozenset({
        "chunk_size", "num_logits_to_keep", "time_step_floor", "time_step_limit", "time_step_max",
        "use_mamba_kernels", "use_mem_eff_path",
    }),
    only={"use_conv_bias": True, "use_long_context": False},
)  # fmt: skip
NAMES = Names()
HYBRID = "hybrid"
OLD_KINDS = {"mamba": LINEAR}
MAMBA_EPS = 1e-5
"""Of the norm within Mamba-2, which no configuration changes."""


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `Zamba2Config`; a head is as wide as its share of two rows of the model.

    Attributes
    ----------
    num_mem_blocks : shared blocks, which hybrid layers take in turn.
    adapter_rank : rank of what each use adds to the MLP's first matrix, and to q, k and v if
        `use_shared_attention_adapter`.
    """

    max_position_embeddings: int = 4096
    tie_word_embeddings: bool = True
    rms_norm_eps: float = 1e-5
    hidden_act: str = "gelu"
    layer_types: tuple[str, ...] | None = None
    mamba_d_state: int = 64
    mamba_d_conv: int = 4
    mamba_expand: int = 2
    mamba_ngroups: int = 1
    n_mamba_heads: int = 8
    time_step_min: float = 0.001
    add_bias_linear: bool = False
    num_mem_blocks: int = 1
    use_shared_attention_adapter: bool = False
    adapter_rank: int = 128
    use_mem_rope: bool = False
    attention_hidden_size: int | None = None
    hybrid_layer_ids: tuple[int, ...] | None = None
    kv_channels: int | None = None
    mamba_headdim: int | None = None
    num_query_groups: int | None = None

    @property
    def head_width(self) -> int:
        """Width of a head of attention."""
        return 2 * self.hidden_size // self.num_attention_heads

    def kinds(self) -> tuple[str, ...]:
        """Return whether each layer is Mamba-2 alone, or reads a shared block before.

        Raises
        ------
        FormatError : the list fits no layers, or a number contradicts those it follows from.
        """
        listed = tuple(OLD_KINDS.get(kind, kind) for kind in self.layer_types or ())
        kinds = layer_list(listed, self.num_hidden_layers, (LINEAR, HYBRID))
        check_derived(
            "config", head_dim=(self.head_dim, self.head_width),
            attention_hidden_size=(self.attention_hidden_size, 2 * self.hidden_size),
            hybrid_layer_ids=(
                self.hybrid_layer_ids, tuple(n for n, kind in enumerate(kinds) if kind == HYBRID)
            ),
            kv_channels=(self.kv_channels, self.hidden_size // self.num_attention_heads),
            mamba_headdim=(self.mamba_headdim, self.mamba().head_dim),
            num_query_groups=(self.num_query_groups, self.num_attention_heads),
        )  # fmt: skip
        return kinds

    def mamba(self) -> Mamba2:
        """Return the mixer of all layers, whose step has a lower bound."""
        inner = self.mamba_expand * self.hidden_size
        return Mamba2(
            width=self.hidden_size, heads=self.n_mamba_heads,
            head_dim=inner // self.n_mamba_heads, state_dim=self.mamba_d_state,
            groups=self.mamba_ngroups, kernel=self.mamba_d_conv, eps=MAMBA_EPS,
            norm_groups=self.mamba_ngroups, biased=self.add_bias_linear,
            step_low=self.time_step_min,
        )  # fmt: skip


class SharedBlock:
    """A shared block as one layer uses it, under construction.

    Attributes
    ----------
    here : beginning of the names of its values. file : of its tensors. use : number of the use.
    """

    def __init__(self, decoder: Decoder, config: Config, here: str, file: str, use: int) -> None:
        self.decoder, self.config, self.builder = decoder, config, decoder.builder
        self.here, self.file, self.use = here, file, use

    def matrix(self, x: Value, tensor: str, rows: int, biased: bool = False) -> Value:
        """Write a matrix of the block, called after its tensor."""
        op = Linear(x.type.shape[-1], rows, biased)
        weights = {role: f"{self.file}.{tensor}.{role}" for role in op.weight_shapes()}
        return self.builder.add(op, x, name=f"{self.here}.{tensor}", weights=weights)

    def adapted(self, x: Value, tensor: str, adapter: str, rows: int, biased: bool) -> Value:
        """Write a matrix and what this use adds to it: B(A(x))."""
        y = self.matrix(x, tensor, rows, biased)
        if not adapter:
            return y
        inner = self.matrix(x, f"{adapter}.{self.use}.0", self.config.adapter_rank)
        more = self.matrix(inner, f"{adapter}.{self.use}.1", rows)
        return self.builder.add(Residual(), y, more, name=f"{self.here}.{tensor}.adapted")

    def normed(self, x: Value, tensor: str) -> Value:
        """Write a norm of the block."""
        op = RMSNorm(x.type.shape[-1], self.config.rms_norm_eps)
        weights = {"weight": f"{self.file}.{tensor}.weight"}
        return self.builder.add(op, x, name=f"{self.here}.{tensor}", weights=weights)

    def attention(self, x: Value, rope: RopeTable | None) -> Value:
        """Write attention from rows of twice the model's width to rows of its own."""
        add, config, here = self.builder.add, self.config, f"{self.here}.attention"
        heads, kv, dim = config.num_attention_heads, config.kv_heads, config.head_width
        rows = {}
        for role, count in (("q", heads), ("k", kv), ("v", kv)):
            adapter = f"self_attn.linear_{role}_adapter_list"
            adapter = adapter if config.use_shared_attention_adapter else ""
            y = self.adapted(x, f"self_attn.{role}_proj", adapter, count * dim, False)
            y = add(ops.Reshape((count, dim)), y, name=f"{here}.{role}.heads")
            if rope and role != "v":
                y = add(ops.Rope(rope), y, self.decoder.position, name=f"{here}.{role}.rope")
            rows[role] = add(ops.Quantise(), y, name=f"{here}.{role}.quantised")
        slots = {"kv": f"{self.here}.kv"}
        store, name = ops.StoreKV(kv, dim, dim), f"{here}.store"
        self.builder.add_node(store, rows["k"], rows["v"], name=name, slots=slots)
        attend = ops.Attend(heads, kv, dim, dim, (dim / 2) ** -0.5)
        y = add(attend, rows["q"], self.decoder.position, name=f"{here}.attend", slots=slots)
        y = add(ops.Reshape((heads * dim,)), y, name=f"{here}.merged")
        return self.matrix(y, "self_attn.o_proj", config.hidden_size)

    def mlp(self, x: Value) -> Value:
        """Write the gated MLP, whose first matrix holds gate and up."""
        add, config, inner = self.builder.add, self.config, self.config.intermediate_size
        adapter, biased = "feed_forward.gate_up_proj_adapter_list", config.add_bias_linear
        both = self.adapted(x, "feed_forward.gate_up_proj", adapter, 2 * inner, biased)
        gate = add(ops.Slice(0, inner), both, name=f"{self.here}.gate")
        up = add(ops.Slice(inner, 2 * inner), both, name=f"{self.here}.up")
        act = ops.Activation(activation(config.hidden_act))
        gate = add(act, gate, name=f"{self.here}.activation")
        y = add(ops.Multiply(), gate, up, name=f"{self.here}.gated")
        return self.matrix(y, "feed_forward.down_proj", config.hidden_size, biased)


def build(config: Config, context: int) -> Program:
    """Build the trunk; shared blocks read the embedding beside the row of their layer."""
    decoder = Decoder(config, context, family="zamba2", eps=config.rms_norm_eps)
    builder, kinds, mamba = decoder.builder, config.kinds(), config.mamba()
    hybrid = [n for n, kind in enumerate(kinds) if kind == HYBRID]
    rope = rope_table(config, context) if config.use_mem_rope else None
    first = x = decoder.embed()
    for n in range(config.num_hidden_layers):
        here, read, prefix = f"layers.{n}", x, ""
        if n in hybrid:
            use = hybrid.index(n)
            owner = hybrid[use % config.num_mem_blocks]
            file = f"model.layers.{owner}.shared_transformer"
            block = SharedBlock(decoder, config, here, file, use)
            y = builder.add(ops.Concat(), x, first, name=f"{here}.beside")
            y = block.attention(block.normed(y, "input_layernorm"), rope)
            y = block.mlp(block.normed(y, "pre_ff_layernorm"))
            weights = {"weight": f"model.layers.{n}.linear.weight"}
            op = Linear(config.hidden_size, config.hidden_size)
            y = builder.add(op, y, name=f"{here}.linear", weights=weights)
            read = builder.add(Residual(), x, y, name=f"{here}.read")
            prefix = "mamba_decoder."
        x = decoder.mixer(
            x, n, mamba, name="mamba", tensors=f"{prefix}mamba", table=MAMBA,
            before=f"{prefix}input_layernorm", out="out", read=read,
        )  # fmt: skip
    return decoder.finish(x, norm="model.final_layernorm")
