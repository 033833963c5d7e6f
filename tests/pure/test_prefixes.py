"""Prefixes that are found again: by ids and never by hash alone, and without changing a token."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from engines import (
    TOKENIZER,
    WAYS,
    alone,
    backends,
    engine,
    executable,
    facts,
    loaded,
    prompt,
    request,
)
from graphs import examples
from hypothesis import given
from hypothesis import strategies as st
from sequences import feed
from small_program import bound

import cortiq
from cortiq.backend import CompileOptions
from cortiq.engine import prefix_key as keys
from cortiq.engine.cache_roles import CachePoint, CacheRole
from cortiq.engine.default_cache_points import default_cache_points
from cortiq.engine.prefix_key import RollingKey, fold
from cortiq.engine.prefixes import PrefixCache
from cortiq.engine.radix_tree import RadixTree, common_prefix_length
from cortiq.errors import RequestError
from cortiq.ir import Builder
from cortiq.ir.layers import Embedding, Linear, RMSNorm, ShortConv

EVERYWHERE = [(backend, model) for backend in backends() for model in ("tiny-llama", "tiny-lfm2")]
FEW = st.lists(st.integers(0, 2), max_size=7)


def shared(a, b):
    """Longest common prefix, by definition."""
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(map(len, (a, b)))
    )


@examples(200)
@given(FEW, FEW, st.integers(0, 1200))
def test_common_prefix(a, b, same):
    head = list(range(same))
    assert common_prefix_length([*head, *a], (*head, *b)) == same + shared(a, b)
    changed = [*head, *a]
    if same:
        changed[same // 2] = -1
        assert common_prefix_length(changed, [*head, *b]) == same // 2


@examples(300)
@given(st.lists(st.tuples(FEW.filter(bool), st.booleans()), max_size=30), FEW)
def test_tree_finds_what_comparing_everything_finds(moves, wanted):
    tree, known, nodes = RadixTree(), {}, {}
    for number, (ids, remove) in enumerate(moves):
        if remove and tuple(ids) in known:
            del known[tuple(ids)]
            tree.remove(nodes.pop(tuple(ids)))
        else:
            known[tuple(ids)], nodes[tuple(ids)] = number, tree.insert(ids, number)
    whole, node, length = tree.match(wanted)
    prefixes = [k for k in known if list(k) == wanted[: len(k)]]
    assert [n.value for n in whole] == [known[k] for k in sorted(prefixes, key=len)]
    assert length == max((shared(k, wanted) for k in known), default=0)
    assert {n.value for n in node.below()} == {
        v for k, v in known.items() if shared(k, wanted) == length
    }
    if not known:
        assert not tree.root.children


def test_rolling_key_of_the_specification():
    assert fold([]) == keys.START
    assert fold([1, 2, 3]) == 0x6DA0EEA95F45479E
    assert fold(range(200)) == 0x9707B561957F791
    key = RollingKey.of(list(range(150))).extended(list(range(150, 200)))
    assert key == RollingKey.of(list(range(200)))
    assert (key.length, len(key.tail), key.tail[0]) == (200, 128, 72)
    ids = list(range(220))
    assert key.extension(ids) == 200
    assert key.extension(ids[:200]) == key.extension(ids[:100]) == 0
    assert key.extension([*ids[:199], 0, *ids[200:]]) == 0
    assert key.extension([7, *ids[1:]]) == 0
    assert RollingKey().extension(ids) == 0


def test_equal_hash_is_not_believed(monkeypatch):
    """With a hash that is always the same, other ids in the tail are still told apart."""
    monkeypatch.setattr(keys, "fold", lambda ids, start=0: 7)
    key = RollingKey.of([1, 2, 3])
    assert key.extension([1, 2, 3, 4]) == 3
    assert key.extension([1, 5, 3, 4]) == 0


def conversation(seed, turns):
    """Prompts of a chat: each goes on from the last, sometimes from its middle, or begins anew."""
    chance = random.Random(seed)
    ids, found = prompt(seed, 30), []
    for turn in range(turns):
        way = chance.random()
        ids = ids[: chance.randrange(12, len(ids))] if way < 0.4 else ids
        ids = prompt(chance.randrange(9), 30) if way > 0.9 else ids
        ids = [*ids, *prompt(100 + turn, chance.randrange(1, 20))]
        found.append(list(ids))
    return found


def points_of(ids):
    return CachePoint(12, CacheRole.SYSTEM), CachePoint(len(ids) // 2, CacheRole.TURN)


@pytest.mark.parametrize(("backend", "model"), EVERYWHERE)
def test_reuse_on_is_reuse_off(backend, model):
    on, reused = executable(backend, model), 0
    ways = list(WAYS.values())
    with_ways = [
        request(ids, 8, chunk_rows=16, cache_points=points_of(ids), **ways[i % 3])
        for i, ids in enumerate(conversation(5, 12))
    ]
    expected = [alone(on, one) for one in with_ways]
    for count in (1, 3, 20) if backend == "cpu" else (3,):
        cache = PrefixCache(on, count)
        with engine(on, prefixes=cache) as mine:
            made = []
            for index, one in enumerate(with_ways):
                made.append(mine.submit(one))
                if index % 3:
                    mine.run()
            mine.run()
        assert [facts(one) for one in made] == expected
        reused += sum(one.stats.reused_tokens for one in made)
        assert len(cache) <= count
        cache.clear()
    assert reused > 150


def test_prompt_reuses_exactly_the_longest_common_prefix():
    on = executable()
    cache = PrefixCache(on, 20)
    with engine(on, prefixes=cache) as mine:
        fed = []
        for ids in conversation(6, 15):
            made = mine.submit(request(ids, 3))
            mine.run()
            longest = min(max((shared(ids, old) for old in fed), default=0), len(ids) - 1)
            assert made.stats.reused_tokens == (longest if longest >= 8 else 0)
            fed.append(made.ids[:-1])
    cache.clear()


def test_running_sequences_share_their_prompt():
    on = executable()
    ids = prompt(4, 100)
    cache = PrefixCache(on, 4)
    with engine(on, prefixes=cache) as mine:
        first = mine.submit(request(ids, 30))
        mine.step()
        others = [mine.submit(request(ids, 30, temperature=1.0, choice=i)) for i in range(1, 4)]
        mine.run()
    assert [one.stats.reused_tokens for one in others] == [99] * 3
    assert all(facts(one) == alone(on, one.request) for one in (first, *others))
    assert len({facts(one) for one in others}) == 3
    cache.clear()


def test_states_are_given_up_by_role_then_by_use_and_it_is_said():
    on = executable()
    cache = PrefixCache(on, 3)

    def put(seed, role):
        kept = on.open(512)
        feed(on, kept, prompt(seed, 20), ())
        return cache.put(prompt(seed, 20), kept, role)

    roles = [
        CacheRole.SYSTEM,
        CacheRole.BRANCH,
        CacheRole.TURN,
        CacheRole.TURN,
        CacheRole.TURN,
        CacheRole.THINKING,
    ]
    assert [put(i, role) for i, role in enumerate(roles)] == [0, 0, 0, 1, 1, 1]
    there = [i for i in range(6) if cache.has(prompt(i, 20))]
    assert there == [0, 3, 4]
    assert cache.evicted == 3
    with engine(on, prefixes=cache) as mine:
        made = mine.submit(request(prompt(50, 30), 2))
        mine.run()
    assert made.stats.evicted == 1
    size = on.state_bytes(20)
    cache.clear()
    cache.nbytes = 2 * size
    assert [put(i, CacheRole.TURN) for i in range(4)] == [0, 0, 1, 1]
    cache.clear()


def test_kept_states_make_room_for_requests():
    free = executable(memory_limit=4 * executable().state_bytes(64) + 1000)
    cache = PrefixCache(free, 10)
    with engine(free, prefixes=cache) as mine:
        for seed in range(4):
            mine.submit(request(prompt(seed, 40), 5))
            mine.run()
        made = mine.submit(request(prompt(9, 100), 120))
        mine.run()
        assert facts(made) == alone(executable(), made.request)
        assert made.stats.evicted == cache.evicted > 0
    cache.clear()
    assert free.free_bytes() == 4 * free.state_bytes(64) + 1000


def embeddings(ids, name="tiny-llama"):
    """The rows that the model's own table has for these ids."""
    from cortiq.numerics.dequantise import embedding_rows

    model = loaded(name)
    (name,) = [n for n in model.weights if "embed_tokens" in n]
    return np.ascontiguousarray(embedding_rows(model.weights[name], np.array(ids, np.int32)))


