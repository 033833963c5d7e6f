"""Shares of ranks: units, heads, layers; uneven ones too."""

from __future__ import annotations

import pytest

from cortiq.errors import DeviceMemoryError, OptionError
from cortiq.model.source import open_source
from cortiq.options import LoadOptions
from cortiq.ranks.backend import DeviceSplit
from cortiq.ranks.layer_split import cuts_at, even_segments, segments
from cortiq.ranks.shares import Split, divided, refined
from cortiq.ranks.start import device_count, launched


def owned_indices(split: Split, ranks: int) -> list[int]:
    owned = (one for rank in range(ranks) for _, one in split.owned(rank))
    return [index for start, stop in owned for index in range(start, stop)]


@pytest.mark.parametrize("units", [1, 2, 3, 5, 8, 96, 320, 4096])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7])
def test_every_unit_has_one_owner(units: int, ranks: int) -> None:
    """Ranges are never empty, and what ranks own adds up to the whole, in order."""
    split = Split(0, units, (divided(units, ranks),))
    ranges = [split.only(rank) for rank in range(ranks)]
    assert all(start < stop for start, stop in ranges)
    owned = owned_indices(split, ranks)
    assert owned == list(range(units))
    if units >= ranks:
        sizes = [stop - start for start, stop in ranges]
        assert max(sizes) - min(sizes) <= 32


@pytest.mark.parametrize(
    ("heads", "kv_heads", "ranks"),
    [(4, 2, 2), (4, 2, 3), (4, 2, 4), (6, 3, 2), (6, 2, 4), (8, 1, 3), (2, 2, 5), (32, 8, 3)],
)
def test_heads_of_queries_find_their_keys(heads: int, kv_heads: int, ranks: int) -> None:
    """A rank's query heads see the key heads that it has, in groups of one size."""
    keys = divided(kv_heads, ranks)
    queries = refined(keys, heads // kv_heads)
    each = heads // kv_heads
    for (q_start, q_stop), (k_start, k_stop) in zip(queries, keys, strict=True):
        assert (q_stop - q_start) % (k_stop - k_start) == 0
        local = (q_stop - q_start) // (k_stop - k_start)
        for head in range(q_start, q_stop):
            assert head // each == k_start + (head - q_start) // local
    assert owned_indices(Split(0, heads, (queries,)), ranks) == list(range(heads))


def test_layers_are_divided_evenly_or_by_budget() -> None:
    """⌈L/n⌉ layers each; where that does not fit, each device is filled in turn."""
    assert even_segments(28, 3) == [10, 10, 8]
    assert even_segments(5, 4) == [2, 2, 1]
    assert segments([10.0] * 6, [100, 100, 100]) == [2, 2, 2]
    assert segments([10.0] * 6, [15, 100, 100]) == [1, 5, 0]
    assert segments([50.0, 10, 10, 10], [45, 60, 60]) == [0, 2, 2]
    with pytest.raises(DeviceMemoryError, match="layer 4 of 6 does not fit"):
        segments([10.0] * 6, [20, 25])


def test_explicit_points() -> None:
    """Points are ascending layers, one between each two devices."""
    program = open_source("synthetic:tiny-llama", LoadOptions()).program
    assert cuts_at(program, (1, 2), 3) == ["layers.1", "layers.2"]
    for points, parts in (((1,), 3), ((2, 1), 3), ((0, 1), 3), ((1, 3), 3)):
        with pytest.raises(OptionError, match="ascending numbers from 1 to 2"):
            cuts_at(program, points, parts)
    with pytest.raises(OptionError, match="needs a layer split"):
        DeviceSplit.of("tensor", 2, (1,))
    assert DeviceSplit.of("auto", 4, (), 2).stages == ((0, 1), (2, 3))
    with pytest.raises(OptionError, match="3 hosts do not divide 4"):
        DeviceSplit.of("auto", 4, (), 3)


def test_what_torchrun_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of devices is torchrun's; another one is refused."""
    assert launched({}) is None
    given = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    found = launched({**given, "LOCAL_WORLD_SIZE": "2"})
    assert found is not None
    assert (found.rank, found.size, found.hosts) == (1, 4, 2)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert device_count(0) == device_count(4) == 4
    with pytest.raises(OptionError, match="torchrun started 4 ranks"):
        device_count(2)
