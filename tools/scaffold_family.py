"""Write the beginnings of a family and of its test from a configuration class of transformers.

    python tools/scaffold_family.py Jais2Config

prints two texts: `Config` of a module of `cortiq.models`, with the fields, types and defaults that
transformers has, and a `Family` for a module `tests/model/families_*.py`: every switch turned,
every number moved a little, every size small. What a person has to decide says so. docs/families.md
leads through the rest.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import transformers

from cortiq.models.config import ROPE_KEYS
from cortiq.models.config_notes import is_note

GIVEN = frozenset({
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "max_position_embeddings", "tie_word_embeddings",
})  # fmt: skip
"""Fields of `BaseConfig`, which the harness gives every family."""
SMALL = {"sliding_window": 9, "num_experts_per_tok": 2}
"""Sizes that have a usual small number."""
FEW = 4
"""Any other size."""
TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id")
"""Ids that the tests' small vocabulary may not have; transformers wants them to exist."""
NUDGE, EPS, MOVED_EPS = 1.05, 0.02, 0.021
"""What a number is multiplied by, and an eps that can be seen, with its neighbour."""
SIMPLE = (bool, int, float, str)


@dataclasses.dataclass(frozen=True)
class Option:
    """A field of the configuration: its type as written, and its default."""

    name: str
    kind: str
    default: Any

    @property
    def is_eps(self) -> bool:
        """Whether it is the eps of a norm."""
        return self.name.endswith(("eps", "epsilon"))


def options_of(config: type) -> list[Option]:
    """Return the fields of a configuration that may change the graph, but for the common ones."""
    own = {f.name for f in dataclasses.fields(transformers.PreTrainedConfig)}
    found = []
    for field in dataclasses.fields(config):
        skipped = field.name in own | GIVEN | ROPE_KEYS or is_note(field.name)
        if not skipped and not field.name.startswith("_"):
            kind = (
                field.type if isinstance(field.type, str) else getattr(field.type, "__name__", "")
            )
            found.append(Option(field.name, str(kind or field.type), field.default))
    return found


def config_text(name: str, config: type) -> str:
    """Return the beginning of the family's `Config`."""
    lines = ["@dataclass(frozen=True, kw_only=True)", "class Config(BaseConfig):"]
    lines.append(f'    """Fields of `{name}`."""\n')
    defaults = {f.name: f.default for f in dataclasses.fields(config)}
    for key in ("max_position_embeddings", "tie_word_embeddings"):
        if key in defaults:
            lines.append(f"    {key}: {type(defaults[key]).__name__} = {defaults[key]!r}")
    for option in options_of(config):
        kind = type(option.default).__name__
        if isinstance(option.default, SIMPLE):
            lines.append(f"    {option.name}: {kind} = {option.default!r}")
        else:
            lines.append(f"    {option.name}: ... = {option.default!r}  # decide: {option.kind}")
    theta = getattr(config, "default_theta", None)
    if theta is not None:
        lines.append(f"    default_theta: ClassVar[float] = {theta!r}")
    return "\n".join(lines)


def family_text(name: str, config: type) -> str:
    """Return the declaration for `test_every_family.py`."""
    ids = {key: getattr(config, key, None) for key in TOKENS}
    large = any(isinstance(found, int) and found > FEW for found in ids.values())
    base: dict[str, Any] = {key: n for n, key in enumerate(TOKENS) if large and ids[key]}
    switches: dict[str, Any] = {"tie_word_embeddings": not config().tie_word_embeddings}
    moves: list[dict[str, Any]] = []
    sizes: list[str] = []
    decide: list[str] = []
    for option in options_of(config):
        key, value = option.name, option.default
        if isinstance(value, bool):
            switches[key] = not value
        elif isinstance(value, float) and option.is_eps:
            base |= {} if key == "rms_norm_eps" else {key: EPS}
            moves.append({key: MOVED_EPS})
        elif isinstance(value, float):
            moves.append({key: value * NUDGE or 0.5})
        elif isinstance(value, int):
            base[key] = SMALL.get(key, FEW)
            sizes.append(key)
        elif key in ("hidden_act", "hidden_activation"):
            moves.append({key: "relu"})
        else:
            decide.append(key)
    module = config.model_type  # type: ignore[attr-defined]
    lines = [f"{module.upper()} = Family(", f'    "{module}",', f'    "{name}",']
    lines += [f"    base={base!r},"] if base else []
    lines += [f"    switches={switches!r},", f"    moves={moves!r},"]
    lines += [f"    sizes={tuple(sizes)!r},"] if sizes else []
    lines += [f"    # decide: {key}" for key in decide]
    return "\n".join([*lines, ")"])


def main(argv: Sequence[str] | None = None) -> int:
    """Print both texts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("config", help="a configuration class of transformers, as LlamaConfig")
    name = parser.parse_args(argv).config
    config = getattr(transformers, name, None)
    if config is None:
        print(f"transformers {transformers.__version__} has no {name}", file=sys.stderr)
        return 2
    print(f"# cortiq/models/{config.model_type}.py\n{config_text(name, config)}\n")
    print(f"# tests/model/families_*.py\n{family_text(name, config)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
