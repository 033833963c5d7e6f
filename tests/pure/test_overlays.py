"""Adapters chosen by request: each answer is the one it is alone, whoever shares the batch."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import safetensors.numpy
from adapter_folders import write_ia3, write_lora
from installed import backends

import cortiq
from cortiq.backend import Argmax, Batch, Digest, Row, Status
from cortiq.errors import BackendError, FormatError, RequestError, UnsupportedError
from cortiq.ir.overlays import overlay_inputs
from cortiq.model.source import open_source
from cortiq.options import LoadOptions
from cortiq.placement.place import place_split
from cortiq.receipts.replay import verification_steps
from cortiq_reference.backend import ReferenceBackend

NAME = "synthetic:tiny-llama?seed=1&format=w8"
PROMPT = [5, 9, 2, 71, 33, 8, 4, 19, 60, 7, 1, 3]
DIGEST = Digest("logits")


def opened(backend="reference", name=NAME, **options):
    return cortiq.load(name, backend=backend, context=64, keep_weights=False, **options)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Adapters of every kind and of several ranks, by name."""
    made, folder = opened(), tmp_path_factory.mktemp("adapters")
    with made as model:
        return {
            "one": write_lora(folder / "one", model, 1, rank=1),
            "wide": write_lora(folder / "wide", model, 2, rank=9, targets=("q_proj", "o_proj")),
            "dora": write_lora(folder / "dora", model, 3, dora=True),
            "table": write_lora(folder / "table", model, 4, targets=("embed_tokens", "lm_head")),
            "ia3": write_ia3(folder / "ia3", model, 5),
        }


def with_all(folders, backend="reference", **options):
    return opened(backend, adapters=[f"{n}={path}" for n, path in folders.items()], **options)


def digests(model, adapter, prompt=PROMPT, **options):
    made = model.generate(prompt, max_tokens=5, ignore_eos=True, adapter=adapter, **options)
    return made.step_digests


@pytest.fixture(scope="module")
def alone(folders):
    """Digests of each adapter, loaded by itself on the reference, and of the model without one."""
    found = {}
    for name, path in folders.items():
        with opened(adapters=[f"{name}={path}"]) as model:
            found[name] = digests(model, name)
    with opened() as model:
        found[None] = digests(model, None)
    assert len(set(found.values())) == len(found)
    return found


@pytest.mark.parametrize("backend", backends())
def test_every_backend_computes_a_mixed_batch_as_each_alone(backend, folders, alone):
    names = ["wide", None, "ia3", "one", "wide", "table", "dora", None]
    with with_all(folders, backend) as model:
        made = model.generate_many([PROMPT] * len(names), max_tokens=5, ignore_eos=True,
                                   adapters=names)  # fmt: skip
    assert [m.step_digests for m in made] == [alone[name] for name in names]


def test_steps_ahead_on_triton_look_up_tables_of_overlays(folders, alone):
    """Nine seconds of Triton's interpreter, with graphs on, as on a GPU."""
    pytest.importorskip("triton", reason="Triton has no package for this platform")
    names, prompt, adapter = ["table", None], [5, 9], [f"table={folders['table']}"]
    with opened("triton", adapters=adapter, extra={"graphs": True}) as model:
        made = model.generate_many([prompt] * 2, max_tokens=2, ignore_eos=True, adapters=names)
    with opened(adapters=adapter) as model:
        expected = model.generate_many([prompt] * 2, max_tokens=2, ignore_eos=True, adapters=names)
    assert [m.step_digests for m in made] == [m.step_digests for m in expected]


LONGER = {"max_tokens": 16, "ignore_eos": True, "temperature": 0}
"""Of enough tokens that some repeat what was there, and are drafted."""


