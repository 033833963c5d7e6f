"""Every family against transformers, from one declaration each.

To add a family, add a `Family` to the list `FAMILIES` of a module `families_*.py` here (or a new
such module): the name of its module, transformers' configuration class, its switches, and its
options with a slightly different value. `family_harness.Family` describes the fields. From that
follow, in three geometries (`wide`: heads times head width is not the hidden size; `odd`: widths
that are no multiples of 32; `switched`: every switch of the family away from its default):

* the graph in float64 is transformers' model in double, within 1e-5 of the largest logit;
* the contract on the reference is the graph in float64, within 2e-3 norm-wise;
* no product has rows or weights whose range makes w16 cost more than sixteen bits must;
* chunks, single rows, rewinds, forks and batch neighbours change no bit;
* every option, and every switch, moves the logits or contradicts the tensors, and no field of the
  family's config is left out;
* unknown keys, sizes and lists that contradict the tensors, absent, misshapen and left over
  tensors, a head that is tied in one place only: our own errors, by name;
* a GGUF file of the same tensors, where the family has `gguf`, gives the same logits.

A family takes about half a second.
"""

from __future__ import annotations

import dataclasses
import functools
import re

import pytest

pytest.importorskip("transformers")

import numpy as np
from checkpoints import write
from family_harness import (
    FORMATS,
    GEOMETRIES,
    POSITIONS,
    SHARED,
    Edited,
    changed,
    declared,
    depth,
    distance,
    logits_of,
    norm_distance,
)
from gguf_files import write_gguf
from product_costs import LARGEST_COST, costs
from safetensors.numpy import load_file, save_file
from sequences import alive, alone, completed, feed, in_chunks, rows, same

from cortiq.backend import CompileOptions, Digest, Named
from cortiq.errors import CortiqError, FormatError, GraphError, UnsupportedError
from cortiq.formats.checkpoint import open_checkpoint
from cortiq.models import load_program
from cortiq.models.parts import HEAD
from cortiq.models.registry import describe_families, names_of, read_config
from cortiq.numerics.quantise import dequantise, quantise_rows
from cortiq_reference.backend import ReferenceBackend
from cortiq_reference.ideal import evaluate

TOLERANCE, CONTRACT = 1e-5, 2e-3
BITES = 30 * TOLERANCE
FAMILIES = declared()
WANTS = (Digest(), Digest("hidden"))
SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads",
         "num_key_value_heads", "num_hidden_layers", "head_dim")  # fmt: skip
