"""Models that see on several ranks: towers and texts have the bits of one process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")
pytest.importorskip("PIL")
pytest.importorskip("torch")

import numpy as np
import vision_folders
from vision_oracles import QWEN

import cortiq

SPLITS: dict[str, dict[str, Any]] = {
    "tensors": {},
    "layers": {"split": "layer"},
    "points": {"split": "layer", "split_at": (1, 2)},
    "experts": {"split": "expert"},
    "replicas": {"replicas": 3},
    "prompts apart": {"replicas": 3, "prefill_replicas": 1},
}
EXACT: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "max_tokens": 4}
QUICK = ("gemma3", "qwen2_vl")
"""Windows and soft tokens; positions of three axes. Towers of others are made of the same parts."""
OTHERS = ("idefics3", *(n for n in QWEN if n != "qwen2_vl"), "llava_next", "pixtral", "internvl")


def drawn(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, height]).integers(0, 256, (height, width, 3), np.uint8)


IMAGES = [drawn(24, 30), drawn(30, 20, 1)]
CONTENT = [
    {"type": "text", "text": "a"}, {"image": IMAGES[0]}, {"image": IMAGES[1]},
    {"type": "text", "text": "what?"},
]  # fmt: skip


@pytest.fixture(scope="module")
def held() -> Iterator[None]:
    """A model on three ranks: those loaded beside it take the ranks that it has started."""
    with cortiq.load("synthetic:tiny-llama", backend="cpu", threads=1, devices=3):
        yield


def answers(model: Any) -> list[str]:
    """Return digests: beside a text, in chunks that cut an image, drafted, of a cached prefix."""
    prompt = model.chat_prompt([{"role": "user", "content": CONTENT}])
    made = model.generate_many([prompt, "hello"], **EXACT)
    made.append(model.generate(prompt, chunk_rows=7, draft="lookup", **EXACT))
    model.keep_prefixes()
    made += [model.generate(prompt, **EXACT) for _ in range(2)]
    return [one.digest for one in made]


def assert_same_answers(folder: Path, splits: list[str]) -> None:
    common: dict[str, Any] = {"images": True, "backend": "cpu", "threads": 1}
    with cortiq.load(folder, **common) as alone:
        expected = answers(alone)
        assert expected[0] == expected[2] != expected[1]
        for split in splits:
            with cortiq.load(folder, devices=3, **SPLITS[split], **common) as model:
                assert answers(model) == expected, split
                prompt = model.image_prompt("look", IMAGES[:1])
                receipt = model.generate(prompt, **EXACT).receipt()
            assert alone.verify(receipt, images=IMAGES[:1]).identical, split


@pytest.mark.usefixtures("held")
@pytest.mark.parametrize("name", QUICK)
def test_images_on_three_ranks(name: str, tmp_path: Path) -> None:
    """Splits on three processes: 4 seconds of a processor for what only processes show."""
    getattr(vision_folders, name)(tmp_path)
    assert_same_answers(tmp_path, ["tensors", "layers"] if name in QWEN else ["tensors"])


@pytest.mark.slow
@pytest.mark.usefixtures("held")
@pytest.mark.parametrize("name", [*QUICK, *OTHERS])
def test_images_of_every_family_on_three_ranks(name: str, tmp_path: Path) -> None:
    getattr(vision_folders, name)(tmp_path)
    assert_same_answers(tmp_path, list(SPLITS))