@cache
def each_alone(count, root):
    """Return folders of so many adapters, prompts that begin alike and repeat themselves, and the
    digests of each: its adapter's only, on the reference, without drafts and kept prefixes.
    """
    paths, prompts = {}, [[*PROMPT, *[i, 2 * i, 7] * 3] for i in range(count)]
    with opened() as model:
        for i in range(count):
            targets = (("q_proj", "v_proj"), ("down_proj",), ("o_proj", "up_proj"))[i % 3]
            paths[f"a{i}"] = write_lora(root / f"a{i}", model, i, rank=1 + i % 4, targets=targets)
    found = []
    for (name, path), prompt in zip(paths.items(), prompts, strict=True):
        with opened(adapters=[f"{name}={path}"]) as model:
            made = model.generate(prompt, adapter=name, **LONGER)
            found.append(made.step_digests)
    assert len(set(found)) == count
    return paths, prompts, found


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("many")


MANY = pytest.param(64, marks=pytest.mark.slow)
"""A minute and more on backends that are interpreted."""


@pytest.mark.parametrize("count", [4, MANY])
@pytest.mark.parametrize("backend", backends())
def test_requests_of_as_many_adapters_are_each_alone(backend, count, root):
    """In one batch, with drafts, and again from the prefixes that were kept."""
    paths, prompts, alone = each_alone(count, root)
    options = {"draft": "lookup", **LONGER}
    with with_all(paths, backend) as model:
        model.keep_prefixes(2 * count)
        first = model.generate_many(prompts, adapters=list(paths), **options)
        again = model.generate_many(prompts, adapters=list(paths), **options)
    assert [made.step_digests for made in first] == alone
    assert [made.step_digests for made in again] == alone
    assert all(made.stats.reused_tokens for made in again)
    assert sum(made.stats.drafts.drafted for made in first)


def test_without_a_request_that_chooses_one_nothing_changes(folders, alone):
    """The plan that was there computes it; the fingerprint does not know of adapters."""
    with opened() as plain, with_all(folders) as model:
        assert digests(model, None) == alone[None]
        assert not model.executable.varied  # nobody has chosen one yet
        digests(model, "one")
        assert model.executable.varied
        ours, theirs = (m.generate(PROMPT, max_tokens=2) for m in (model, plain))
        assert (
            ours.fingerprint
            == theirs.fingerprint
            != (model.generate(PROMPT, max_tokens=2, adapter="one").fingerprint)
        )


def test_prefixes_are_reused_with_the_same_adapter_only(folders, alone):
    with with_all(folders) as model:
        model.keep_prefixes(8)
        for _ in range(2):
            for name in alone:
                assert digests(model, name) == alone[name]
        again = model.generate(PROMPT, max_tokens=2, adapter="one")
        assert again.stats.reused_tokens == len(PROMPT) - 1


@pytest.mark.parametrize("name", ["tiny-lfm2", "mini-mamba2"])
def test_states_of_other_kinds_keep_adapters_apart(name, tmp_path):
    with opened(name=f"synthetic:{name}") as model:
        targets = ("in_proj", "out_proj", "w1")
        paths = [write_lora(tmp_path / str(i), model, i, targets=targets) for i in range(2)]
        for i, path in enumerate(paths):
            model.load_adapter(str(i), path)
        found = [digests(model, adapter) for adapter in (None, "0", "1")]
        model.keep_prefixes(4)
        for _ in range(2):
            assert [digests(model, adapter) for adapter in (None, "0", "1")] == found
    assert len(set(found)) == 3


def test_an_unloaded_adapter_is_gone_and_its_number_another(folders, alone):
    with with_all({n: folders[n] for n in ("one", "wide")}) as model:
        stream = model.stream(PROMPT, max_tokens=5, ignore_eos=True, adapter="one")
        next(stream)
        model.unload_adapter("one")
        model.load_adapter("dora", folders["dora"])  # not in the place of one that is in use
        for _ in stream:
            pass
        assert stream.generation.step_digests == alone["one"]
        with pytest.raises(RequestError, match=r"no adapter named 'one'.*\n.*wide, dora"):
            model.generate(PROMPT, adapter="one")
        assert digests(model, "dora") == alone["dora"]
        assert digests(model, "wide") == alone["wide"]
        model.load_adapter("one", folders["one"])
        assert digests(model, "one") == alone["one"]
        for name in ("one", "wide", "dora"):
            model.unload_adapter(name)
        del stream
        digests(model, None)
        assert not model.executable.varied


