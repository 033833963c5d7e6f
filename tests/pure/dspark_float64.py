"""DSpark drafters with random weights, and their formulas in float64; no code is cortiq's."""

from __future__ import annotations

import json

import numpy as np
import safetensors.numpy

LATENT = {
    "model_type": "k3_dspark", "architectures": ["K3DSparkModel"], "hidden_size": 64,
    "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3,
    "num_key_value_heads": 3, "q_lora_rank": 20, "kv_lora_rank": 24, "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8, "v_head_dim": 10, "mla_use_nope": False, "mla_use_output_gate": False,
    "vocab_size": 320, "rms_norm_eps": 0.02, "max_position_embeddings": 4096, "rope_theta": 50.0,
    "num_target_layers": 2, "target_hidden_size": 64, "target_num_hidden_layers": 3,
    "target_layer_ids": [0, 2], "mask_token_id": 319, "pad_token_id": 318, "markov_rank": 32,
    "markov_head_type": "vanilla", "enable_confidence_head": True,
    "confidence_head_with_markov": True, "tie_word_embeddings": False, "draft_vocab_size": 320,
    "_torchspec_version": "0.1.0", "torch_dtype": "bfloat16",
    "rope_parameters": {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16,
        "rope_theta": 50.0, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0,
    },
}  # fmt: skip
"""config.json of a folder of Kimi K3's kind."""
STREAMS = {
    "model_type": "deepseek_v4", "architectures": ["DeepseekV4ForCausalLM"], "vocab_size": 300,
    "hidden_size": 48, "intermediate_size": 40, "moe_intermediate_size": 40,
    "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 16,
    "qk_rope_head_dim": 6, "q_lora_rank": 20, "o_groups": 2, "o_lora_rank": 12,
    "n_routed_experts": 6, "num_experts_per_tok": 2, "routed_scaling_factor": 1.5,
    "swiglu_limit": 1.5, "sliding_window": 7, "compress_ratios": [0] * 5, "num_hash_layers": 0,
    "hc_mult": 3, "hc_sinkhorn_iters": 4, "hc_eps": 1e-3, "rms_norm_eps": 0.02,
    "rope_theta": 100.0, "max_position_embeddings": 256, "num_nextn_predict_layers": 1,
    "tie_word_embeddings": False, "dspark_block_size": 5, "dspark_markov_rank": 16,
    "dspark_noise_token_id": 299, "dspark_target_layer_ids": [0, 2],
}  # fmt: skip
"""config.json of DeepSeek V4's kind, with a drafter of `STAGES` layers beside the trunk."""
STAGES = 2


def _drawn(shapes, seed):
    """Matrices that keep a row's size, norms near 1."""
    rng, found = np.random.default_rng(seed), {}
    for name, shape in shapes.items():
        values = rng.standard_normal(shape)
        if name.endswith(("base", "bias", "attn_sink")):
            values *= 0.3
        elif name.endswith("scale") or len(shape) == 1:
            values = 1 + 0.2 * values
        else:
            values /= shape[-1] ** 0.5
        found[name] = values.astype(np.float32)
    return found


def _written(folder, tensors, config):
    folder.mkdir(exist_ok=True)
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return tensors


def latent_tensors(seed=1):
    """Tensors of a folder with `LATENT`, as published."""
    c = LATENT
    width, heads, rank, latent = 64, 3, c["q_lora_rank"], c["kv_lora_rank"]
    shapes = {
        "context_proj.weight": (width, 2 * width), "context_norm.weight": (width,),
        "final_norm.weight": (width,), "confidence_head.proj.weight": (1, width + 32),
        "confidence_head.proj.bias": (1,), "embed_tokens.weight": (320, width),
        **{f"markov_head.markov_w{n}.weight": (320, 32) for n in (1, 2)},
    }  # fmt: skip
    for n in range(c["num_hidden_layers"]):
        shapes |= {f"layers.{n}.{name}.weight": shape for name, shape in {
            "input_layernorm": (width,), "post_attention_layernorm": (width,),
            "self_attn.q_a_proj": (rank, width), "self_attn.q_a_layernorm": (rank,),
            "self_attn.q_b_proj": (heads * 20, rank), "self_attn.kv_a_layernorm": (latent,),
            "self_attn.kv_a_proj_with_mqa": (latent + 8, width),
            "self_attn.kv_b_proj": (heads * 22, latent), "self_attn.o_proj": (width, heads * 10),
            "mlp.gate_proj": (48, width), "mlp.up_proj": (48, width), "mlp.down_proj": (width, 48),
        }.items()}  # fmt: skip
    return _drawn(shapes, seed)


