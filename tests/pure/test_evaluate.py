"""Evaluation suites get the same likelihoods and texts, item for item, on every backend."""

from __future__ import annotations

import json

import numpy as np
import pytest
from engines import backends

import cortiq
from cortiq.errors import RequestError
from cortiq.model.harness_requests import EvaluationModel, generation_options, rolling_windows

NAME = "synthetic:tiny-llama?seed=6"
PAIRS = [
    ("The sky is", " blue"), ("The sky is", " green, or so"), ("Two ", "words"), ("", "No context"),
    ("The sky is", " blue"),
]  # fmt: skip
ASKED = [
    ("One", {"until": ["\n"], "max_gen_toks": 6}),
    ("Two", {"until": ["\n"], "max_gen_toks": 6}),
    ("Three", {"do_sample": True, "temperature": 0.8, "max_gen_toks": 5}),
]


@pytest.fixture(scope="module")
def evaluated():
    with cortiq.load(NAME, backend="reference", context=128) as model:
        yield EvaluationModel(model, batch=2)


def logprob(model, ids, start):
    """ln p of `ids[start:]`, in float64, from the logits of the whole."""
    x = np.asarray(model.logits(ids[:-1])[start - 1 :], np.float64)
    x -= x.max(axis=-1, keepdims=True)
    x -= np.log(np.exp(x).sum(axis=-1, keepdims=True))
    return x[np.arange(len(ids) - start), ids[start:]].sum()


def test_a_likelihood_is_that_of_the_rest_of_the_whole_text(evaluated):
    counted = []
    found = evaluated.likelihoods(PAIRS, counted.append)
    model = evaluated.model
    for (context, continuation), one in zip(PAIRS, found, strict=True):
        whole = [*evaluated.pair_ids(context, continuation)[0]]
        start = len(whole)
        whole += evaluated.pair_ids(context, continuation)[1]
        assert one.logprob == pytest.approx(logprob(model, whole, start), rel=1e-6)
    assert found[0] == found[4] and sum(counted) == len(PAIRS) and len(counted) < len(PAIRS)


def test_spaces_at_the_end_of_a_context_belong_to_what_follows(evaluated):
    context, continuation = evaluated.pair_ids("Two ", "words")
    assert (context, continuation) == evaluated.pair_ids("Two", " words")
    assert context + continuation == evaluated.encode("Two words")


def test_what_is_too_long_loses_its_beginning(evaluated):
    text = "a long context, " * 20
    (one,) = evaluated.likelihoods([(text, " end")])
    context, continuation = evaluated.pair_ids(text, " end")
    kept = context[-(128 + 1 - len(continuation)) :]
    assert one == evaluated.model.likelihoods(kept, [continuation])[0]
    with pytest.raises(RequestError, match="longer context"):
        evaluated.likelihoods([("x", "y" * 200)])
    with pytest.raises(RequestError, match="no tokens"):
        evaluated.likelihoods([("x", "")])


def test_rolling_windows_are_those_of_the_harness():
    """The example in the documentation of `LM.loglikelihood_rolling`."""
    assert list(rolling_windows(range(10), -1, 4)) == [
        ([-1], [0, 1, 2, 3]),
        ([3], [4, 5, 6, 7]),
        ([5, 6, 7], [8, 9]),
    ]
    for count in range(1, 30):
        windows = list(rolling_windows(range(count), -1, 7))
        assert [target for _, targets in windows for target in targets] == list(range(count))
        assert all(len(context) + len(targets) - 1 <= 7 for context, targets in windows)


def test_a_long_text_is_the_sum_of_its_windows(evaluated):
    text = "some words that go on and on; " * 12
    ids = evaluated.model.tokenizer.encode(text, add_bos=False)
    assert len(ids) > 2 * 128
    expected = sum(
        logprob(evaluated.model, [*context, *targets], len(context))
        for context, targets in rolling_windows(ids, evaluated.prefix_id, 128)
    )
    assert evaluated.rolling(text) == pytest.approx(expected, rel=1e-6)


