"""Sources of our own kernels, each one text for CUDA and for Metal.

A body is C in which words with a `$` stand for what the two languages call differently; `source_of`
puts in the target's. Products and sums go through `MUL` and `ADD`, which no compiler may join: CUDA
has intrinsics for that, and in Metal every result passes through integers and a zero that is read
from memory, so that what it will be is unknown. Nothing else of floats is used but selects, bits
and rint.

The third target is C++ on the host: tests compile the bodies and compare every bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class KernelSource:
    """The source of a kernel.

    Attributes
    ----------
    inputs, outputs : names of arrays. One input is `nothing`, a zero of uint32.
    numbers : names of the integers that it is compiled for.
    source : the body; `$group` is the group of threads, `$lane` the thread within it.
    threads : threads of a group, 0 for one thread a group of its own (`$thread` counts them).
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    numbers: tuple[str, ...]
    source: str
    threads: int = 0


WORDS: Mapping[str, Mapping[str, str]] = {
    "cuda": {
        "$thread": "(int)(blockIdx.x * blockDim.x + threadIdx.x)",
        "$group": "(int)blockIdx.x",
        "$lane": "(int)threadIdx.x",
        "$shared": "__shared__",
        "$barrier": "__syncthreads()",
    },
    "metal": {
        "$thread": "(int)thread_position_in_grid.x",
        "$group": "(int)threadgroup_position_in_grid.x",
        "$lane": "(int)thread_position_in_threadgroup.x",
        "$shared": "threadgroup",
        "$barrier": "threadgroup_barrier(mem_flags::mem_threadgroup)",
    },
    "host": {
        "$thread": "thread_number",
        "$group": "group_number",
        "$lane": "lane_number",
        "$shared": "static",
        "$barrier": "wait_for_others()",
    },
}

HEADERS: Mapping[str, str] = {
    "cuda": """
#define ADD(a, b) __fadd_rn(a, b)
#define MUL(a, b) __fmul_rn(a, b)
#define RINT(a) rintf(a)
#define BITS(a) __float_as_int(a)
#define FLOAT(a) __int_as_float(a)
#define TO_FLOAT(a) __int2float_rn(a)
#define TO_INT(a) __float2int_rn(a)
""",
    "metal": """
#define KEPT(a) as_type<float>(as_type<uint>(a) ^ opaque)
#define ADD(a, b) KEPT((a) + (b))
#define MUL(a, b) KEPT((a) * (b))
#define RINT(a) rint(a)
#define BITS(a) as_type<int>(a)
#define FLOAT(a) as_type<float>(a)
#define TO_FLOAT(a) float(a)
#define TO_INT(a) int(a)
""",
    "host": """
#define ADD(a, b) ((a) + (b))
#define MUL(a, b) ((a) * (b))
#define RINT(a) nearbyintf(a)
#define BITS(a) std::bit_cast<int>(a)
#define FLOAT(a) std::bit_cast<float>(a)
#define TO_FLOAT(a) ((float)(a))
#define TO_INT(a) ((int)(a))
""",
}
"""What float operations are called. Conversions are of integers below 2²⁴ only."""

ROUND_TWO_PLANES = """
#define ROUND_TWO_PLANES(result, high_sum, low_sum) { \\
    int h_ = high_sum, l_ = low_sum; \\
    int c_ = (l_ + 128) >> 8; \\
    h_ += c_; \\
    l_ -= c_ * 256; \\
    int a_ = (h_ + 16384) >> 15; \\
    int m_ = (h_ - a_ * 32768) * 256 + l_; \\
    result = ADD(MUL(TO_FLOAT(a_), 8388608.0f), TO_FLOAT(m_)); \\
}
"""
"""RN(high·256 + low), the contract's portable form."""

ROUND_THREE_PLANES = """
#define ROUND_THREE_PLANES(result, high_sum, middle_sum, low_sum) { \\
    int h_ = high_sum, d_ = middle_sum, l_ = low_sum; \\
    int c_ = (l_ + 128) >> 8; \\
    l_ -= c_ * 256; \\
    d_ += c_; \\
    c_ = (d_ + 128) >> 8; \\
    d_ -= c_ * 256; \\
    h_ += c_; \\
    int a_ = (h_ + 64) >> 7; \\
    int m_ = (h_ - a_ * 128) * 65536 + d_ * 256 + l_; \\
    result = ADD(MUL(TO_FLOAT(a_), 8388608.0f), TO_FLOAT(m_)); \\
}
"""
"""RN(high·65536 + middle·256 + low)."""

