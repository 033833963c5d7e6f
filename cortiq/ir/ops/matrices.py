"""Primitives that meet a matrix: look-up, quantised rows, products, expert choice."""

from __future__ import annotations

from dataclasses import dataclass

from cortiq.domains import Count, Relation
from cortiq.ir.op import Op, Type, expect, expect_last
from cortiq.numerics.matmul import MAX_COLUMNS
from cortiq.numerics.route import Router


@dataclass(frozen=True)
class EmbedRows(Op):
    """Rows of a table [vocab, width] by their numbers (`numerics.dequantise.embedding_rows`).

    A number i32[] gives f32[width], numbers i32[n] f32[n, width]: the token, what a row supplies,
    or what `HashNGrams` makes of tokens. With `missing`, an id past the table gives a row of +0
    (the table knows a part of the vocabulary); without, such an id is refused.
    """

    vocab: Count
    width: Count
    missing: bool = False

    def options(self) -> frozenset[str]:
        """Return the option of missing rows, if it is used."""
        return frozenset({"missing"}) if self.missing else frozenset()

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Infer a row for each number."""
        (number,) = inputs
        fits = number.dtype == "i32" and len(number.shape) < 2
        expect(fits, f"EmbedRows takes a number or several, got {number}")
        return (Type((*number.shape, self.width)),)

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Declare the table."""
        return {"table": (self.vocab, self.width)}


@dataclass(frozen=True)
class Quantise(Op):
    """Rows to 16-bit integers and an exponent, over the last axis (`numerics.quantise_rows`)."""

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Infer f32[..., K] → q16[..., K]."""
        (x,) = inputs
        fits = x.dtype == "f32" and len(x.shape) > 0 and x.shape[-1] <= MAX_COLUMNS
        expect(fits, f"Quantise takes f32 rows of at most {MAX_COLUMNS} values, got {x}")
        return (Type(x.shape, "q16"),)


@dataclass(frozen=True)
class MatMul(Op):
    """x·Wᵀ with W [out, in], over the last axis (`numerics.matmul`).

    Integer codes multiply a q16 row (`matmul`); an `f32` weight an f32 row (`matmul_f32`).
    """

    in_width: Count
    out_width: Count

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Infer [..., in] → f32[..., out]."""
        (x,) = inputs
        expect_last(self, x, self.in_width, ("q16", "f32"))
        return (Type((*x.shape[:-1], self.out_width)),)

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Declare the matrix."""
        return {"weight": (self.out_width, self.in_width)}


@dataclass(frozen=True)
class HeadMatMul(Op):
    """Head h of x times its own matrix W[h] [out, in]: [heads, in] → f32[heads, out]."""

    heads: Count
    in_width: Count
    out_width: Count

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Infer one product per head."""
        (x,) = inputs
        expect_last(self, x, self.in_width, ("q16", "f32"))
        expect(x.shape == (self.heads, self.in_width), f"HeadMatMul: {self.heads} heads, got {x}")
        return (Type((self.heads, self.out_width)),)

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Declare a matrix a head."""
        return {"weight": (self.heads, self.out_width, self.in_width)}


@dataclass(frozen=True)
class ExpertMatMul(Op):
    """Products with the matrices of the chosen experts.

    x [in] (the same row for every expert) or [k, in] (a row each) and the expert indices i32[k]
    give f32[k, out].
    """

    experts: Count
    in_width: Count
    out_width: Count

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Infer one product per chosen expert."""
        x, index = inputs
        expect_last(self, x, self.in_width, ("q16", "f32"))
        expect(
            index.dtype == "i32" and len(index.shape) == 1,
            f"ExpertMatMul takes indices i32[k], got {index}",
        )
        expect(x.shape[:-1] in ((), index.shape), f"ExpertMatMul: {x} for {index.shape[0]} experts")
        return (Type((*index.shape, self.out_width)),)

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Declare a matrix an expert."""
        return {"weight": (self.experts, self.out_width, self.in_width)}


@dataclass(frozen=True)
class Route(Op):
    """Choose experts from router scores (`numerics.route.route`).

    f32[experts] → indices i32[top_k] in ascending order and weights f32[top_k]. An expert that
    the mask or τ leaves out has the weight +0.

    Parameters
    ----------
    selection_bias : a weight `bias` [experts] moves the choice, not the weights.
    masked : a weight `mask` [experts] admits the experts where it is not 0.
    """

    experts: Count
    router: Router
    selection_bias: bool = False
    masked: bool = False
    relations = (
        Relation(
            ("experts", "router"), "groups are equal and hold top_k experts",
            lambda op: not op.router.refusal(op.experts),
        ),
        Relation(
            ("router", "selection_bias"), "a sparse mixer chooses by its scores alone",
            lambda op: op.router.margin is None or not op.selection_bias,
        ),
    )  # fmt: skip

    def options(self) -> frozenset[str]:
        """Return groups, mask, τ, the root of a softplus and sparse mixers, if they are used."""
        router = self.router
        used = {"groups": router.groups > 1, "mask": self.masked, "tau": router.tau is not None}
        used |= {kind: router.kind == kind for kind in ("sqrt_softplus", "sparse_mixer")}
        return frozenset(name for name, there in used.items() if there)

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Infer indices and weights."""
        expect(inputs == (Type((self.experts,)),), f"Route takes f32[{self.experts}]: {inputs}")
        chosen = self.router.top_k
        return Type((chosen,), "i32"), Type((chosen,))

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Declare the bias, which affects the choice only, and the mask."""
        roles = {"bias": self.selection_bias, "mask": self.masked}
        return {role: (self.experts,) for role, there in roles.items() if there}


@dataclass(frozen=True)
class StackIndex(Op):
    """Places of matrices in a stack of stacks: number·size + index (`numerics.route.stack_index`).

    Inputs: the stack's number i32[] and indices i32[k] → i32[k]; with `every` the number alone →
    i32[size], the places of all matrices of the stack.
    """

    size: Count
    every: bool = False

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Keep the indices' shape."""
        number, *index = inputs
        expect(number == Type((), "i32"), f"StackIndex takes a number i32[], got {number}")
        if self.every:
            expect(not index, f"StackIndex of every matrix takes no indices, got {index}")
            return (Type((self.size,), "i32"),)
        fits = len(index) == 1 and index[0].dtype == "i32" and len(index[0].shape) == 1
        expect(fits, f"StackIndex takes indices i32[k], got {index}")
        return (index[0],)


@dataclass(frozen=True)
class KeepListed(Op):
    """Scores of the experts that a token's list names, −2⁴⁰ elsewhere (`route.keep_listed`).

    Inputs: f32[experts] and the token i32[]. Output f32[experts]: what `Route` chooses by, where
    experts follow from the token. A weight `table` [vocab, listed] holds their indices.
    """

    experts: Count
    vocab: Count
    listed: Count

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Keep the scores' shape."""
        wanted = (Type((self.experts,)), Type((), "i32"))
        expect(inputs == wanted, f"KeepListed takes {wanted}, got {inputs}")
        return inputs[:1]

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Declare the lists."""
        return {"table": (self.vocab, self.listed)}


@dataclass(frozen=True)
class CombineExperts(Op):
    """Σ weight·output in ascending expert index (`numerics.route.combine_experts`).

    Weights f32[k] and outputs f32[k, width] → f32[width].
    """

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Infer the weighted sum."""
        weights, outputs = inputs
        fits = weights.dtype == outputs.dtype == "f32" and weights.shape == outputs.shape[:1]
        expect(fits and len(outputs.shape) == 2, f"CombineExperts takes {weights} and {outputs}")
        return (Type(outputs.shape[1:]),)