def test_texts_are_what_is_generated_alone(evaluated):
    counted, model = [], evaluated.model
    found = evaluated.texts(ASKED, counted.append)
    assert counted == [2, 1]
    greedy = [model.generate(text, max_tokens=6, stop=["\n"]).text for text in ("One", "Two")]
    sampled = model.generate("Three", max_tokens=5, temperature=0.8, seed=0).text
    assert found == [*greedy, sampled]


def test_arguments_of_tasks():
    assert generation_options({"until": "x", "max_tokens": 3, "temperature": 0.0}) == {
        "stop": ("x",), "max_tokens": 3, "temperature": 0.0,
    }  # fmt: skip
    sampled = generation_options({"do_sample": True, "top_p": 0.9})
    assert sampled == {"stop": (), "temperature": 1.0, "seed": 0, "top_p": 0.9}
    with pytest.raises(RequestError, match="num_beams"):
        generation_options({"num_beams": 4})


def test_every_backend_gives_the_same_item_for_item():
    found = {}
    for backend in backends():
        with cortiq.load(NAME, backend=backend, context=128) as model:
            it = EvaluationModel(model)
            found[backend] = it.likelihoods(PAIRS), it.rolling("a text " * 30), it.texts(ASKED)
    assert len(found) > 1 and all(one == found["reference"] for one in found.values())


@pytest.mark.slow
def test_the_harness_itself(tmp_path):
    """Tasks of the harness, from files, on two backends: every sample has equal scores, and they
    are those that the model gives without a harness.
    """
    pytest.importorskip("lm_eval", reason="needs the harness, which `make slow` installs")
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    from cortiq.lm_eval import CortiqLM

    rows = [{"q": f"Item {n} is", "a": [" good", " bad"], "gold": n % 2} for n in range(4)]
    (tmp_path / "rows.json").write_text("\n".join(map(json.dumps, rows)))
    common = (
        "dataset_path: json\ndataset_kwargs:\n  data_files:\n"
        f"    test: {tmp_path / 'rows.json'}\ntest_split: test\ndoc_to_text: '{{{{q}}}}'\n"
    )
    (tmp_path / "choice.yaml").write_text(
        f"task: choice\noutput_type: multiple_choice\n{common}"
        "doc_to_choice: '{{a}}'\ndoc_to_target: gold\nmetric_list:\n  - metric: acc\n"
    )
    (tmp_path / "free.yaml").write_text(
        f"task: free\noutput_type: generate_until\n{common}doc_to_target: good\n"
        "generation_kwargs:\n  until: ['.']\n  max_gen_toks: 5\n"
        "metric_list:\n  - metric: exact_match\n"
    )
    (tmp_path / "whole.yaml").write_text(
        f"task: whole\noutput_type: loglikelihood_rolling\n{common}doc_to_target: '{{{{q}}}}'\n"
        "metric_list:\n  - metric: word_perplexity\n"
    )
    names = ["choice", "free", "whole"]
    tasks, samples = TaskManager(include_path=str(tmp_path), include_defaults=False), []
    for backend in ("reference", "cpu"):
        model = CortiqLM(NAME, backend=backend, context=128)
        made = simple_evaluate(
            model, tasks=names, task_manager=tasks, log_samples=True, verbosity="ERROR"
        )
        samples.append([[s["resps"] for s in made["samples"][name]] for name in names])
        own = model.evaluated
        pairs = [(row["q"], f" {end}") for row in rows for end in row["a"]]
        scored = [(one.logprob, one.greedy) for one in own.likelihoods(pairs)]
        rolled = [own.rolling(row["q"]) for row in rows]
        model.loaded.close()
        assert made["config"]["model_hash"] == model.get_model_info()["model_hash"]
    assert samples[0] == samples[1]
    choice, free, whole = samples[0]
    assert len(choice) == len(free) == len(whole) == len(rows)
    assert all(isinstance(text, str) for text in _flat(free))
    assert sorted(_flat(whole)) == sorted(rolled)
    assert sorted(n for n in _flat(choice) if not isinstance(n, bool)) == sorted(
        logprob for logprob, _ in scored
    )


def _flat(nested):
    """Every value of lists in lists."""
    if isinstance(nested, (list, tuple)):
        return [value for part in nested for value in _flat(part)]
    return [nested]