def write_latent(folder, tensors=None, **changes):
    """Write a folder of Kimi K3's kind for a trunk of three layers, 64 wide."""
    return _written(folder, tensors or latent_tensors(), LATENT | changes)


def stream_tensors(seed=2):
    """Tensors of a folder with `STREAMS`, as published."""
    c, n, width = STREAMS, 3, 48
    inner, heads, dim, low = 40, 4, 16, 20

    def layer(at):
        own = {
            "attn_norm.weight": (width,), "ffn_norm.weight": (width,),
            "attn.wq_a.weight": (low, width), "attn.q_norm.weight": (low,),
            "attn.wq_b.weight": (heads * dim, low), "attn.wkv.weight": (dim, width),
            "attn.kv_norm.weight": (dim,), "attn.attn_sink": (heads,),
            "attn.wo_a.weight": (2 * 12, 2 * dim), "attn.wo_b.weight": (width, 2 * 12),
            "ffn.gate.weight": (6, width), "ffn.gate.bias": (6,),
        }  # fmt: skip
        for place in (*(f"experts.{e}" for e in range(6)), "shared_experts"):
            own |= {f"ffn.{place}.w{m}.weight": (inner, width) for m in (1, 3)}
            own[f"ffn.{place}.w2.weight"] = (width, inner)
        for of in ("attn", "ffn"):
            own |= {f"hc_{of}_fn": (n * (n + 2), n * width), f"hc_{of}_base": (n * (n + 2),),
                    f"hc_{of}_scale": (3,)}  # fmt: skip
        return {f"{at}.{name}": shape for name, shape in own.items()}

    def collapse(at):
        return {f"{at}fn": (n, n * width), f"{at}base": (n,), f"{at}scale": (1,)}

    shapes = {"embed.weight": (300, width), "head.weight": (300, width), "norm.weight": (width,)}
    shapes |= collapse("hc_head_")
    for k in range(c["num_hidden_layers"]):
        shapes |= layer(f"layers.{k}")
    for k in range(STAGES):
        shapes |= layer(f"mtp.{k}")
    last = f"mtp.{STAGES - 1}"
    shapes |= {"mtp.0.main_proj.weight": (width, 2 * width), "mtp.0.main_norm.weight": (width,)}
    shapes |= collapse(f"{last}.hc_head_")
    shapes |= {f"{last}.norm.weight": (width,),
               f"{last}.confidence_head.proj.weight": (1, width + 16),
               **{f"{last}.markov_head.markov_w{m}.weight": (300, 16) for m in (1, 2)}}  # fmt: skip
    return _drawn(shapes, seed)


def write_streams(folder, tensors=None, **changes):
    """Write a folder of DeepSeek V4's kind."""
    return _written(folder, tensors or stream_tensors(), STREAMS | changes)


def rms(x, weight=1.0, eps=0.02):
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * weight


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def pairs_turned(x, positions, frequencies, sign=1.0):
    """Rotate pairs of neighbours, the last 2·len(frequencies) elements of [rows, heads, dim]."""
    count = 2 * len(frequencies)
    still, part = x[..., :-count], x[..., -count:]
    angle = (positions[:, None] * frequencies)[:, None]
    cos, sin = np.cos(angle), sign * np.sin(angle)
    a, b = part[..., 0::2], part[..., 1::2]
    out = np.empty_like(part)
    out[..., 0::2], out[..., 1::2] = a * cos - b * sin, b * cos + a * sin
    return np.concatenate([still, out], axis=-1)


def attended(q, keys, values, scale, sinks=None):
    """Every row of q [rows, heads, dim] sees all keys [n, dim]."""
    scores = np.einsum("qhd,kd->hqk", q, keys) * scale
    if sinks is not None:
        column = np.broadcast_to(sinks[:, None, None], (*scores.shape[:2], 1))
        scores = np.concatenate([scores, column], axis=-1)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.einsum("hqk,kd->qhd", weights[..., : len(keys)], values)