QUANTISE = KernelSource(
    name="cortiq_quantise",
    inputs=("x", "nothing"),
    outputs=("q", "e"),
    numbers=("WIDTH",),
    threads=256,
    source="""
    unsigned int opaque = nothing[0];
    $shared int largest[256];
    int row = $group, lane = $lane;
    int m = 0;
    for (int k = lane; k < WIDTH; k += 256) {
        int bits = BITS(x[row * WIDTH + k]) & 0x7fffffff;
        m = bits > m ? bits : m;
    }
    largest[lane] = m;
    $barrier;
    for (int apart = 128; apart > 0; apart /= 2) {
        if (lane < apart && largest[lane + apart] > largest[lane]) {
            largest[lane] = largest[lane + apart];
        }
        $barrier;
    }
    m = largest[0] > 0x2b800000 ? largest[0] : 0x2b800000;
    int top = (m + 0x20000) >> 23;
    float factor = FLOAT((268 - top) << 23);
    for (int k = lane; k < WIDTH; k += 256) {
        q[row * WIDTH + k] = (short)TO_INT(RINT(MUL(x[row * WIDTH + k], factor)));
    }
    if (lane == 0) {
        e[row] = top - 141;
    }
""",
)
"""Rows [rows, WIDTH] to 16-bit integers and an exponent, a group of threads a row."""

MATVEC = KernelSource(
    name="cortiq_matvec",
    inputs=("q", "codes", "scale", "minimum", "scales", "offsets", "nothing"),
    outputs=("y",),
    numbers=("ROWS", "PIECE", "PIECES", "BLOCKS", "HEIGHT", "SHIFT", "SCALED", "LOW"),
    source="""
    unsigned int opaque = nothing[0];
    if ($thread >= ROWS * HEIGHT) {
        return;
    }
    int row = $thread / HEIGHT, n = $thread % HEIGHT;
    int width = BLOCKS * PIECES * PIECE;
    float sum = 0.0f, run = 0.0f;
    for (int b = 0; b < BLOCKS; ++b) {
        int high = 0, low = 0, whole = 0;
        for (int p = 0; p < PIECES; ++p) {
            int slice = b * PIECES + p, piece_high = 0, piece_low = 0, piece_sum = 0;
            for (int k = 0; k < PIECE; ++k) {
                int value = q[row * width + slice * PIECE + k];
                int code = codes[(slice * PIECE + k) * HEIGHT + n] + SHIFT;
                int upper = (value + 128) >> 8;
                piece_high += code * upper;
                piece_low += code * (value - upper * 256);
                piece_sum += value;
            }
            int by = SCALED ? scales[slice * HEIGHT + n] : 1;
            high += piece_high * by;
            low += piece_low * by;
            whole += piece_sum * (LOW ? offsets[slice * HEIGHT + n] : 0);
        }
        float dot;
        ROUND_TWO_PLANES(dot, high, low)
        float term = MUL(dot, scale[b * HEIGHT + n]);
        if (LOW) {
            float least;
            ROUND_TWO_PLANES(least, 0, whole)
            term = ADD(term, MUL(least, minimum[b * HEIGHT + n]));
        }
        run = ADD(run, term);
        if (b % 8 == 7 || b == BLOCKS - 1) {
            sum = ADD(sum, run);
            run = 0.0f;
        }
    }
    y[row * HEIGHT + n] = sum;
""",
)
"""Blocks of rows [rows, width] times one part of a weight, before 2^e: a thread an output."""