@pytest.mark.parametrize("backend", backends())
def test_embedding_prompts_never_meet_kept_prefixes(backend):
    on = executable(backend)
    cache = PrefixCache(on, 10)
    a, b = prompt(1, 40), prompt(2, 40)
    with engine(on, prefixes=cache) as mine:
        first = mine.submit(request(a, 4))
        mine.run()
        foreign = mine.submit(request(a, 6, embeddings=embeddings(b)))
        mine.run()
        after = mine.submit(request([*a, 7], 6))
        mine.run()
    source = alone(on, request(b, 6))
    assert facts(foreign) == source != alone(on, request(a, 6))
    assert foreign.stats.reused_tokens == 0
    assert facts(after) == alone(on, request([*a, 7], 6))
    assert facts(first) == alone(on, request(a, 4))
    cache.clear()


@pytest.mark.parametrize("first", ["ended", "running"])
@pytest.mark.parametrize("model", ["tiny-llama", "tiny-lfm2"])
def test_t35_embedding_prompts_are_no_prefix_of_anybody_and_have_none(model, first):
    """Either one first, whether it has ended, has a mark or still runs: nothing is reused."""
    on = executable(name=model)
    a, b = prompt(1, 40), prompt(2, 40)
    foreign = request(a, 6, embeddings=embeddings(b, model), cache_points=points_of(a))
    same_ids, longer = (request(ids, 6, cache_points=points_of(a)) for ids in (a, [*a, 7, 8, 9]))
    source = alone(on, request(b, 6))
    assert alone(on, foreign) == source != alone(on, same_ids)
    for before, after in ((foreign, same_ids), (foreign, longer), (longer, foreign)):
        cache = PrefixCache(on, 10)
        with engine(on, prefixes=cache) as mine:
            earlier = mine.submit(before)
            mine.step()
            if first == "ended":
                mine.run()
                assert earlier.done and bool(len(cache)) is (before is longer)
            later = mine.submit(after)
            mine.run()
        assert later.stats.reused_tokens == 0
        for made in (earlier, later):
            assert facts(made) == (source if made.request is foreign else alone(on, made.request))
        cache.clear()


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-gemma3", "tiny-mimo"])
@pytest.mark.parametrize("backend", backends())
def test_embeddings_through_a_model_are_the_rows_they_are(backend, name):
    """Rows of a text give that text's bits whatever the labels say, with prefixes, drafted, in
    streams; of other rows they give others; and what the caller does to the array later is his.
    """
    with cortiq.load(f"synthetic:{name}", backend=backend, threads=1, context=128) as model:
        model.keep_prefixes(4)
        told = {"max_tokens": 6, "ignore_eos": True, "chunk_rows": 7}
        a, b = ([(k * i + 3) % 60 for i in range(20)] for k in (7, 11))
        rows, expected = model.token_embeddings(b), model.generate(b, **told)
        assert rows.dtype == np.float32 and rows.shape[0] == 20
        labelled = model.generate(a, **told)
        for draft in ("off", "lookup"):
            made = model.generate(a, embeddings=rows, draft=draft, **told)
            assert (made.token_ids, made.digest) == (expected.token_ids, expected.digest)
            assert made.digest != labelled.digest and made.stats.reused_tokens == 0
            assert made.prompt_ids == tuple(a)
        with pytest.raises(RequestError, match="embeddings or masks"):
            made.receipt()
        stream = model.stream(a, embeddings=rows, **told)
        kept, rows[:] = rows.copy(), 1.0
        "".join(stream)
        assert stream.generation.digest == expected.digest
        other = kept.copy()
        other[4] = kept[5]
        assert model.generate(a, embeddings=other, **told).digest != expected.digest
        assert model.generate(a, **told).digest == labelled.digest
        double = model.generate(a, embeddings=kept.astype(np.float64), **told)
        assert double.digest == expected.digest
        far = kept.astype(np.float64)
        far[0, 0] = 1e300
        for wrong, words in (
            (kept[:-1], "19, "), (kept[:, :-1], "the embeddings are"), (kept.tolist(), "an array"),
            (kept.astype(int), "an array"), (far, "not finite"), ("hello", "an array"),
        ):  # fmt: skip
            with pytest.raises(RequestError, match=words):
                model.stream(a, embeddings=wrong, **told)
        with pytest.raises(RequestError, match="the prompt is empty"):
            model.token_embeddings([])


