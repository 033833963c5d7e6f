"""The Python API as a newcomer meets it: names, reprs, paths, and models without a tokenizer."""

from __future__ import annotations

import inspect
import json
import pydoc
import time
from importlib import metadata

import numpy as np
import pytest
from scripted import scripted_model

import cortiq
from cortiq.cli.main import main
from cortiq.engine.engine import Engine
from cortiq.engine.request import make_request
from cortiq.errors import ModelNotFoundError, OptionError, RequestError, TokenizerError
from cortiq.formats.cache import report_growth
from cortiq.model.load import PREPARING
from cortiq.options import GenerateOptions
from cortiq.tokenizer.tokenizer import Tokenizer

TINY = "synthetic:tiny-llama"


@pytest.fixture
def model():
    with cortiq.load(TINY, backend="reference", context=128) as opened:
        yield opened


@pytest.fixture
def folder(tmp_path):
    """A Llama folder with config and weights, and nothing about text."""
    from safetensors.numpy import save_file

    width, vocabulary, inner = 32, 48, 64
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": width,
        "intermediate_size": inner, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 2, "vocab_size": vocabulary, "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": True,
        "hidden_act": "silu", "eos_token_id": 1,
    }  # fmt: skip
    shapes = {
        "embed_tokens": (vocabulary, width), "norm": (width,),
        "layers.0.input_layernorm": (width,), "layers.0.post_attention_layernorm": (width,),
        "layers.0.mlp.gate_proj": (inner, width), "layers.0.mlp.up_proj": (inner, width),
        "layers.0.mlp.down_proj": (width, inner),
    }  # fmt: skip
    shapes |= {f"layers.0.self_attn.{n}_proj": (width, width) for n in "qkvo"}
    random = np.random.default_rng(0)
    weights = {
        f"model.{name}.weight": random.standard_normal(shape).astype(np.float32)
        for name, shape in shapes.items()
    }
    save_file(weights, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def test_module_lists_and_documents_its_names():
    assert set(cortiq.__all__) <= set(dir(cortiq))
    assert cortiq.__version__ == metadata.version("cortiq")
    text = pydoc.plain(pydoc.render_doc(cortiq))
    assert "class GenerateOptions" in text and "load(name" in text
    for method in (cortiq.Model.generate, cortiq.Model.stream):
        assert "help(cortiq.GenerateOptions)" in inspect.getdoc(method)
    assert "help(cortiq.ScoreOptions)" in inspect.getdoc(cortiq.Model.score)


def test_dir_shows_the_api_and_nothing_of_its_making():
    shown = {name for name in dir(cortiq) if not name.startswith("__")}
    assert shown == set(cortiq.__all__) - {"__version__"}


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({"role": "user"}, r"messages\[1\] has no content"),
        ({"content": "x"}, r"messages\[1\]: the role is None"),
        ({"role": "usr", "content": "x"}, "a role is one of system, developer, user"),
        ({"role": "user", "content": 5}, "a text or a list of parts, not 5"),
    ],
)
def test_a_wrong_message_is_shown(model, message, words):
    with pytest.raises(RequestError, match=words):
        model.chat([{"role": "user", "content": "a"}, message])


def test_several_texts_are_for_generate_many(model):
    with pytest.raises(RequestError, match="generate_many takes several texts"):
        model.generate(["a", "b"])


@pytest.mark.parametrize("given", ["abc", b"abc", 5, None, {"a": 1}])
def test_one_text_is_no_list_of_prompts(model, given):
    with pytest.raises(RequestError, match="expected a list, not") as refused:
        model.generate_many(given)
    assert refused.value.where == "generate_many"
    with pytest.raises(RequestError, match="expected a list, not"):
        model.likelihoods("a", given)


def test_printing_a_generation_prints_its_text(model):
    made = model.generate("ab", max_tokens=5)
    assert f"{made}" == str(made) == made.text != repr(made)


def test_what_is_no_model_text_or_mapping_is_said(model):
    with pytest.raises(RequestError, match="expected a model, not 5"):
        cortiq.Conversation(5)
    with pytest.raises(RequestError, match="extra: expected a mapping, not 5"):
        cortiq.load(TINY, extra=5)
    with pytest.raises(RequestError, match="progress: expected a function, not 5"):
        cortiq.load(TINY, progress=5)


def test_preparing_weights_is_reported_weight_by_weight():
    told = []
    with cortiq.load(TINY, progress=lambda *one: told.append(one)) as model:
        count = len(model.program.weights)
    assert told == [(PREPARING, done, count) for done in range(1, count + 1)]


