"""Resonance routing, grown experts and heads in clusters, of plugins/cortiq-skills."""

from __future__ import annotations

import numpy as np
import pytest
from masked import loaded_plugins
from safetensors.numpy import save_file

import cortiq
from cortiq.backend import Batch, CompileOptions, Kernel, Named, Row
from cortiq.errors import CortiqError, GraphError
from cortiq.ir import Builder
from cortiq.ir.decompose import primitives_of
from cortiq.numerics.contract import F32
from cortiq.numerics.layouts import Weight
from cortiq.numerics.route import Router
from cortiq.placement.place import place
from cortiq.plugins.loading import default_plugins
from cortiq_conformance.runner import run
from cortiq_cpu.backend import CpuBackend
from cortiq_reference.backend import ReferenceBackend
from cortiq_skills.clusters import NAME as CLUSTERS
from cortiq_skills.clusters import ClusterLogProbs, log_probabilities
from cortiq_skills.resonance import UNBOUNDED, ResonanceMoE

MODEL = "synthetic:tiny-mixtral?seed=2&format=w8"
PROMPT = [5, 9, 2, 71, 33, 8, 4, 19]
WIDTH, INNER, EXPERTS, LAYERS = 64, 96, 4, 3


@pytest.fixture(scope="module", autouse=True)
def plugin():
    with loaded_plugins(skills="cortiq_skills"):
        yield


def scored(mu, u, bias, shell, rows, backend=None, top_k=1, **options):
    """Scores, chosen experts and weights of rows, as a backend computes them."""
    mu = np.asarray(mu, F32)
    experts, width = mu.shape
    u = np.zeros((experts, 0, width), F32) if u is None else np.asarray(u, F32)
    options.setdefault("kind", "softmax_topk" if top_k == 1 else "softmax")
    router = Router(top_k, **options)
    op = ResonanceMoE(width, 4, experts, router, directions=u.shape[1], shelled=shell is not None)
    arrays = {
        "minus_means": -mu.reshape(1, -1), "offsets": np.asarray([bias], F32),
        "ones": np.ones((1, width)), "basis": u.reshape(-1, width),
        "basis_ones": np.ones((1, u.shape[1])),
        "minus_shells": -np.asarray([[0.0] if shell is None else shell], F32),
    }  # fmt: skip
    shapes, random = op.weight_shapes(), np.random.default_rng(1)
    for role in ("gate", "up", "down"):
        arrays[role] = random.normal(size=(experts * shapes[role][1], shapes[role][2]))
    b = Builder(context=8)
    b.input("token"), b.input("position")
    b.add(op, b.input("x", (width,), "f32"), name="y", weights={r: r for r in shapes})
    program = b.program(("y",)).with_layouts(dict.fromkeys(shapes, "f32"))
    weights = {r: Weight.from_floats(np.asarray(arrays[r], F32)) for r in shapes}
    program = primitives_of(program)
    executable = place(backend or ReferenceBackend(), program, weights, CompileOptions(),
                       fallback=ReferenceBackend())  # fmt: skip
    scores = "y.router.shelled" if shell is not None else "y.router.scores"
    wants = tuple(Named(name) for name in (scores, "y.route.0", "y.route.1", "y"))
    state = executable.open(len(rows))
    batch = [
        Row(state, at, 0, wants, inputs={"x": np.asarray(x, F32)}) for at, x in enumerate(rows)
    ]
    found = executable.forward(Batch(batch)).result().rows
    executable.close()
    return [np.stack([np.asarray(row[want]) for row in found]) for want in wants]