def yarn(dim, rope):
    """YaRN's frequencies and the factor m² of the scores (Peng et al., 2023)."""
    base, factor = rope["rope_theta"], rope["factor"]
    exponents = np.arange(dim // 2) * 2.0 / dim
    plain = base**-exponents

    def dimension(turns):
        length = rope["original_max_position_embeddings"]
        return dim * np.log(length / (turns * 2 * np.pi)) / (2 * np.log(base))

    low = max(np.floor(dimension(rope["beta_fast"])), 0)
    high = min(np.ceil(dimension(rope["beta_slow"])), dim - 1)
    ramp = np.clip((np.arange(dim // 2) - low) / max(high - low, 0.001), 0, 1)
    m = 0.1 * rope["mscale_all_dim"] * np.log(factor) + 1
    return plain / factor * ramp + plain * (1 - ramp), m * m


def latent_block(tensors, taps, tip, table, config=LATENT, size=7):
    """Rows after the last norm of a block behind `taps` [positions, 2·width]."""
    w = {name: array.astype(np.float64) for name, array in tensors.items()}
    frequencies, factor = yarn(8, config["rope_parameters"])
    scale = 20**-0.5 * factor
    context = rms(taps @ w["context_proj.weight"].T, w["context_norm.weight"])
    before = len(taps)
    places = before + np.arange(size)
    h = table[[tip, *[config["mask_token_id"]] * (size - 1)]]
    for n in range(config["num_hidden_layers"]):
        layer = f"layers.{n}"
        own = {k.removeprefix(f"{layer}."): v for k, v in w.items() if k.startswith(layer)}
        joint = own["self_attn.kv_b_proj.weight"].reshape(3, 22, 24)

        def keyed(x, positions, own=own):
            y = x @ own["self_attn.kv_a_proj_with_mqa.weight"].T
            latent = rms(y[:, :24], own["self_attn.kv_a_layernorm.weight"])
            return latent, pairs_turned(y[:, None, 24:], positions, frequencies)[:, 0]

        x = rms(h, own["input_layernorm.weight"])
        pairs = keyed(context, np.arange(before)), keyed(x, places)
        latent, turn = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
        q = rms(x @ own["self_attn.q_a_proj.weight"].T, own["self_attn.q_a_layernorm.weight"])
        q = (q @ own["self_attn.q_b_proj.weight"].T).reshape(size, 3, 20)
        turned = pairs_turned(q[..., 12:], places, frequencies)
        out = []
        for head in range(3):  # keys and values of each head in full
            keys = np.concatenate([latent @ joint[head, :12].T, turn], axis=-1)
            query = np.concatenate([q[:, head, :12], turned[:, head]], axis=-1)
            values = latent @ joint[head, 12:].T
            out.append(attended(query[:, None], keys, values, scale)[:, 0])
        h = h + np.concatenate(out, axis=-1) @ own["self_attn.o_proj.weight"].T
        x = rms(h, own["post_attention_layernorm.weight"])
        gate, up = (x @ own[f"mlp.{role}_proj.weight"].T for role in ("gate", "up"))
        h = h + (gate * sigmoid(gate) * up) @ own["mlp.down_proj.weight"].T
    return rms(h, w["final_norm.weight"])


def _mixes(w, of, x, config):
    """What a branch reads of streams [rows, n, width], and how it is written back."""
    n, eps = config["hc_mult"], config["hc_eps"]
    y = rms(x.reshape(len(x), -1)) @ w[f"hc_{of}_fn"].T
    scale, base = w[f"hc_{of}_scale"], w[f"hc_{of}_base"]
    pre = sigmoid(y[:, :n] * scale[0] + base[:n]) + eps
    post = 2 * sigmoid(y[:, n : 2 * n] * scale[1] + base[n : 2 * n])
    comb = np.exp((y[:, 2 * n :] * scale[2] + base[2 * n :]).reshape(-1, n, n))
    comb = comb / comb.sum(axis=-1, keepdims=True) + eps
    comb = comb / (comb.sum(axis=-2, keepdims=True) + eps)
    for _ in range(config["hc_sinkhorn_iters"] - 1):
        comb = comb / (comb.sum(axis=-1, keepdims=True) + eps)
        comb = comb / (comb.sum(axis=-2, keepdims=True) + eps)
    return np.einsum("rn,rnd->rd", pre, x), post, comb


def _written_back(x, y, post, comb):
    return post[:, :, None] * y[:, None] + np.einsum("rjk,rjd->rkd", comb, x)


def _experts(w, x, config):
    limit = config["swiglu_limit"]

    def one(row, at):
        gate, up = (w[f"ffn.{at}.w{m}.weight"] @ row for m in (1, 3))
        gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
        return w[f"ffn.{at}.w2.weight"] @ (gate * sigmoid(gate) * up)

    out = []
    for row in x:
        scores = np.sqrt(np.log1p(np.exp(w["ffn.gate.weight"] @ row)))
        best = np.argsort(-(scores + w["ffn.gate.bias"]))[: config["num_experts_per_tok"]]
        weights = scores[best] / scores[best].sum() * config["routed_scaling_factor"]
        routed = sum(s * one(row, f"experts.{e}") for s, e in zip(weights, best, strict=True))
        out.append(routed + one(row, "shared_experts"))
    return np.array(out)


def stream_block(tensors, taps, tip, table, config=STREAMS):
    """Rows before and after the last norm of a block behind `taps` [positions, 2·width]."""
    w = {name: array.astype(np.float64) for name, array in tensors.items()}
    size, before, window = config["dspark_block_size"], len(taps), config["sliding_window"]
    frequencies = config["rope_theta"] ** (-np.arange(3) / 3.0)
    context = rms(taps @ w["mtp.0.main_proj.weight"].T, w["mtp.0.main_norm.weight"])
    seen, places = np.arange(max(0, before - window), before), before + np.arange(size)
    x = table[[tip, *[config["dspark_noise_token_id"]] * (size - 1)]]
    x = np.repeat(x[:, None], config["hc_mult"], axis=1)
    for k in range(STAGES):
        own = {n.removeprefix(f"mtp.{k}."): v for n, v in w.items() if n.startswith(f"mtp.{k}.")}

        def keyed(rows, positions, own=own):
            y = rms(rows @ own["attn.wkv.weight"].T, own["attn.kv_norm.weight"])
            return pairs_turned(y[:, None], positions, frequencies)[:, 0]

        row, post, comb = _mixes(own, "attn", x, config)
        row = rms(row, own["attn_norm.weight"])
        keys = np.concatenate([keyed(context[seen], seen), keyed(row, places)])
        q = rms(row @ own["attn.wq_a.weight"].T, own["attn.q_norm.weight"])
        q = rms((q @ own["attn.wq_b.weight"].T).reshape(size, 4, 16))
        q = pairs_turned(q, places, frequencies)
        y = attended(q, keys, keys, 16**-0.5, own["attn.attn_sink"])
        y = pairs_turned(y, places, frequencies, -1.0).reshape(size, 2, 32)
        y = np.einsum("rgi,goi->rgo", y, own["attn.wo_a.weight"].reshape(2, 12, 32))
        x = _written_back(x, y.reshape(size, -1) @ own["attn.wo_b.weight"].T, post, comb)
        row, post, comb = _mixes(own, "ffn", x, config)
        y = _experts(own, rms(row, own["ffn_norm.weight"]), config)
        x = _written_back(x, y, post, comb)
    last = {n.removeprefix(f"mtp.{STAGES - 1}."): v for n, v in w.items()}
    y = rms(x.reshape(size, -1)) @ last["hc_head_fn"].T
    pre = sigmoid(y * last["hc_head_scale"] + last["hc_head_base"]) + config["hc_eps"]
    reduced = np.einsum("rn,rnd->rd", pre, x)
    return reduced, rms(reduced, last["norm.weight"])


def chained(scores, tip, before, after):
    """Greedy drafts by scores [rows, vocab] and both Markov tables, and how clearly each leads."""
    found, leads = [], []
    for row in scores:
        biased = row + after.astype(np.float64) @ before[found[-1] if found else tip]
        best = np.sort(biased)
        found.append(int(biased.argmax()))
        leads.append((best[-1] - best[-2]) / np.abs(biased).max())
    return found, leads