def test_a_stream_says_that_its_model_was_closed():
    model = cortiq.load(TINY)
    stream = model.stream("abc", max_tokens=20, ignore_eos=True)
    next(stream)
    model.close()
    with pytest.raises(RequestError, match="the model is closed"):
        next(stream)


def test_reprs_are_short_and_useful(model):
    made = model.generate("ab", max_tokens=100)
    assert repr(model) == f"<Model {TINY}: llama, context 128, on reference:cpu>"
    assert repr(made).endswith("100 tokens, length, on reference:cpu>") and len(repr(made)) < 130
    assert repr(model.tokenizer) == "<Tokenizer: 320 ids, bos 256, eos 257, without chat template>"
    assert len(repr(model.score("a text that is long enough", window=4))) < 250


@pytest.mark.parametrize("name", [None, 3, b"smollm2", ["smollm2"]])
def test_what_is_neither_name_nor_path_is_no_model(name):
    with pytest.raises(RequestError, match="by its name or path"):
        cortiq.load(name)


def test_path_object_is_a_path_and_no_known_name(folder, tmp_path, monkeypatch):
    with cortiq.load(folder, backend="reference") as model:
        assert model.name == str(folder)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelNotFoundError):
        cortiq.load(type(folder)("smollm2"))


def test_folder_without_tokenizer_computes_ids_and_refuses_text(folder):
    with cortiq.load(folder, backend="reference") as model:
        made = model.generate([3, 4, 5], max_tokens=4, ignore_eos=True)
        assert (made.text, len(made.token_ids)) == ("", 4)
        assert "no tokenizer" in made.note and repr(model.tokenizer) == "<no tokenizer>"
        assert list(model.stream([3], max_tokens=2, ignore_eos=True)) == []
        assert model.score(list(range(20)), window=8).tokens == 16
        calls = (
            lambda: model.generate("a"), lambda: model.score("a text"),
            lambda: model.tokenizer.encode("a"), lambda: model.tokenizer.decode([3]),
            lambda: model.generate([3], stop=["a"]),
            lambda: model.chat([{"role": "user", "content": "a"}]),
        )  # fmt: skip
        for call in calls:
            with pytest.raises(TokenizerError, match=r"no tokenizer\.json: give token ids"):
                call()


def test_folder_without_tokenizer_can_be_inspected(folder, capsys):
    with pytest.raises(SystemExit) as exit:
        main(["inspect", str(folder)])
    assert exit.value.code == 0
    assert "tokenizer: none" in capsys.readouterr().out


def test_broken_tokenizer_is_an_error_and_not_absent(folder):
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(TokenizerError, match="not valid JSON"):
        cortiq.load(folder, backend="reference")


def test_logits_are_those_the_tokens_are_drawn_from(model):
    ids = model.ids("a prompt that is longer than one chunk of rows, for certain: " * 2)
    logits = model.logits(ids)
    assert logits.shape == (len(ids), 320) and logits.dtype == np.float32
    for length in (1, 64, 65, len(ids)):
        (drawn,) = model.generate(ids[:length], max_tokens=1, ignore_eos=True).token_ids
        assert drawn == logits[length - 1].argmax()
    with pytest.raises(RequestError, match="the context is 128"):
        model.logits([1] * 129)


@pytest.mark.parametrize("messages", ["hello", [], None, {"role": "user"}, ["hello"]])
def test_what_is_no_conversation_is_refused_with_an_example(messages):
    with pytest.raises(RequestError, match=r"list of messages, not .*\n.*'role': 'user'"):
        scripted_model("x").chat(messages)


def test_longer_context_is_advised_only_where_there_is_one(model):
    with pytest.raises(RequestError, match="load the model with a longer context") as caught:
        model.generate([1] * 129)
    longest = int(str(caught.value).partition("at most ")[2].rstrip(")"))
    with (
        cortiq.load(TINY, backend="reference", context=longest) as whole,
        pytest.raises(RequestError) as caught,
    ):
        whole.generate([1] * (longest + 1))
    assert "load the model" not in str(caught.value)


def test_device_needs_a_backend_and_says_so():
    with pytest.raises(OptionError, match=r"^device 'cpu' needs a backend.*\n.*NAME:cpu"):
        cortiq.load(TINY, device="cpu")
    with pytest.raises(OptionError, match="names one too"):
        cortiq.load(TINY, device="cpu", backend="reference:cpu")
    cortiq.load(TINY, device="cpu", backend="reference").close()


def test_empty_text_is_said_when_scoring(model):
    for text in ("", []):
        with pytest.raises(RequestError, match="the text is empty"):
            model.score(text)