BACKENDS = [ReferenceBackend, CpuBackend]
MU, U, BIAS = [(0, 0), (1, 0), (0, 1)], [[(1, 0)], [(0, 1)], [(1, 1)]], [1.5, 0.5, 0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_scores_of_the_published_case(backend):
    scores, index, weight, _ = scored(MU, U, BIAS, None, [(1, 1)], backend())
    assert np.abs(scores[0] - [0.5, 0.5, 0]).max() < 1e-6
    assert index.tolist() == [[0]] and weight.tolist() == [[1.0]]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("rank", [0, 1, 5])
def test_scores_are_offsets_less_errors(backend, rank):
    random = np.random.default_rng(rank)
    mu, u, x = (random.normal(size=s) for s in ((6, 300), (6, rank, 300), (3, 300)))
    u, bias = u / 20, random.normal(size=6)
    scores = scored(mu, u, bias, None, x, backend())[0]
    rest = x[:, None].astype(F32).astype(float) - mu.astype(F32)
    inside = np.einsum("bew,ekw->bek", rest, u.astype(F32))
    want = bias.astype(F32) - (rest**2).sum(-1) + (inside**2).sum(-1)
    assert np.abs(scores - want).max() < 1e-5 * np.abs(want).max()


@pytest.mark.parametrize("backend", BACKENDS)
def test_shells_leave_experts_out_and_the_others_bits_alone(backend):
    mu, u = [(0, 0), (1, 0), (1, 1), (1, 1)], [[(1, 0)], [(0, 1)], [(0, 0)], [(0, 0)]]
    u[2] = u[3] = [(2**-0.5, 2**-0.5)]
    u[2] = u[3] = [(0, 1)]  # errors of (3, 0): 4 + 1 − 1
    bias, rows, shell = [0.25, 0.125, 0, -2], [(1, 1), (3, 0)], [UNBOUNDED] * 2 + [4.0, 0.25]
    free = scored(mu, u, bias, None, rows, backend())[0]
    within = scored(mu, u, bias, shell, rows, backend())[0]
    assert within[0].tobytes() == free[0].tobytes()
    assert within[1, :3].tobytes() == free[1, :3].tobytes() and free[1, 2] == -4.0  # error == shell
    assert within[1, 3] < -(2.0**39) < free[1, 3]
    least = np.nextafter(F32(4), F32(0))
    tighter = scored(mu, u, bias, [*shell[:2], least, 0.25], rows, backend())[0]
    assert tighter[1, 2] < -(2.0**39)
    unbounded = scored(mu, u, bias, [UNBOUNDED] * 4, rows, backend())[0]
    assert unbounded.tobytes() == free.tobytes()


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_largest_raw_score_wins_though_powers_are_equal(backend):
    low = F32(-0.1)
    high = np.nextafter(low, F32(0))
    assert np.exp(low - high, dtype=F32) == 1
    for renormalise in (False, True):
        found = scored([(0,), (0,)], None, [low, high], None, [(0,)], backend(),
                       renormalise=renormalise)  # fmt: skip
        assert found[1].tolist() == [[1]] and found[2].tolist() == [[1.0]]
    shared = scored([(0,), (0,)], None, [low, high], None, [(0,)], backend(), kind="softmax")
    assert shared[1].tolist() == [[1]] and shared[2].tolist() == [[0.5]]
    assert scored([(0,), (0,)], None, [high, high], None, [(0,)], backend())[1].tolist() == [[0]]
    shut = scored([(0,), (0,), (0,)], None, [0, 5, 1], [1, -1, 1], [(0,)], backend())
    assert shut[1].tolist() == [[2]]
    none = scored([(0,), (0,)], None, [0, 5], [-1, -1], [(0,)], backend())
    assert none[1].tolist() == [[0]] and np.isfinite(none[3]).all()


def test_experts_outside_of_their_shells_weigh_nothing():
    mu, rows = [(0, 0), (1, 0), (0, 1)], [(0.5, 0.25)]
    free = scored(mu, None, BIAS, None, rows, top_k=2)
    shut = scored(mu, None, [*BIAS[:2], 9], [UNBOUNDED] * 2 + [0.01], rows, top_k=3)
    assert free[1].tolist() == [[0, 1]] and shut[2][0, 2] == 0
    pair = scored(mu[:2], None, BIAS[:2], None, rows, top_k=2)
    assert shut[2][0, :2].tobytes() == pair[2][0].tobytes()


def descriptors(seed=0, grown="", count=EXPERTS, shell=None):
    """A file's tensors for each layer of the model."""
    random, made = np.random.default_rng(seed), {}
    for layer in range(LAYERS):
        name = f"layers.{layer}.mlp{grown}"
        made[f"{name}.mu"] = random.normal(size=(count, WIDTH)).astype(F32)
        made[f"{name}.u"] = random.normal(size=(count, 2, WIDTH)).astype(F32) / 9
        made[f"{name}.bias"] = random.normal(size=count).astype(F32) * 20
        if shell is not None:
            made[f"{name}.shell"] = np.full(count, shell, F32)
        if grown:
            for role, shape in (("gate", (INNER, WIDTH)), ("up", (INNER, WIDTH)),
                                ("down", (WIDTH, INNER))):  # fmt: skip
                made[f"{name}.{role}"] = random.normal(size=(count, *shape)).astype(F32) / 8
    return made


def made(path, *rewrites, backend="reference", name=MODEL):
    with cortiq.load(name, backend=backend, context=64, rewrite=list(rewrites)) as model:
        found = model.generate(PROMPT, max_tokens=3, ignore_eos=True, temperature=0)
        return found.step_digests, found.fingerprint, model


@pytest.mark.parametrize("layout", ["w8", "f32"])
def test_grown_experts_leave_the_model_alone_outside_of_their_shells(layout, tmp_path):
    files = {"trunk": descriptors(), "far": descriptors(5, ".grown", 2, shell=1e-3),
             "near": descriptors(5, ".grown", 2, shell=1e9)}  # fmt: skip
    for name, tensors in files.items():
        if name == "near":
            for layer in range(LAYERS):
                tensors[f"layers.{layer}.mlp.grown.bias"] += 1000
        save_file(tensors, tmp_path / f"{name}.safetensors")
    asked = {name: f"file={tmp_path / name}.safetensors" for name in files}
    model = MODEL.replace("w8", layout)
    plain, _, _ = made(tmp_path, name=model)
    trunk, known, _ = made(tmp_path, f"resonance:{asked['trunk']}", name=model)
    far, other, _ = made(
        tmp_path, f"resonance:{asked['trunk']}", f"grow:{asked['far']}", name=model
    )
    assert far == trunk != plain and other != known
    both = [f"resonance:{asked['trunk']}", f"grow:{asked['far']}", f"grow:{asked['near']}"]
    near, _, _ = made(tmp_path, *both, name=model)
    assert near != trunk
    assert made(tmp_path, *both, backend="cpu", name=model)[0] == near
    shut, _, _ = made(tmp_path, f"resonance:{asked['trunk']},shell=on,layers=0", name=model)
    assert shut not in (trunk, plain)


@pytest.mark.parametrize(
    ("rewrites", "says"),
    [
        (["resonance:"], "file is missing"),
        (["grow:file={far}"], "no layer that chooses by resonance"),
        (["resonance:file={trunk},shell=off", "grow:file={far}"], "grows only with shells"),
        (["resonance:file={bad}"], "mlp.mu is"),
        (["resonance:file={trunk},layers=9"], "no layer 9"),
        (["cluster_head:file={trunk}"], "belongs to no layer"),
        (["cluster_head:file={odd}"], "do not divide"),
        (["cluster_head:file={void}"], "0 clusters, which do not divide"),
        (["cluster_head:file={head}", "cluster_head:file={head}"], "two levels already"),
        (["resonance:file={trunk},top_k=4", "grow:file={none}"], "grown.mu holds no experts"),
        (["resonance:file={trunk},top_k=99"], "top_k is 99"),
        (["resonance:file={trunk}", "grow:file={typo}"], "holds layers.0.mlp.grown.shel, of no"),
        (["resonance:file={trunk}", "grow:file={mean}"], "holds layers.0.mlp.grown.*, of no"),
    ],
)
def test_what_does_not_fit_is_said(rewrites, says, tmp_path):
    bad = descriptors() | {"layers.0.mlp.mu": np.zeros((EXPERTS, 3), F32)}
    odd = {"lm_head.clusters.weight": np.zeros((7, WIDTH), F32)}
    far = descriptors(5, ".grown", 2, 1.0)
    files = {
        "trunk": descriptors(), "far": far, "bad": bad, "odd": odd,
        "void": {"lm_head.clusters.weight": np.zeros((0, WIDTH), F32)},
        "head": {"lm_head.clusters.weight": np.zeros((4, WIDTH), F32)},
        "none": descriptors(5, ".grown", 0, 1.0),
        "typo": far | {"layers.0.mlp.grown.shel": np.ones(2, F32)},
        "mean": {name: t for name, t in far.items() if name != "layers.0.mlp.grown.mu"},
    }  # fmt: skip
    for name, tensors in files.items():
        save_file(tensors, tmp_path / f"{name}.safetensors")
    names = {name: tmp_path / f"{name}.safetensors" for name in files}
    with pytest.raises(CortiqError, match=says):
        made(tmp_path, *[one.format(**names) for one in rewrites])


def test_log_probabilities_are_those_of_two_levels():
    torch = pytest.importorskip("torch")
    random = np.random.default_rng(3)
    op = ClusterLogProbs(5, 2000)
    clusters, ids = (random.normal(size=(4, n)).astype(F32) * 9 for n in (5, 2000))
    found = log_probabilities(op, clusters, ids)
    within = torch.tensor(ids, dtype=torch.float64).reshape(4, 5, -1).log_softmax(-1)
    want = torch.tensor(clusters, dtype=torch.float64).log_softmax(-1)[..., None] + within
    assert np.abs(found - want.reshape(4, -1).numpy()).max() < 1e-5
    assert np.abs(np.exp(found.astype(float)).sum(axis=1) - 1).max() < 1e-5
    assert found[1:2].tobytes() == log_probabilities(op, clusters[1:2], ids[1:2]).tobytes()
    far = log_probabilities(ClusterLogProbs(2, 4), F32([[0, 2**49]]), F32([[0, -(2**49), 1, 2]]))
    assert np.isfinite(far).all() and far.min() == -(2.0**40)


def test_a_head_in_clusters_gives_probabilities(tmp_path):
    random = np.random.default_rng(4)
    held = random.normal(size=(5, WIDTH)).astype(F32)
    save_file({"lm_head.clusters.weight": held}, tmp_path / "c.safetensors")
    found, asked = [], [f"cluster_head:file={tmp_path / 'c.safetensors'}"]
    for backend in ("reference", "cpu"):
        with cortiq.load(MODEL, backend=backend, context=64, rewrite=asked) as model:
            one = model.generate(PROMPT, max_tokens=3, ignore_eos=True, temperature=0)
            found.append((one.step_digests, one.fingerprint))
            executable = model.executable
            state, wants = executable.open(1), (Named("logits"), Named("hidden"))
            row = executable.forward(Batch([Row(state, 0, 5, wants)])).result().rows[0]
            assert abs(np.exp(row[wants[0]].astype(float)).sum() - 1) < 1e-5
            mass = np.exp(row[wants[0]].astype(float)).reshape(5, -1).sum(axis=1)
            scores = held.astype(float) @ row[wants[1]]
            want = np.exp(scores - scores.max())
            assert np.abs(mass - want / want.sum()).max() < 1e-3
            assert backend == "reference" or set(model.placement.values()) <= {
                "cpu",
                "cpu/clusters",
            }
    assert found[0] == found[1]


def test_the_kit_compares_heads_with_their_definition(monkeypatch):
    plugins = default_plugins()
    monkeypatch.setattr("cortiq_conformance.oracle.default_plugins", lambda: plugins)
    reference, cases = plugins.backends["reference"], "level0/ClusterLogProbs["
    report = run(plugins.backends["cpu"], levels=(0,), only=cases)
    assert report.passed and len(report.results) == 3
    given = reference.given[ClusterLogProbs]

    def flat(call, clusters, ids):
        """Log-probabilities that forget the clusters' own sum."""
        return log_probabilities(call.op, clusters, ids) + F32(0.5)

    wrong = Kernel("reference", ClusterLogProbs, flat, CLUSTERS)
    monkeypatch.setattr(reference, "given", {**reference.given, ClusterLogProbs: wrong})
    definition = {ClusterLogProbs: given}
    monkeypatch.setattr("cortiq_conformance.oracle.defined_by_packages", lambda: definition)
    monkeypatch.setattr(
        "cortiq_conformance.level0.packages.defined_by_packages", lambda: definition
    )
    found = run(reference, levels=(0,), only=cases)
    assert not found.passed and found.blamed() == {"ClusterLogProbs"}


def test_clusters_of_other_sizes_are_refused():
    b = Builder(context=8)
    with pytest.raises(GraphError):
        b.add(
            ClusterLogProbs(3, 20), b.input("c", (3,), "f32"), b.input("l", (20,), "f32"), name="y"
        )