TILE = KernelSource(
    name="cortiq_tile",
    inputs=("q", "qe", "keys", "ke", "values", "ve", "visible", "factor", "nothing"),
    outputs=("total", "peak", "output", "top"),
    numbers=("GROUPS", "QUERIES", "DIM", "WIDTH"),
    threads=64,
    source="""
    unsigned int opaque = nothing[0];
    $shared int exponents[64];
    $shared int weighted[64];
    $shared int mass[64];
    $shared int weight[64];
    int query = $group % QUERIES, head = $group / QUERIES % GROUPS;
    int tile = $group / QUERIES / GROUPS, j = $lane;
    int key = (tile * 64 + j) * GROUPS + head;
    int high = 0, middle = 0, low = 0;
    for (int d = 0; d < DIM; ++d) {
        int a = q[(head * 2 * QUERIES + query) * DIM + d];
        int b = q[(head * 2 * QUERIES + QUERIES + query) * DIM + d];
        int c = keys[key * 2 * DIM + d];
        int f = keys[key * 2 * DIM + DIM + d];
        high += a * c;
        middle += a * f + b * c;
        low += b * f;
    }
    float dot;
    ROUND_THREE_PLANES(dot, high, middle, low)
    float s = MUL(MUL(dot, factor[0]), FLOAT((qe[head * QUERIES + query] + ke[key] + 127) << 23));
    s = s < -16384.0f ? -16384.0f : s;
    s = s > 16384.0f ? 16384.0f : s;
    float whole = RINT(s);
    float f = ADD(s, -whole);
    float g = 1.5353362e-4f;
    g = ADD(MUL(g, f), 1.3398874e-3f);
    g = ADD(MUL(g, f), 9.6184373e-3f);
    g = ADD(MUL(g, f), 5.5503324e-2f);
    g = ADD(MUL(g, f), 2.4022648e-1f);
    g = ADD(MUL(g, f), 6.9314718e-1f);
    g = ADD(MUL(g, f), 1.0f);
    bool seen = visible[(tile * QUERIES + query) * 64 + j] != 0;
    int kappa = TO_INT(whole);
    exponents[j] = seen ? kappa : -1048576;
    weighted[j] = seen ? kappa + ve[key] : -1048576;
    $barrier;
    int most = -1048576, highest = -1048576;
    for (int i = 0; i < 64; ++i) {
        most = exponents[i] > most ? exponents[i] : most;
        highest = weighted[i] > highest ? weighted[i] : highest;
    }
    int n = exponents[j] - most + 21;
    mass[j] = seen ? TO_INT(RINT(MUL(g, FLOAT(((n < -64 ? -64 : n) + 127) << 23)))) : 0;
    n = weighted[j] - highest + 14;
    weight[j] = seen ? TO_INT(RINT(MUL(g, FLOAT(((n < -64 ? -64 : n) + 127) << 23)))) : 0;
    $barrier;
    int place = (tile * GROUPS + head) * QUERIES + query;
    if (j == 0) {
        int all = 0;
        for (int i = 0; i < 64; ++i) {
            all += mass[i];
        }
        float rounded;
        ROUND_TWO_PLANES(rounded, all >> 8, all & 255)
        total[place] = rounded;
        peak[place] = most;
        top[place] = highest;
    }
    for (int c = j; c < WIDTH; c += 64) {
        int hh = 0, mid = 0, ll = 0;
        for (int i = 0; i < 64; ++i) {
            int row = ((tile * 64 + i) * GROUPS + head) * 2 * WIDTH;
            int a = (weight[i] + 128) >> 8, b = weight[i] - a * 256;
            hh += a * values[row + c];
            mid += a * values[row + WIDTH + c] + b * values[row + c];
            ll += b * values[row + WIDTH + c];
        }
        float sum;
        ROUND_THREE_PLANES(sum, hh, mid, ll)
        output[place * WIDTH + c] = sum;
    }
""",
)
"""What each tile of 64 keys contributes to each query: a group of threads a query and tile."""

KERNEL_SOURCES = (QUANTISE, MATVEC, TILE)


def source_of(body: KernelSource, target: str) -> tuple[str, str]:
    """Return header and body of a kernel for "cuda", "metal" or "host"."""
    source = body.source
    for word, text in WORDS[target].items():
        source = source.replace(word, text)
    return HEADERS[target] + ROUND_TWO_PLANES + ROUND_THREE_PLANES, source
