"""Routing on every backend that is here, against the definition; a device's route is the host's."""

from __future__ import annotations

import numpy as np
import pytest

from cortiq.backend import Batch, CompileOptions, Named, Row
from cortiq.ir import Builder, ops
from cortiq.ir.layers import Embedding, Linear
from cortiq.numerics.layouts import Weight
from cortiq.numerics.route import Router, route

OTHERS = {
    "cpu": ("cortiq_cpu.backend", "CpuBackend"), "torch": ("cortiq_torch.backend", "TorchBackend"),
    "mlx": ("cortiq_mlx.backend", "MlxBackend"), "wgpu": ("cortiq_wgpu.backend", "WgpuBackend"),
    "triton": ("cortiq_triton.backend", "TritonBackend"),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_t63_the_route_of_every_backend_here_is_the_definitions(name):
    """Experts, their order and weights, bit for bit; `cortiq conform` has more cases of it."""
    module, kind = OTHERS[name]
    backend = getattr(pytest.importorskip(module), kind)()
    if name == "triton" and not torch_sees_a_gpu():
        pytest.skip("interpreted it takes minutes; test_triton_backend.py has smaller ones")
    try:
        if not backend.devices():
            pytest.skip("no device")
    except Exception as error:
        pytest.skip(str(error))
    i = np.arange(128)
    scores = (3.4 * np.sin(0.61 * i) + 0.13 * (i % 23)).astype(np.float32)
    scores = np.stack([np.roll(scores, n) for n in range(9)])
    bias = (0.5 * np.cos(2.3 * i)).astype(np.float32)
    for router in (
        Router(4, "sigmoid", True, 1e-20, 2.0), Router(4, "softmax_topk", groups=8, kept_groups=3),
    ):  # fmt: skip
        found = routed_by(backend, scores, bias, router)
        for ours, theirs in zip(found, route(scores, router, bias), strict=True):
            assert np.asarray(ours).tobytes() == theirs.tobytes(), router


def torch_sees_a_gpu():
    return pytest.importorskip("torch").cuda.is_available()


def routed_by(backend, scores, bias, router):
    """Indices and weights of a graph that is one Route of rows it is given."""
    b = Builder(context=64, facts={"vocab_size": 8})
    token, _ = b.input("token"), b.input("position")
    given = b.add(Embedding(8, 128), token, name="embed", weights={"table": "table"})
    chosen = b.add_node(ops.Route(128, router, selection_bias=True), given, name="routed",
                   weights={"bias": "bias"})  # fmt: skip
    b.add(Linear(128, 8), given, name="logits", weights={"weight": "table"})
    program = b.program(outputs=("logits", *(value.name for value in chosen)))
    weights = {"table": Weight.from_floats(np.ones((8, 128), np.float32)),
               "bias": Weight.from_floats(bias[None])}  # fmt: skip
    program = program.with_layouts(dict.fromkeys(weights, "f32"))
    executable = backend.compile(program, weights, CompileOptions(threads=1))
    state, wants = executable.open(len(scores)), tuple(Named(value.name) for value in chosen)
    rows = [Row(state, i, 1, wants, {"embed": row}) for i, row in enumerate(scores)]
    result = executable.forward(Batch(rows)).result()
    return [np.stack([row[want] for row in result.rows]) for want in wants]