def test_receipts_name_the_adapter_by_its_hash(folders, tmp_path):
    with with_all(folders) as model, opened() as plain:
        receipt = model.generate(PROMPT, max_tokens=4, adapter="dora").receipt()
        receipt.write(tmp_path / "r.json")
        read = cortiq.Receipt.read(tmp_path / "r.json")
        assert read == receipt and read.claim.adapter[1] == 1.0
        assert cortiq.verify(read, model).identical
        with pytest.raises(RequestError, match=r"not loaded: [0-9a-f]{64}, times 1"):
            cortiq.verify(read, plain)
        assert "adapter" not in model.generate(PROMPT, max_tokens=1).receipt().as_object()["claim"]
    verdict = cortiq.verify(read, NAME, backend="reference", adapters=[f"x={folders['dora']}"])
    assert verdict.identical


def test_an_adapter_may_be_unloaded_while_a_receipt_is_verified(folders):
    with with_all(folders) as model:
        receipt = model.generate(PROMPT, max_tokens=4, adapter="dora").receipt()
        steps = verification_steps(model, receipt)
        next(steps)
        model.unload_adapter("dora")
        with pytest.raises(StopIteration) as end:
            while True:
                next(steps)
        assert end.value.value.identical


def test_saved_prefixes_are_an_adapters(folders, tmp_path, alone):
    file = tmp_path / "prefix"
    with with_all(folders, "cpu") as model:
        assert model.save_prefix(PROMPT[:9], file, adapter="wide") == 9
    with with_all(folders) as model:
        for other in (None, "one"):
            with pytest.raises(RequestError, match="another model"):
                model.load_prefix(file, adapter=other)
        assert model.load_prefix(file, adapter="wide", check=True) == PROMPT[:9]
        made = model.generate(PROMPT, max_tokens=5, ignore_eos=True, adapter="wide")
        assert made.step_digests == alone["wide"] and made.stats.reused_tokens == 9
        for name in (None, "one"):
            again = model.generate(PROMPT, max_tokens=5, ignore_eos=True, adapter=name)
            assert again.step_digests == alone[name] and not again.stats.reused_tokens


def test_a_scale_multiplies_the_change(folders):
    with opened() as model:
        for name, scale in (("whole", ""), ("none", ":0"), ("half", ":0.5")):
            model.load_adapter(name, f"{folders['wide']}{scale}")
        found = [digests(model, name) for name in ("whole", "half", "none", None)]
    assert found[2] == found[3] and len(set(found)) == 3


def test_what_cannot_be_loaded_is_named(folders, tmp_path):
    with opened(adapter_memory=1) as model:
        for name in ("a:b", "", "x" * 200):
            with pytest.raises(RequestError, match="an adapter is named"):
                model.load_adapter(name, folders["one"])
        model.load_adapter("one", folders["one"])
        with pytest.raises(RequestError, match="loaded already"):
            model.load_adapter("one", folders["one"])
        large = write_lora(tmp_path / "large", model, 1, rank=4000, targets=("q_proj",))
        with pytest.raises(RequestError, match=r"2 adapters take .* MiB, and there may be 1 MiB"):
            model.load_adapter("large", large)
        assert [one.name for one in model.adapters.listed] == ["one"]
        with opened(name="synthetic:tiny-gemma3") as other:
            theirs = write_lora(tmp_path / "other", other, 1)
        with pytest.raises(FormatError, match=r"made for another model|does not have"):
            model.load_adapter("other", theirs)
        with pytest.raises(RequestError, match=r"unload|no adapter"):
            model.unload_adapter("other")
    with pytest.raises(RequestError, match="NAME=PATH"):
        opened(adapters=["nothing"])
    with opened(name="synthetic:tiny-ties") as fixture, pytest.raises(UnsupportedError):
        fixture.load_adapter("one", folders["one"])


