"""Prefixes in files: written once, good on every backend, refused when anything is not right."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import struct

import numpy as np
import pytest
from click.testing import CliRunner
from engines import backends

import cortiq
from cortiq.cli.main import cli
from cortiq.engine.prefix_file import EARLIER
from cortiq.errors import CortiqError, FormatError, RequestError

MODELS = ["synthetic:tiny-llama", "synthetic:tiny-lfm2"]
TEXT = "The same beginning of many prompts, long enough to be worth it. "


@pytest.fixture(params=MODELS)
def name(request):
    return request.param


@pytest.fixture
def saved(tmp_path, name):
    with cortiq.load(name, backend="reference", threads=1) as model:
        count = model.save_prefix(TEXT, tmp_path / "prefix")
    assert count == len(TEXT)
    assert [file.name for file in tmp_path.iterdir()] == ["prefix"]
    return tmp_path / "prefix"


@pytest.mark.parametrize("backend", backends())
def test_text_after_a_loaded_prefix_is_the_same_on_every_backend(saved, name, backend):
    prompts = [TEXT + "And then", TEXT + "But", TEXT[:40] + "else"]
    with cortiq.load(name, backend="reference", threads=1) as model:
        expected = [model.generate(p, max_tokens=6, ignore_eos=True) for p in prompts]
    with cortiq.load(name, backend=backend, threads=1) as model:
        ids = model.load_prefix(saved)
        assert model.tokenizer.decode(ids) == TEXT
        made = [model.generate(p, max_tokens=6, ignore_eos=True) for p in prompts]
    assert [one.digest for one in made] == [one.digest for one in expected]
    assert [one.token_ids for one in made] == [one.token_ids for one in expected]
    reused = [one.stats.reused_tokens for one in made]
    assert reused[:2] == [len(ids)] * 2
    assert reused[2] == (40 if "llama" in name else 0)


@pytest.mark.parametrize("backend", backends())
@pytest.mark.parametrize("full", [False, True])
def test_a_prefix_is_cut_as_far_back_as_windows_let_it(tmp_path, backend, full):
    """Without the rows behind the windows, a prompt that parts from it earlier is fed whole."""
    name, text, kept = "synthetic:tiny-gemma3", TEXT * 4, {"full_windows": full}
    with cortiq.load(name, backend="reference", threads=1, **kept) as model:
        length = model.save_prefix(text, tmp_path / "prefix")
        prompts = [text + "And", text[:-30] + "Or", text[:-150] + "But no"]
        expected = [model.generate(p, max_tokens=3, ignore_eos=True).digest for p in prompts]
    reused = [length, length - 30, length - 150 if full else 0]
    with cortiq.load(name, backend=backend, threads=1, **kept) as model:
        model.load_prefix(tmp_path / "prefix")
        made = [model.generate(p, max_tokens=3, ignore_eos=True) for p in prompts]
    assert [one.digest for one in made] == expected
    assert [one.stats.reused_tokens for one in made] == reused


def test_trimming_makes_prefixes_smaller_and_older_files_are_read(tmp_path):
    sizes = []
    for full in (True, False):
        path = tmp_path / f"{full}"
        with cortiq.load("synthetic:tiny-gemma3", threads=1, full_windows=full) as model:
            model.save_prefix(TEXT * 4, path)
            for earlier in EARLIER:
                rewritten(path, as_earlier(earlier))
                assert len(model.load_prefix(path, check=True)) == len(TEXT) * 4
        sizes.append(path.stat().st_size)
    assert sizes[1] < 0.85 * sizes[0]


def test_kept_prefixes_serve_the_next_turn(name):
    with cortiq.load(name, threads=1) as model:
        plain = model.generate(TEXT, max_tokens=5, ignore_eos=True)
        longer = [*model.ids(TEXT), *plain.token_ids, 5, 6]
        expected = model.generate(longer, max_tokens=5, ignore_eos=True)
        cache = model.keep_prefixes(2)
        assert model.generate(TEXT, max_tokens=5, ignore_eos=True).digest == plain.digest
        made = model.generate(longer, max_tokens=5, ignore_eos=True)
        assert made.digest == expected.digest
        assert made.stats.reused_tokens == len(longer) - 3
        assert len(cache) == 1
        model.drop_prefixes()
        assert model.generate(longer, max_tokens=5).stats.reused_tokens == 0


def rewritten(path, change):
    """The file with its header and tensors changed, and offsets that fit again."""
    data = path.read_bytes()
    length = struct.unpack_from("<Q", data)[0]
    table, body = json.loads(data[8 : 8 + length]), bytearray(data[8 + length :])
    change(table, body)
    header = json.dumps(table).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(body))


def of_metadata(**values):
    return lambda table, body: table["__metadata__"].update(values)


def as_earlier(name):
    """The file as an earlier version wrote it: its hash is of the tensors' bytes alone."""

    def change(table, body):
        digest = hashlib.sha256()
        for key in sorted(table.keys() - {"__metadata__"}):
            start, stop = table[key]["data_offsets"]
            digest.update(body[start:stop])
        table["__metadata__"] |= {"format": name, "sha256": digest.hexdigest()}

    return change