every_family = pytest.mark.parametrize("family", FAMILIES, ids=str)
every_geometry = pytest.mark.parametrize("geometry", GEOMETRIES)
one_geometry = pytest.mark.parametrize(
    "geometry",
    [
        pytest.param(name, marks=[] if name == "switched" else pytest.mark.slow)
        for name in GEOMETRIES
    ],
)
"""The one in w8, whose switches are turned; the others where there is time."""


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Checkpoints by family and geometry, each written once."""
    known = {}

    def get(family, geometry):
        case = family.case(geometry)
        if case.name not in known:
            known[case.name] = write(case, tmp_path_factory.mktemp(case.name))
        return known[case.name]

    return get


@every_geometry
@every_family
def test_the_graph_in_float64_is_transformers_in_double(family, geometry, written):
    model = written(family, geometry)
    logits = logits_of(open_checkpoint(model.folder), model.tokens, family.context)
    assert logits.shape == model.logits.shape
    assert distance(logits, model.logits) < TOLERANCE


@one_geometry
@every_family
def test_the_contract_is_close_and_scheduling_changes_no_bit(family, geometry, written):
    model = written(family, geometry)
    loaded = load_program(
        open_checkpoint(model.folder), context=family.context, weight_format=FORMATS[geometry]
    )
    backend, options = ReferenceBackend(), CompileOptions(threads=1)
    executable = backend.compile(loaded.program, loaded.weights, options)
    ids, logits = model.tokens, Named("logits")
    expected, left = alone(executable, ids, (*WANTS, logits))
    contract = np.stack([answer.pop(logits) for answer in expected])
    ideal = evaluate(loaded.program, loaded.weights, ids, ["logits"])["logits"]
    assert 0 < norm_distance(contract, ideal) < CONTRACT
    assert alive(expected)
    state = executable.open(POSITIONS)
    assert same(in_chunks(executable, state, ids, [5, 1, 1, 7, 1], WANTS), expected)
    assert same(state.export(), left)
    fork = state.fork()
    start = fork.rewind(11)
    assert same(feed(executable, fork, ids[start:], WANTS), expected[start:])
    assert same(fork.export(), left)
    other, again = executable.open(POSITIONS), executable.open(POSITIONS)
    groups = rows(other, ids[::-1], WANTS), rows(again, ids, WANTS)
    assert same(completed(executable, *groups)[POSITIONS:], expected)


def in_formats(family, written, *formats):
    model = written(family, "wide")
    load = functools.partial(load_program, context=family.context)
    return model.tokens, *(load(open_checkpoint(model.folder), weight_format=f) for f in formats)


@every_family
def test_no_product_has_rows_or_weights_that_sixteen_bits_hurt(family, written):
    tokens, exact, w16 = in_formats(family, written, "f32", "w16")
    found = costs(exact, w16, tokens)
    assert found
    assert {name: cost for name, cost in found.items() if cost > LARGEST_COST} == {}


def test_weights_in_eight_bits_and_rows_of_mixed_ranges_are_found(written):
    family = next(family for family in FAMILIES if family.name == "qwen3_next")
    tokens, exact, w16, w8 = in_formats(family, written, "f32", "w16", "w8")
    one = next(name for name in w16.weights if name.endswith("in_proj_ba.weight"))
    mixed = dataclasses.replace(w16, weights={**w16.weights, one: w8.weights[one]})
    found = costs(exact, mixed, tokens)
    dear = [name for name, cost in found.items() if cost > LARGEST_COST]
    assert dear == ["layers.0.delta.ba.matmul"]

    def beside_a_larger_one(x):
        larger = 200 * np.abs(x).max(axis=-1, keepdims=True)
        return dequantise(quantise_rows(np.concatenate([x, larger], axis=-1)))[..., :-1]

    assert min(costs(exact, w16, tokens, beside_a_larger_one).values()) > LARGEST_COST


def options_of(families):
    pairs = [(family, changes) for family in families for changes in family.moves]
    return [pytest.param(f, changes, id=f"{f}-{','.join(changes)}") for f, changes in pairs]


@pytest.mark.parametrize(("family", "changes"), options_of(FAMILIES))
def test_an_option_moves_the_logits(family, changes, written):
    model = written(family, family.geometry_of(changes))
    other = changed(open_checkpoint(model.folder), changes)
    assert distance(logits_of(other, model.tokens, family.context), model.logits) >= BITES


@every_family
def test_a_switch_set_back_moves_the_logits_or_contradicts_the_tensors(family, written):
    model, plain = (written(family, geometry) for geometry in ("switched", "wide"))
    checkpoint, defaults = open_checkpoint(model.folder), open_checkpoint(plain.folder).config
    unseen = []
    for key in family.switches:
        other = changed(checkpoint, {key: defaults.get(key, ...)})
        try:
            moved = distance(logits_of(other, model.tokens, family.context), model.logits)
            unseen += [] if moved >= BITES else [f"{key} moves the logits by {moved}"]
        except (FormatError, GraphError):
            pass
    assert unseen == []


@every_family
def test_every_field_of_the_config_is_seen_to_matter(family):
    paths = {path for changes in family.moves for path in changes} | set(family.switches)
    keys = {path.partition(".")[0] for path in paths}
    keys = {family.module.KEYS.aliases.get(key, key) for key in keys}
    config = family.module.Config
    fields = {f.name for f in dataclasses.fields(config)} - config.not_in_json
    assert fields - keys - SHARED - set(family.sizes) - family.elsewhere == set()


@every_family
def test_sizes_and_lists_that_contradict_the_tensors_are_refused(family, written):
    checkpoint = open_checkpoint(written(family, "odd").folder)
    layers = depth(checkpoint)
    accepted, sizes = [], {*SIZES, *family.sizes} - {*family.unread}
    for key, value in checkpoint.config.items():
        whole = key in sizes and isinstance(value, int)
        others = [value - 1, value + 1, 2 * value] if whole else []
        if isinstance(value, list) and len(value) == layers and key != "architectures":
            others = [value[:-1], [*value, value[0]], ["nonsense", *value[1:]]]
        for other in others:
            try:
                load_program(changed(checkpoint, {key: other}))
                accepted.append((key, other))
            except CortiqError as error:
                assert error.where is not None
    assert accepted == []


@every_family
def test_a_list_that_is_left_out_is_the_one_that_transformers_derives(family, written):
    model = written(family, "odd")
    checkpoint = open_checkpoint(model.folder)
    layers = depth(checkpoint)
    lists = [k for k, v in checkpoint.config.items() if isinstance(v, list) and len(v) == layers]
    given = {*family.required, *family.case("odd").options}
    lists = [key for key in lists if key not in given]
    other = changed(checkpoint, dict.fromkeys(lists, ...))
    assert distance(logits_of(other, model.tokens, family.context), model.logits) < TOLERANCE


def names(family, checkpoint):
    """Names of tensors, which may follow from the configuration."""
    return names_of(family.module, read_config(family.module, checkpoint))


@one_geometry
@every_family
def test_tensors_that_are_absent_misshapen_or_left_over_are_named(family, geometry, written):
    checkpoint = open_checkpoint(written(family, geometry).folder)
    unread = names(family, checkpoint).unread
    read = [n for n in checkpoint.tensor_names if not re.fullmatch(unread, n)]
    by_role = {re.sub(r"\.\d+\.", ".N.", name): name for name in read}
    for name in by_role.values():
        part = name.removesuffix(".weight").removesuffix(".bias").rpartition(".")[2]
        with pytest.raises(FormatError, match=part):
            load_program(Edited(checkpoint, without=name))
    with pytest.raises(FormatError) as misshapen:
        load_program(Edited(checkpoint, grown=by_role.values()))
    assert [n for n in by_role.values() if f" {n} is [" not in str(misshapen.value)] == []
    with pytest.raises(FormatError, match=r"\.0\.extra\.weight"):
        load_program(Edited(checkpoint, extra="model.layers.0.extra.weight"))


@every_geometry
@every_family
def test_a_head_that_is_tied_in_one_place_only_is_named(family, geometry, written):
    checkpoint = open_checkpoint(written(family, geometry).folder)
    tied = checkpoint.config["tie_word_embeddings"]
    other = changed(checkpoint, {"tie_word_embeddings": not tied})
    with pytest.raises(FormatError, match=re.escape(names(family, checkpoint).in_folder(HEAD))):
        load_program(other)


@every_family
def test_what_is_not_supported_is_named(family, written):
    checkpoint = open_checkpoint(written(family, "wide").folder)
    strange = {"attention_surprise": 2.0}
    for changes, words in [(strange, "attention_surprise"), *family.refused]:
        with pytest.raises(UnsupportedError, match=words):
            load_program(changed(checkpoint, changes))


IN_GGUF = [(family, geometry, how) for family in FAMILIES for how in family.gguf
           for geometry in how.geometries]  # fmt: skip


@pytest.mark.parametrize(("family", "geometry", "how"), IN_GGUF, ids=str)
def test_a_gguf_file_of_the_tensors_is_the_same_model(family, geometry, how, written, tmp_path):
    pytest.importorskip("gguf")
    model = written(family, geometry)
    write_gguf(tmp_path / "model.gguf", model.folder, how)
    checkpoint = open_checkpoint(tmp_path / "model.gguf")
    assert str(how) in {name for info in describe_families() for name in info.gguf}
    assert distance(logits_of(checkpoint, model.tokens, family.context), model.logits) < TOLERANCE


@pytest.mark.parametrize("name", ["qwen2", "qwen3_moe"])
def test_matrices_that_a_gguf_file_has_joined_are_read(name, written, tmp_path):
    pytest.importorskip("gguf")
    family = next(family for family in FAMILIES if family.name == name)
    model = written(family, "wide")

    def join(values, tensors):
        for layer in range(2):
            rows = [(f"blk.{layer}.attn_{{}}", "qkv", "qkv", 0),
                    (f"blk.{layer}.ffn_{{}}_exps", ("gate", "up"), "gate_up", 1)]  # fmt: skip
            for stem, parts, whole, axis in rows:
                for end in (".weight", ".bias"):
                    held = [tensors.pop(stem.format(part) + end, None) for part in parts]
                    if held[0] is not None:
                        tensors[stem.format(whole) + end] = np.concatenate(held, axis)

    write_gguf(tmp_path / "model.gguf", model.folder, family.gguf[0], join)
    checkpoint = open_checkpoint(tmp_path / "model.gguf")
    assert "blk.1.attn_q.weight" not in checkpoint and "blk.1.attn_qkv.weight" in checkpoint
    assert distance(logits_of(checkpoint, model.tokens, family.context), model.logits) < TOLERANCE


def test_layers_that_draft_are_no_part_of_the_trunk(written):
    family = next(family for family in FAMILIES if family.name == "glm4_moe")
    checkpoint = open_checkpoint(written(family, "wide").folder)
    drafts = changed(checkpoint, {"num_nextn_predict_layers": 1})
    joint, other = "model.layers.2.eh_proj.weight", "model.layers.2.enorm.weight"
    with pytest.raises(FormatError, match="enorm"):
        load_program(Edited(drafts, extra=other))
    assert load_program(Edited(drafts, extra=joint)).program.facts["layers"] == 2
    without = changed(checkpoint, {"num_nextn_predict_layers": 0})
    with pytest.raises(FormatError, match="eh_proj"):
        load_program(Edited(without, extra=joint))


def test_every_family_and_every_gguf_architecture_is_tested():
    listed = describe_families()
    elsewhere = {"mixtral", "lfm2", "deepseek2", "qwen3_vl_moe"}  # test_families, test_text_parts
    elsewhere |= {"bert", "modernbert", "nomic_bert", "whisper"}  # test_encoders, test_whisper
    elsewhere |= {"bailing_moe_v2", "internlm2", "minicpm"}  # test_renamed_families.py
    elsewhere |= {"nanbeige", "rwkv7", "phi4flash"}  # test_looped, test_rwkv7, test_phi4flash
    elsewhere |= {"kimi_k3", "llama_bidirec"}  # test_kimi_k3, test_sentence_modules
    assert {info.name for info in listed} == {f.name for f in FAMILIES} | elsewhere
    files = {str(how) for f in FAMILIES for how in f.gguf} | {"llama+experts", "lfm2"}
    files |= {"internlm2", "minicpm", "nanbeige", "rwkv7", "bailingmoe2"}
    files |= {"kimi-k3", "bert", "modern-bert", "nomic-bert"}  # test_encoder_gguf.py
    files |= {"gemma-embedding", "llama-embed"}  # test_sentence_modules.py
    files |= {"qwen2vl", "qwen3vl", "qwen3vlmoe", "qwen4exp"}  # test_mmproj.py, test_qwen4_exp.py
    assert {name for info in listed for name in info.gguf} == files


@pytest.mark.parametrize(
    ("name", "prefix"),
    [
        ("gpt2", "transformer."),
        ("bloom", "transformer."),
        ("qwen3", "model."),
        ("exaone", "transformer."),
    ],
)
def test_a_folder_of_a_model_without_a_head_lacks_its_prefix(name, prefix, written, tmp_path):
    model = written(next(family for family in FAMILIES if family.name == name), "switched")
    tensors = load_file(model.folder / "model.safetensors")
    assert all(key.startswith((prefix, "lm_head")) for key in tensors)
    bare = {key.removeprefix(prefix): value for key, value in tensors.items()}
    save_file(bare, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((model.folder / "config.json").read_bytes())
    assert distance(logits_of(open_checkpoint(tmp_path), model.tokens), model.logits) < TOLERANCE