def test_embeddings_that_fit_no_prompt_are_refused():
    rows = embeddings(prompt(1, 40))
    broken = rows.copy()
    broken[3, 5] = np.nan
    with engine(executable()) as mine:
        for wrong, message in ((rows[:39], "39, 64"), (rows[:, :9], "40, 9"), (broken, "finite")):
            with pytest.raises(RequestError, match=message):
                mine.submit(request(prompt(1, 40), 4, embeddings=wrong))


def chat_prompt(turns):
    """Ids of a conversation in which 256 opens a message and 257 ends it."""
    system, said = [1, 2, 3] * 8, [[7 + i] * 12 for i in range(turns)]
    ids = [256, *system, 257]
    for user in said[:-1]:
        ids += [256, *user, 257, 256, 9, *prompt(user[0], 6), 257]
    return [*ids, 256, *said[-1], 257, 256, 9]


@pytest.mark.parametrize("backend", backends())
def test_conversations_of_models_that_cannot_go_back_go_on_from_their_marks(backend):
    """The answer is rendered anew in the next turn: the state before it is what can be used."""
    on = executable(backend, "tiny-lfm2")
    cache = PrefixCache(on, 8)
    reused = []
    with engine(on, prefixes=cache) as mine:
        for turns in (1, 2, 3):
            made = mine.submit(request(chat_prompt(turns), 70 if backend == "cpu" else 3))
            mine.run()
            assert facts(made) == alone(on, made.request)
            reused.append(made.stats.reused_tokens)
        other = mine.submit(request([*chat_prompt(1)[:26], 256, 50, 51, 52], 3))
        mine.run()
    back = 2 if backend == "cpu" else 0  # the reference's rings keep every row
    assert reused == [0, *(len(chat_prompt(turns)) - back for turns in (1, 2))]
    assert other.stats.reused_tokens == 27
    assert facts(other) == alone(on, other.request)
    cache.clear()