def test_progress_of_a_download_never_falls(tmp_path):
    seen = []
    file = tmp_path / "part"
    with report_growth(tmp_path, "downloading", 100, lambda *args: seen.append(args)):
        for size in (80, 10, 40):
            file.write_bytes(bytes(size))
            time.sleep(0.3)
    done = [count for _, count, _ in seen]
    assert done == sorted(done) and done[0] == 80 and done[-1] == 100


@pytest.mark.parametrize("given", [None, 5, b"name", ["name"], "a\0b"], ids=str)
def test_what_is_no_path_is_refused_wherever_a_file_is_named(model, given, tmp_path):
    receipt = model.generate([1, 2], max_tokens=2).receipt()
    uses = (
        model.load_prefix, lambda path: model.save_prefix([1, 2], path), receipt.write,
        receipt.sign, cortiq.Receipt.read, Tokenizer.from_folder,
    )  # fmt: skip
    for use in uses:
        with pytest.raises(RequestError, match=r"the name of a file|no file can be named"):
            use(given)
    if given is not None:
        with pytest.raises(
            RequestError, match=r"key: (expected the name of a file|no file can be named)"
        ):
            cortiq.verify(receipt, model, key=given)


@pytest.mark.parametrize(
    ("argument", "wanted"),
    [("on_text", "a function"), ("progress", "a function"), ("masks", "a function"),
     ("cancel", "an event")],
)  # fmt: skip
def test_what_cannot_be_called_or_set_is_refused_before_anything_is_computed(
    model, argument, wanted
):
    with pytest.raises(RequestError) as refused:
        model.generate([1, 2], max_tokens=2, **{argument: 5})
    assert refused.value.where == argument and "5" in refused.value.what
    assert wanted in refused.value.what or argument == "masks"
    assert len(model.generate([1, 2], max_tokens=2).token_ids) == 2


def test_tokenizer_refuses_what_is_no_text_and_no_ids(model):
    for text in (5, None, b"ab", ["ab"]):
        with pytest.raises(TokenizerError, match="a text is wanted"):
            model.tokenizer.encode(text)
    for ids in ("a", 5, None, [1.5], [None], [[1]]):
        with pytest.raises(TokenizerError, match="token ids are integers"):
            model.tokenizer.decode(ids)
    for use in (model.tokenizer.token_bytes, model.tokenizer.is_special):
        for token in ("a", None, [1]):
            with pytest.raises(TokenizerError, match="token ids are integers"):
                use(token)
    with pytest.raises(TokenizerError, match="a text is wanted"):
        model.tokenizer.token_id([1])
    ids = model.tokenizer.encode("words", add_bos=False)
    assert model.tokenizer.decode(np.array(ids)) == model.tokenizer.decode(ids) == "words"


def test_engine_refuses_what_is_no_request(model):
    with Engine(model.executable, model.tokenizer) as engine:
        for given in ("x", None, [1, 2]):
            with pytest.raises(RequestError, match="a request is wanted"):
                engine.submit(given)
        request = make_request([1], GenerateOptions(seed=0), model.program, ())
        for name in ("priority", "stats", "speculation", "progress", "cancelled"):
            with pytest.raises(RequestError, match=f"{name}: expected an? .*, not 'x'"):
                engine.submit(request, **{name: "x"})
        assert engine.idle
    with pytest.raises(
        RequestError, match="options: expected an instance of EngineOptions, not 'x'"
    ):
        Engine(model.executable, model.tokenizer, options="x")


@pytest.mark.parametrize("draft", ["off", "lookup"])
def test_mask_of_another_vocabulary_is_the_callers_mistake(model, draft):
    size = -(-model.logits([1]).shape[-1] // 8)
    for mask, says in (
        (b"\xff", f"a mask of 1 bytes, .* tokens take {size}"),
        (bytearray(b"\xff" * size), "a mask is bytes, not bytearray"),
        (bytes(size), "a mask that allows none"),
    ):
        with pytest.raises(RequestError, match=says) as refused:
            model.generate([1, 2, 1, 2], max_tokens=4, draft=draft, masks=lambda ids: mask)  # noqa: B023
        assert refused.value.where == "masks"


def test_the_engine_package_exports_what_serves_requests():
    import cortiq.engine

    listed = {name for names in cortiq.engine._MODULES.values() for name in names}
    assert listed == set(cortiq.engine.__all__) <= set(dir(cortiq.engine))
    for name in cortiq.engine.__all__:
        assert getattr(cortiq.engine, name).__name__ == name
    with pytest.raises(AttributeError, match="Nothing"):
        _ = cortiq.engine.Nothing