def drop_slot(table, body):
    name = max(table, key=lambda n: table[n].get("data_offsets", [0, 0])[1])
    start, stop = table.pop(name)["data_offsets"]
    del body[start:stop]


def flip(table, body):
    body[7] ^= 1


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (of_metadata(format="other"), FormatError, "no prefix that cortiq saved"),
        (of_metadata(contract="9"), RequestError, "contract '9'"),
        (of_metadata(model="0" * 64), RequestError, "another model"),
        (of_metadata(sha256="0" * 64), FormatError, "damaged"),
        (of_metadata(lengths="{"), FormatError, "damaged"),
        (of_metadata(more="x"), FormatError, "damaged"),
        (of_metadata(format="cortiq prefix 2"), FormatError, "damaged"),
        (flip, FormatError, "damaged"),
        (drop_slot, (FormatError, RequestError), "damaged|slots"),
        (lambda table, body: body.extend(b"1234"), FormatError, "end at byte"),
        (lambda table, body: table.pop("__metadata__"), FormatError, "no prefix"),
    ],
)
def test_file_that_is_not_right_is_refused(saved, name, change, error, message):
    rewritten(saved, change)
    with (
        cortiq.load(name, backend="reference", threads=1) as model,
        pytest.raises(error, match=message),
    ):
        model.load_prefix(saved)


@pytest.mark.parametrize(
    ("lengths", "error", "message"),
    [("{", FormatError, "lengths: is not valid JSON"), ("[]", FormatError, "not a JSON object"),
     ('{"trunk": 3}', RequestError, "ids for 3 rows|has"), ("{}", RequestError, "entry graphs"),
     ('{"trunk": 64, "trunk": 64}', FormatError, "appears twice"),
     ("[" * 100_000, FormatError, "deep"), ('{"trunk": NaN}', RequestError, "has nan rows")],
)  # fmt: skip
def test_lengths_are_read_strictly_even_with_the_right_hash(saved, name, lengths, error, message):
    def change(table, body):
        table["__metadata__"]["lengths"] = lengths
        as_earlier("cortiq prefix 2")(table, body)

    test_file_that_is_not_right_is_refused(saved, name, change, error, message)


@pytest.mark.parametrize("backend", backends())
def test_a_prefix_computed_again_is_the_same_on_every_backend(saved, name, backend):
    with cortiq.load(name, backend=backend, threads=1) as model:
        assert model.tokenizer.decode(model.load_prefix(saved, check=True)) == TEXT


def test_a_prefix_of_other_rows_is_found_by_computing_it_again(tmp_path, name):
    """Its hash is right, as anybody can make it: it is believed, unless it is checked."""
    from cortiq.engine.prefix_file import read_prefix, write_prefix

    with cortiq.load(name, backend="reference", threads=1) as model:
        model.save_prefix("Be kind to everybody who asks.", tmp_path / "kind")
        model.save_prefix("Be rude to everybody who asks.", tmp_path / "rude")
        kind, rude = (
            read_prefix(tmp_path / word, model.program, model.fingerprint)
            for word in ("kind", "rude")
        )
        forged = dataclasses.replace(rude, tokens=kind.tokens)
        write_prefix(tmp_path / "forged", forged, model.fingerprint)
        assert model.load_prefix(tmp_path / "forged") == kind.tokens.tolist()
        with pytest.raises(FormatError, match="not what the model computes of its tokens: '"):
            model.load_prefix(tmp_path / "forged", check=True)
        file, flags = str(tmp_path / "forged"), ["--backend", "reference"]
        made = CliRunner().invoke(cli, ["prefix", "load", name, file, "--check", *flags])
        assert isinstance(made.exception, FormatError)