def test_a_number_without_an_overlay_is_refused(folders):
    """A row's number is an index of a stack: no backend may read behind it."""
    with with_all(folders, "cpu") as model:
        digests(model, "one")
        state = model.executable.open(8)
        members = 1 + model.adapters._banks._room
        for number in (-1, members, 1 << 20):
            row = Row(state, 0, 5, (Argmax(),), overlay_inputs(number))
            outcome = model.executable.forward(Batch([row])).result().outcomes[state]
            assert outcome.status is Status.DECLINED, number
        good = Row(state, 0, 5, (DIGEST,), overlay_inputs(5))
        assert model.executable.forward(Batch([good])).result().rows[0][DIGEST]


def test_a_chain_says_that_it_computes_none(folders):
    """A chain of several backends takes no adapter, and goes on without."""
    source = open_source(NAME, LoadOptions(context=64))
    options = cortiq.backend.CompileOptions()
    backend = ReferenceBackend()
    chain = place_split([(backend, options)] * 2, source.program, source.weights, [3])
    with opened() as model:
        model.adapters._executable = chain
        with pytest.raises(RequestError, match=r"no adapter chosen by request.*\n.*--lora"):
            model.load_adapter("one", folders["one"])
        assert model.generate(PROMPT, max_tokens=1).token_ids


@pytest.mark.parametrize("backend", [one for one in backends() if one != "reference"])
def test_adapters_come_and_go_on_a_model_that_has_computed(backend, folders, alone):
    """Angles and memory of batches are there before the plans with overlays are."""
    with opened(backend) as model:
        assert digests(model, None) == alone[None]
        first, second = [*folders][:2]
        for name in (first, second):
            model.load_adapter(name, folders[name])
            assert digests(model, name) == alone[name]
        model.unload_adapter(first)
        assert (digests(model, None), digests(model, second)) == (alone[None], alone[second])


def test_banks_that_could_not_be_made_are_made_with_the_next_request(folders, alone, monkeypatch):
    with opened() as model:
        first, second = [*folders][:2]
        model.load_adapter(first, folders[first])
        assert digests(model, first) == alone[first]
        model.load_adapter(second, folders[second])
        inner = model.executable.inner
        with monkeypatch.context() as patch:
            patch.setattr(inner, "varied_plans", lambda *given: (_ for _ in ()).throw(MemoryError))
            with pytest.raises((MemoryError, BackendError)):
                digests(model, second)
        assert digests(model, first) == alone[first]


def test_vectors_of_ones_and_products_of_zero_change_no_bit(folders, tmp_path, alone):
    with opened() as model:
        path = write_ia3(tmp_path / "ones", model, 1)
        file = path / "adapter_model.safetensors"
        same = {n: np.ones_like(v) for n, v in safetensors.numpy.load_file(file).items()}
        safetensors.numpy.save_file(same, file)
        model.load_adapter("ones", path)
        assert digests(model, "ones") == alone[None]


def test_a_load_changes_its_own_part_of_the_banks(folders, tmp_path, alone, monkeypatch):
    """Also in the place of one that was unloaded; a larger one has all banks made anew."""
    made = []
    with with_all(folders, "cpu") as model:
        inner = model.executable.inner
        vary = inner.vary
        monkeypatch.setattr(inner, "vary", lambda *given: (made.append(1), vary(*given)))
        assert digests(model, "wide") == alone["wide"]
        folder = write_lora(tmp_path / "new", model, 9, rank=2)
        large = write_lora(tmp_path / "large", model, 9, rank=20)
        model.load_adapter("again", folders["wide"])
        model.unload_adapter("one")
        for name, path in (("new", folder), ("ia3 again", folders["ia3"])):
            model.load_adapter(name.replace(" ", "-"), path)
        assert digests(model, "again") == alone["wide"]
        assert digests(model, "ia3-again") == alone["ia3"]
        found = digests(model, "new")
        assert made == [1] and {n: digests(model, n) for n in ("dora", None)} == {
            n: alone[n] for n in ("dora", None)
        }
        model.unload_adapter("table")
        model.load_adapter("table-again", folders["table"])
        model.load_adapter("large", large)
        assert digests(model, "table-again") == alone["table"] and made == [1, 1]
        expected = digests(model, "large")
    with opened() as model:
        for name, path, want in (("new", folder, found), ("large", large, expected)):
            model.load_adapter(name, path)
            assert digests(model, name) == want