def test_marks_are_the_system_prompt_and_the_answer():
    assert default_cache_points((1, 2, 3), TOKENIZER) == ()
    assert default_cache_points((256, 5, 257, 256, 6, 257, 256, 9), TOKENIZER) == (
        CachePoint(3, CacheRole.SYSTEM), CachePoint(6, CacheRole.TURN),
    )  # fmt: skip
    assert default_cache_points((256, 1, 5, 257), TOKENIZER) == (CachePoint(3, CacheRole.TURN),)


def bounded_program():
    """A model whose state is rings only: it has a constant size."""
    b = Builder(context=256, facts={"vocab_size": 50})
    token = b.input("token")
    b.input("position")
    x = b.add(Embedding(50, 32), token, name="embed", weights={"table": "embed"})
    op = ShortConv(32, 3)
    weights = {role: f"conv.{role}" for role in op.weight_shapes()}
    x = b.add(op, x, name="conv", weights=weights, slots={"ring": "ring"})
    x = b.add(RMSNorm(32, 1e-6), x, name="hidden", weights={"weight": "norm"})
    b.add(Linear(32, 50), x, name="logits", weights={"weight": "embed"})
    b.graph("trunk", ("hidden", "logits"))
    return bound(b.program())


@pytest.mark.parametrize("backend", backends())
def test_models_of_bounded_state_are_known_by_their_rolling_key(backend):
    program, weights = bounded_program()
    on = backends()[backend]().compile(program, weights, CompileOptions(threads=1))
    cache = PrefixCache(on, 9)
    ids, reused = [i % 50 for i in range(0, 140, 7)], []
    with engine(on, prefixes=cache) as mine:
        for more in (1, 5, 30, 2):
            made = mine.submit(replace(request([1], 3), prompt=tuple(ids)))
            mine.run()
            assert facts(made) == alone(on, made.request)
            reused.append(made.stats.reused_tokens)
            ids = [*made.ids, *range(more)]
        diverging = mine.submit(replace(request([1], 3), prompt=(*ids[:9], 3, *ids[10:])))
        mine.run()
    assert reused == [0, 22, 26, 34]
    assert diverging.stats.reused_tokens == 0
    assert facts(diverging) == alone(on, diverging.request)
    assert cache.evicted == 0
    cache.clear()
    on.close()
