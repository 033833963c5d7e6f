"""`swa_sink_v1` of plugins/cortiq-bounded: its formula, its bits everywhere, its memory."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from bounded import (
    MODEL,
    PLUGIN,
    attention,
    computed,
    loaded_plugins,
    one_layer,
    rewrite,
    rewritten_model,
    sink_file,
)
from click.testing import CliRunner

import cortiq
from cortiq.backend import CompileOptions
from cortiq.cli.main import cli
from cortiq.errors import FormatError, OptionError, RequestError, UnsupportedError
from cortiq.ir.layers import QKNorm
from cortiq.model.fingerprint import model_facts
from cortiq.models import load_program
from cortiq.models.rewriting import rewritten
from cortiq.models.synthetic import open_synthetic
from cortiq.numerics.layouts import floats
from cortiq.placement.place import place
from cortiq.plugins import default_plugins, loading
from cortiq_bounded.layers import SinkWindowAttention, refusal
from cortiq_bounded.sinks import write_sinks
from cortiq_cpu.backend import CpuBackend
from cortiq_reference.backend import ReferenceBackend
from cortiq_reference.ideal import evaluate

WINDOW, SINKS, ROWS = 5, 3, 150


def by_distance(x, weights, op, theta):
    """The layer in float64: keys turned by their distance to the query, sinks not at all."""
    inner, w = op.inner, {name: np.asarray(value, np.float64) for name, value in weights.items()}
    heads, kv, dim = inner.heads, inner.kv_heads, inner.head_dim
    q, k, v = ((x @ w[r].T).reshape(len(x), -1, dim) for r in "qkv")
    each, out = heads // kv, np.zeros((len(x), heads, dim))
    frequencies = theta ** (-np.arange(dim // 2) * 2 / dim)
    keys, values = w["sink_keys"].reshape(kv, -1, dim), w["sink_values"].reshape(kv, dim, -1)
    for t in range(len(x)):
        near = np.arange(max(0, t - op.window + 1), t + 1)
        turns = np.exp(1j * np.outer(near - t, frequencies))
        for h in range(heads):
            g = h // each
            pairs = (k[near, g, : dim // 2] + 1j * k[near, g, dim // 2 :]) * turns
            turned = np.concatenate([pairs.real, pairs.imag], axis=1)
            scores = np.concatenate([keys[g], turned]) @ q[t, h] * dim**-0.5
            p = np.exp(scores - scores.max())
            rows = np.concatenate([values[g].T, v[near, g]])
            out[t, h] = p @ rows / p.sum()
    return out.reshape(len(x), -1) @ w["o"].T


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 2), (3, 3), (3, 1)])
def test_it_is_softmax_over_sinks_and_rows_by_their_distance(heads, kv_heads):
    op = SinkWindowAttention(attention(heads, kv_heads), WINDOW, SINKS)
    program, weights, x = one_layer(op, 20)
    names = {role: floats(weights[role]) for role in op.weight_shapes()}
    expected = by_distance(x.astype(np.float64), names, op, 10000.0)
    ideal = evaluate(program, weights, np.zeros(20, int), ["y"], inputs={"x": x})["y"]
    assert np.abs(ideal - expected).max() < 1e-6 * np.abs(expected).max()  # of rotary tables
    found = computed(ReferenceBackend(), program, weights, x)
    assert np.abs(found - expected).max() < 1e-3 * np.abs(expected).max()


def test_rows_before_the_window_leave_no_trace():
    op = SinkWindowAttention(attention(4, 2), WINDOW, SINKS)
    program, weights, x = one_layer(op, 20)
    other = x.copy()
    other[: 20 - WINDOW] += 1
    one, two = (computed(ReferenceBackend(), program, weights, rows) for rows in (x, other))
    assert (one[-1] == two[-1]).all() and (one[-2] != two[-2]).any()


def test_sinks_decide_and_without_them_it_is_a_sliding_window():
    inner = attention(4, 2)
    op = SinkWindowAttention(inner, WINDOW, 0)
    program, weights, x = one_layer(op, 20)
    found = computed(ReferenceBackend(), program, weights, x)
    plain, _, _ = one_layer(replace(inner, window=WINDOW), 20)
    assert (found == computed(ReferenceBackend(), plain, weights, x)).all()
    program, weights, x = one_layer(replace(op, trained=SINKS), 20)
    assert (found != computed(ReferenceBackend(), program, weights, x)).any()


@cache
def model(folder):
    path = sink_file(Path(folder), SINKS)
    return rewritten_model(f"swa_sink_v1:window={WINDOW},sinks={SINKS},file={path}")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return model(str(tmp_path_factory.mktemp("sinks")))


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("torch", "triton", "wgpu")]


@pytest.mark.parametrize("name", ["cpu", "mlx", *SLOW])
def test_every_backend_has_its_bits_without_the_reference(tiny, name):
    backend = default_plugins().backends.get(name)
    if backend is None or (name == "wgpu" and not backend.devices()):
        pytest.skip(f"there is no {name} here")
    tokens = np.arange(40) % 50
    expected = computed(ReferenceBackend(), *tiny, tokens, size=40)
    found = computed(backend, *tiny, tokens, size=7)
    assert (found == expected).all()


def test_memory_does_not_grow(tiny):
    program, weights = tiny
    executable = place(ReferenceBackend(), program, weights, CompileOptions())
    held = [executable.state_bytes(rows) for rows in (1_000, 10_000, 1_000_000)]
    assert len(set(held)) == 1


def test_what_cannot_be_bounded_is_said():
    inner = attention(4, 2)
    assert refusal(inner) == ""
    for change, reason in (
        ({"window": 8}, "sliding window"), ({"sinks": True}, "sink logits"),
        ({"shares_kv": True}, "another layer's keys"), ({"soft_cap": 30.0}, "caps its scores"),
        ({"value_dim": 4}, "another width"), ({"until": True}, "later ones"),
        ({"qk_norm": QKNorm(1e-6, after_rope=True)}, "after their rotation"),
    ):  # fmt: skip
        assert reason in refusal(replace(inner, **change))


@pytest.mark.parametrize(
    ("argument", "error", "sentence"),
    [
        ("window=0,sinks=0", RequestError, "window is '0'"),
        ("depth=3", RequestError, "'depth=3' is no option of swa_sink_v1"),
        ("window=4,window=5", RequestError, "window twice"),
        ("sinks=0,layers=7", RequestError, "there is no layer 7"),
        ("sinks=0,layers=deep0", RequestError, "layers is 'deep0'"),
        ("window=4", RequestError, "file is missing"),
        ("sinks=2,file={}", FormatError, "sink_keys is F32"),
        ("layers=0,sinks=3,file={}", FormatError, "belongs to no layer"),
    ],
)
def test_a_wrong_argument_is_named(tmp_path, argument, error, sentence):
    path = sink_file(tmp_path, SINKS)
    with pytest.raises(error, match=sentence):
        rewritten_model(f"swa_sink_v1:{argument.format(path)}")


@pytest.mark.parametrize(
    ("name", "reason"), [("gpt_oss", "sliding window already"), ("mamba2", "no attention layer")]
)
def test_a_model_without_such_a_layer_is_refused(name, reason):
    loaded = load_program(open_synthetic(f"synthetic:mini-{name}?seed=1"))
    with pytest.raises(UnsupportedError, match=reason):
        rewritten(loaded.program, loaded.weights, ["swa_sink_v1:sinks=0"], rewrite())


def test_from_the_command_line_to_tokens(tmp_path, monkeypatch):
    monkeypatch.setattr(loading, "_files", ())
    monkeypatch.setattr(loading, "_default", None)
    out, model = tmp_path / "sinks.safetensors", "synthetic:tiny-llama?seed=1"
    plugin, runner = ["--plugin", str(PLUGIN)], CliRunner()
    made = runner.invoke(cli, [*plugin, "sinks", model, "abcdef", "--count", "2", "-o", str(out)])
    assert made.exit_code == 0, made.output
    generate = ["generate", model, "-p", "to be or not", "--max-tokens", "9", "--json"]
    drafted = ["--draft", "lookup", "--chunk-rows", "3"]
    asked = ["--rewrite", f"swa_sink_v1:window=4,sinks=2,file={out}"]
    found = [
        runner.invoke(cli, [*plugin, *generate, *options])
        for options in ([], asked, [*asked, *drafted], [*asked, "--backend", "reference"])
    ]
    assert [one.exit_code for one in found] == [0] * 4, found[1].output
    plain, bounded, rounds, other = (json.loads(one.stdout) for one in found)
    assert bounded["token_ids"] == rounds["token_ids"] == other["token_ids"]
    assert bounded["digest"] == rounds["digest"] == other["digest"] != plain["digest"]
    assert bounded["fingerprint"] == other["fingerprint"] != plain["fingerprint"]
    monkeypatch.setattr(loading, "_default", None)
    unplugged = json.loads(runner.invoke(cli, generate).stdout)
    assert all(unplugged[key] == plain[key] for key in ("fingerprint", "digest", "token_ids"))


def test_a_window_as_long_as_the_text_is_full_attention():
    plain, tokens = rewritten_model(), np.arange(40) % 50
    wide = rewritten_model("swa_sink_v1:sinks=0,window=64")
    one, two = (computed(CpuBackend(), *model, tokens) for model in (plain, wide))
    assert (one == two).all()


def test_layers_that_are_not_named_stay_as_they_are():
    (plain, _), (program, _) = rewritten_model(), rewritten_model("swa_sink_v1:sinks=0,layers=0+2")
    changed = [
        one.name
        for one, two in zip(plain.trunk.nodes, program.trunk.nodes, strict=True)
        if one != two
    ]
    assert changed == ["layers.0.attention", "layers.2.attention"]
    assert program.slots["layers.1.kv"] == plain.slots["layers.1.kv"]


def test_two_rewritings_count_the_same_layers():
    both = ("swa_sink_v1:sinks=0,layers=0", "nystrom:layers=1")
    program, _ = rewritten_model(*both)
    kinds = [type(n.op).__name__ for n in program.trunk.nodes if n.name.endswith(".attention")]
    assert kinds == ["SinkWindowAttention", "NystromAttention", "Attention"]
    with pytest.raises(UnsupportedError, match="replaced by another rewriting"):
        rewritten_model(both[0], "nystrom:layers=0")


def test_sinks_that_cannot_be_made_or_written_are_said(tmp_path):
    with pytest.raises(OSError, match="No such file"):
        write_sinks(MODEL, "abcdef", 2, "all", tmp_path / "none" / "a.safetensors")
    with pytest.raises(UnsupportedError, match="no layer can be bounded"):
        write_sinks("synthetic:mini-gpt_oss?seed=1", "abcdef", 2, "all", tmp_path / "a.safetensors")
    assert not list(tmp_path.iterdir())


def test_several_devices_are_refused(monkeypatch):
    monkeypatch.setattr(loading, "_default", loaded_plugins(CpuBackend()))
    with pytest.raises(OptionError, match="rewrite needs one device"):
        cortiq.load(MODEL, rewrite=["swa_sink_v1:sinks=0"], devices=2, backend="cpu")


def test_adapters_of_a_rewritten_model_are_refused_with_the_reason(monkeypatch, tmp_path):
    monkeypatch.setattr(loading, "_default", loaded_plugins(CpuBackend()))
    asked = ["swa_sink_v1:sinks=0"]
    with pytest.raises(RequestError, match=r"by --rewrite swa_sink_v1, and .*\n.*--lora PATH"):
        cortiq.load(MODEL, rewrite=asked, adapters=[f"a={tmp_path}"], backend="cpu")


def test_the_fingerprint_names_the_rotary_table_of_the_layer_within():
    plain, asked = (rewritten_model(*a)[0] for a in ((), ("swa_sink_v1:sinks=0",)))
    one, two = (model_facts(program, "hash") for program in (plain, asked))
    assert one["rope"] == two["rope"] != []
    assert {key for key in two if one.get(key) != two[key]} == {"rewrites"}