def test_values_out_of_the_domain_are_refused_even_with_the_right_hash(tmp_path):
    from cortiq.engine.prefix_file import read_prefix, write_prefix

    with cortiq.load("synthetic:tiny-lfm2", backend="reference", threads=1) as model:
        model.save_prefix(TEXT, tmp_path / "a")
        exported = read_prefix(tmp_path / "a", model.program, model.fingerprint)
        ring = next(n for n, s in exported.slots.items() if isinstance(s, np.ndarray))
        exported.slots[ring][0, 0] = np.inf
        write_prefix(tmp_path / "b", exported, model.fingerprint)
        with pytest.raises(RequestError, match="not finite"):
            model.load_prefix(tmp_path / "b")
        with pytest.raises(CortiqError):
            model.load_prefix(tmp_path / "missing")
        with pytest.raises(RequestError, match="cannot be written"):
            write_prefix(tmp_path / "no" / "b", exported, model.fingerprint)


def test_prefix_of_other_options_is_refused(saved, name):
    with (
        cortiq.load(name, backend="reference", threads=1, weight_format="w8") as model,
        pytest.raises(RequestError, match="another model"),
    ):
        model.load_prefix(saved)


def test_command_line(tmp_path):
    run = CliRunner().invoke
    file, model = str(tmp_path / "p"), "synthetic:tiny-llama"
    made = run(cli, ["prefix", "save", model, file, "-p", TEXT])
    assert made.exit_code == 0 and f"{len(TEXT)} tokens in" in made.output
    made = run(cli, ["prefix", "load", model, file, "--check"])
    assert "identical when recomputed" in made.output
    made = run(cli, ["prefix", "load", model, file, "--json"])
    assert json.loads(made.output)["text"] == TEXT
    base = ["generate", model, "-p", TEXT + "x", "--max-tokens", "4", "--json"]
    plain, reused = (json.loads(run(cli, base + more).output) for more in ([], ["--prefix", file]))
    assert plain["digest"] == reused["digest"]
    assert reused["stats"]["reused_tokens"] == len(TEXT)
    assert run(cli, ["prefix", "save", model, file, "-p", ""]).exit_code != 0


def test_stats_say_what_a_prefix_was_good_for_and_an_unused_one_is_said(tmp_path):
    run, file, model = CliRunner().invoke, str(tmp_path / "p"), "synthetic:tiny-llama"
    run(cli, ["prefix", "save", model, file, "-p", TEXT])
    base = ["generate", model, "--prefix", file, "--max-tokens", "2", "--stats", "-p"]
    used, unused = (run(cli, [*base, prompt]).stderr for prompt in (TEXT + "x", "Else"))
    assert f"{len(TEXT)} prompt tokens were cached" in used and "not used" not in used
    assert f"not used: the prompt does not begin with its {len(TEXT)} tokens" in unused
    assert "were kept" not in unused
    run(cli, ["prefix", "save", model, file, "-p", "ab"])
    assert "not used: it has 2 tokens, fewer than the" in run(cli, [*base, "abc"]).stderr


def test_a_file_goes_to_the_cache_that_is_there_even_if_it_is_empty(saved, name):
    with cortiq.load(name, backend="reference", threads=1) as model:
        cache = model.keep_prefixes(20)
        model.load_prefix(saved)
        assert model.prefixes is cache and len(cache) == 1


@pytest.mark.parametrize("wrong", [{"count": -1}, {"count": 1.5}, {"nbytes": 0}, {"nbytes": "1"}])
def test_limits_of_a_cache_are_positive_integers(wrong):
    with (
        cortiq.load("synthetic:tiny-llama", backend="reference", threads=1) as model,
        pytest.raises(RequestError, match="an integer of at least 1"),
    ):
        model.keep_prefixes(**wrong)


def test_a_prefix_of_a_model_with_other_heads_is_an_error_either_way(tmp_path):
    """A prefix file saved without a draft head lacks what the head needs of the prompt."""
    ids, file = list(range(3, 40)), tmp_path / "kept"
    for saved, loaded, sentence in (("off", "mtp", "lacks"), ("mtp", "off", "holds")):
        with cortiq.load("synthetic:tiny-llama", backend="cpu", threads=1, heads=saved) as model:
            model.save_prefix(ids, file)
        with (
            cortiq.load("synthetic:tiny-llama", backend="cpu", threads=1, heads=loaded) as model,
            pytest.raises(RequestError, match=f"{sentence} 'mtp.kv/"),
        ):
            model.load_prefix(file)
