"""Rotary frequencies and their scalings, in decimal arithmetic of 60 digits.

`decimal`'s ln, exp, sqrt and four operations are correctly rounded by specification, so these
numbers are the same on every machine. Every parameter is taken as the decimal literal `repr` gives,
that is, as a config file writes it. Formulas: `modeling_rope_utils.py` of transformers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, fields
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal, localcontext

from cortiq.errors import UnsupportedError
from cortiq.numerics.rope_kinds import Axial as Axial
from cortiq.numerics.rope_kinds import Constant as Constant
from cortiq.numerics.rope_kinds import Default as Default
from cortiq.numerics.rope_kinds import FrequencyFactors as FrequencyFactors
from cortiq.numerics.rope_kinds import Growth as Growth
from cortiq.numerics.rope_kinds import Learned as Learned
from cortiq.numerics.rope_kinds import Linear as Linear
from cortiq.numerics.rope_kinds import Llama3 as Llama3
from cortiq.numerics.rope_kinds import LongRope as LongRope
from cortiq.numerics.rope_kinds import NTKAlpha as NTKAlpha
from cortiq.numerics.rope_kinds import Proportional as Proportional
from cortiq.numerics.rope_kinds import Scaling as Scaling
from cortiq.numerics.rope_kinds import Staggered as Staggered
from cortiq.numerics.rope_kinds import Yarn as Yarn

PRECISION = Context(prec=60, rounding=ROUND_HALF_EVEN)
PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640629")


KINDS: dict[str, type] = {
    "default": Default,
    "linear": Linear,
    "llama3": Llama3,
    "yarn": Yarn,
    "longrope": LongRope,
    "proportional": Proportional,
    "frequency_factors": FrequencyFactors,
    "ntk_alpha": NTKAlpha,
}


def scaling_of(kind: str, parameters: Mapping[str, object]) -> Scaling:
    """Return the scaling called `kind`, with the fields of its class as parameters.

    Raises
    ------
    UnsupportedError : unknown kind, a parameter that is missing or unknown, or "dynamic".
    """
    where = "rope scaling"
    if kind == "dynamic":
        what = "dynamic NTK scaling recomputes every frequency from the length of the sequence"
        hint = "a row's bits may not depend on later rows: use a file with fixed scaling (yarn)"
        raise UnsupportedError(what, where=where, hint=hint)
    if kind not in KINDS:
        hint = f"supported: {', '.join(KINDS)}"
        raise UnsupportedError(f"no scaling is called {kind!r}", where=where, hint=hint)
    known = {field.name: field.default for field in fields(KINDS[kind])}
    wrong = sorted(set(parameters) - set(known))
    wrong += [name for name, default in known.items() if default is MISSING]
    wrong = [name for name in wrong if name not in known or name not in parameters]
    if wrong:
        what = f"{kind} has unknown or missing parameters: {', '.join(wrong)}"
        raise UnsupportedError(what, where=where, hint=f"it takes: {', '.join(known) or 'none'}")
    return KINDS[kind](**parameters)


def exact(value: float) -> Decimal:
    """Return the decimal literal that a config file would write for this number."""
    return Decimal(repr(float(value)))


def inverse_powers(base: float, dim: int) -> list[Decimal]:
    """Return base^(−2i/dim) for i < dim/2, as exp(−(2i/dim)·ln base)."""
    log_base = exact(base).ln()
    return [(-(Decimal(2 * i) / dim) * log_base).exp() for i in range(dim // 2)]


def of_each_pair(values: tuple[float, ...], pairs: int) -> list[Decimal]:
    """Return one value a pair; UnsupportedError where there are more or fewer."""
    if len(values) != pairs:
        what = f"{len(values)} frequency factors for {pairs} rotary pairs"
        raise UnsupportedError(what, where="rope scaling")
    return [exact(value) for value in values]


def divided(powers: list[Decimal], factors: tuple[float, ...]) -> list[Decimal]:
    """Divide each frequency by a factor of its own; the list must have one factor a pair."""
    divisors = of_each_pair(factors, len(powers))
    return [f / factor for f, factor in zip(powers, divisors, strict=True)]


def llama3(powers: list[Decimal], scaling: Llama3) -> list[Decimal]:
    """Return the frequencies of `Llama3`."""
    factor, low, high = map(
        exact, (scaling.factor, scaling.low_freq_factor, scaling.high_freq_factor)
    )

    def scaled(f: Decimal) -> Decimal:
        turns = scaling.original_context * f / (2 * PI)
        if turns < low:
            return f / factor
        if turns > high:
            return f
        smooth = (turns - low) / (high - low)
        return (1 - smooth) * f / factor + smooth * f

    return [scaled(f) for f in powers]


def yarn_ramp(base: float, dim: int, scaling: Yarn) -> list[Decimal]:
    """Return the share of interpolation of each pair, see `Yarn`."""

    def dimension(rotations: float) -> Decimal:
        waves = Decimal(scaling.original_context) / (exact(rotations) * 2 * PI)
        return dim * waves.ln() / (2 * exact(base).ln())

    low, high = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
    if scaling.truncate:
        low, high = low.to_integral_value(ROUND_FLOOR), high.to_integral_value(ROUND_CEILING)
    low, high = max(low, Decimal(0)), min(high, Decimal(dim - 1))
    if low == high:
        high += Decimal("0.001")
    ramp = [(i - low) / (high - low) for i in range(dim // 2)]
    return [min(max(share, Decimal(0)), Decimal(1)) for share in ramp]


def frequencies(base: float, dim: int, scaling: Scaling) -> list[Decimal]:
    """Return radians a position, for each of the dim/2 pairs, to 60 digits.

    Raises
    ------
    UnsupportedError : the parameters have no meaning (a factor of 0, no ramp, a missing list).
    """
    with _meaningful(f"frequencies follow from base {base}, {dim} dimensions and {scaling}"):
        return _frequencies(base, dim, scaling)


@contextmanager
def _meaningful(what: str) -> Iterator[None]:
    """Compute in 60 digits; raise `UnsupportedError` for parameters without a meaning."""
    try:
        with localcontext(PRECISION):
            yield
    except ArithmeticError as error:
        raise UnsupportedError(f"no {what}", where="rope scaling") from error


def _frequencies(base: float, dim: int, scaling: Scaling) -> list[Decimal]:
    powers = inverse_powers(base, dim)
    match scaling:
        case Linear(factor):
            return [f / exact(factor) for f in powers]
        case Llama3():
            return llama3(powers, scaling)
        case Yarn(factor):
            ramp = yarn_ramp(base, dim, scaling)
            pairs = zip(powers, ramp, strict=True)
            return [f / exact(factor) * share + f * (1 - share) for f, share in pairs]
        case LongRope():
            chosen = scaling.long_factors if scaling.takes_long else scaling.short_factors
            return divided(powers, chosen)
        case Proportional(partial, factor):
            rotated = int(partial * dim // 2)
            turning = [f / exact(factor) for f in powers[:rotated]]
            return turning + [Decimal(0)] * (dim // 2 - rotated)
        case FrequencyFactors(factors):
            return divided(powers, factors)
        case Axial(axes) | Staggered(axes):
            if axes < 1 or dim % (2 * axes):
                what = f"{dim} rotary dimensions are not whole pairs of {axes} axes"
                raise UnsupportedError(what, where="rope scaling")
            if isinstance(scaling, Axial):
                return inverse_powers(base, dim // axes) * axes
            return [f for axis in range(axes) for f in powers[axis::axes]]
        case Growth(inner):
            return _frequencies(base, dim, inner)
        case Learned(inner, logarithms):
            known = _frequencies(base, dim, inner)
            logs = of_each_pair(logarithms, len(powers))
            return [f * log.exp() for f, log in zip(known, logs, strict=True)]
        case NTKAlpha(alpha):
            # (base·alpha^(dim/(dim−2)))^(−2i/dim) is base^(−2i/dim)·alpha^(−2i/(dim−2)).
            log_alpha = exact(alpha).ln()
            stretch = [(-(Decimal(2 * i) / (dim - 2)) * log_alpha).exp() for i in range(dim // 2)]
            return [f * s for f, s in zip(powers, stretch, strict=True)]
    return powers


def yarn_magnitude(factor: float, slope: float) -> Decimal:
    """Return m(slope) of `Yarn`."""
    if factor <= 1:
        return Decimal(1)
    return exact(0.1) * exact(slope) * exact(factor).ln() + 1


def amplitude(scaling: Scaling, step: int = 0) -> Decimal:
    """Return the factor of cos and sin to 60 digits, of `Growth` after `step` steps; 1 for most."""
    with _meaningful(f"amplitude follows from {scaling}"):
        if isinstance(scaling, Growth):
            return amplitude(scaling.inner) * (1 + exact(scaling.beta) * Decimal(1 + step).ln())
        if isinstance(scaling, Learned):
            return amplitude(scaling.inner)
        if isinstance(scaling, Yarn | LongRope) and scaling.attention_factor is not None:
            return exact(scaling.attention_factor)
        if isinstance(scaling, Yarn):
            if scaling.mscale and scaling.mscale_all_dim:
                top = yarn_magnitude(scaling.factor, scaling.mscale)
                return top / yarn_magnitude(scaling.factor, scaling.mscale_all_dim)
            return yarn_magnitude(scaling.factor, 1.0)
        if isinstance(scaling, LongRope):
            original = Decimal(scaling.original_context)
            given = scaling.factor
            factor = scaling.declared_context / original if given is None else exact(given)
            return (1 + factor.ln() / original.ln()).sqrt() if factor > 1 else Decimal(1)
        return Decimal(1)
