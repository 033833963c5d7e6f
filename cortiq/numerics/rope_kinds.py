"""Kinds of scaled rotary frequencies, as configurations name them; `rope_scaling` computes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from cortiq.domains import Count


@dataclass(frozen=True)
class Default:
    """Unscaled: f_i = base^(−2i/dim)."""


@dataclass(frozen=True)
class Linear:
    """f_i / factor, for every i."""

    factor: float


@dataclass(frozen=True)
class Llama3:
    """Long waves are stretched by `factor`, short ones kept, those between blended.

    With w = 2π/f: w > original/low: f/factor; w < original/high: f; otherwise
    s = (original/w − low)/(high − low) and (1 − s)·f/factor + s·f.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int


@dataclass(frozen=True)
class Yarn:
    """Interpolation below a ramp of dimensions, extrapolation above, and an amplitude.

    d(β) = dim·ln(original/(2πβ))/(2·ln base); the ramp runs from low = max(d(beta_fast), 0) to
    high = min(d(beta_slow), dim − 1), floored and ceiled first when `truncate` is set; equal ends
    are moved 0.001 apart. ramp_i = clamp((i − low)/(high − low), 0, 1);
    f·(1 − ramp) + f/factor·ramp. Amplitude: `attention_factor`, or m(mscale)/m(mscale_all_dim)
    when both are given and not 0, or m(1); m(t) = 0.1·t·ln(factor) + 1, and 1 for factor ≤ 1.
    """

    factor: float
    original_context: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True


@dataclass(frozen=True)
class LongRope:
    """f_i / factors[i], with the long list if the declared context exceeds the original one.

    The choice is made once, at load, never by the length so far. Amplitude: `attention_factor`, or
    √(1 + ln(factor)/ln(original)), 1 for factor ≤ 1; `factor` defaults to declared/original.
    """

    short_factors: tuple[float, ...]
    long_factors: tuple[float, ...]
    original_context: int
    declared_context: int
    factor: float | None = None
    attention_factor: float | None = None

    @property
    def takes_long(self) -> bool:
        """Whether the long list was chosen."""
        return self.declared_context > self.original_context


@dataclass(frozen=True)
class Proportional:
    """Partial rotation over the whole width: the first ⌊partial·dim/2⌋ pairs turn by f/factor.

    The other pairs have frequency 0: they take part in the pairing but are not turned (Gemma 4).
    """

    partial_rotary_factor: float
    factor: float = 1.0


@dataclass(frozen=True)
class FrequencyFactors:
    """f_i / factors[i]: a GGUF file's `rope_freqs.weight`."""

    factors: tuple[float, ...]


@dataclass(frozen=True)
class NTKAlpha:
    """f_i of the base base·alpha^(dim/(dim−2)): the same for every length (HunYuan)."""

    alpha: float


@dataclass(frozen=True)
class Axial:
    """f_i of dim/axes dimensions, i < dim/(2·axes), over again for each axis (Qwen2-VL's tower)."""

    axes: Count


@dataclass(frozen=True)
class Staggered:
    """f_i of all dimensions, dealt to the axes in turns: axis a has i = a, a + axes, … one after
    the other (Pixtral's tower).
    """

    axes: Count


Plain: TypeAlias = (
    Default | Linear | Llama3 | Yarn | LongRope | Proportional | FrequencyFactors | NTKAlpha
    | Axial | Staggered
)  # fmt: skip


@dataclass(frozen=True)
class Learned:
    """f_i·e^logarithms[i] of another scaling, whose amplitude it has (Mistral Large 4)."""

    inner: Plain
    logarithms: tuple[float, ...]


Constant: TypeAlias = Plain | Learned


@dataclass(frozen=True)
class Growth:
    """A scaling of one amplitude that grows by steps, times 1 + beta·ln(1 + ⌊(p + ahead)/every⌋).

    A table of queries. Source: Llama 4's attention temperature, ahead by 1."""

    inner: Constant
    beta: float
    every: int
    ahead: int = 0


Scaling: TypeAlias = Constant | Growth
