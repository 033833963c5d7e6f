// What every kernel has: its parameters, the batch, values, fault flags, and float operations that
// round once, whatever the shader compiler does.
//
// `$name` in a kernel is a parameter of the op, a word of p. Compilers between WGSL and the chip
// contract a*b+c and reorder (a+b)+c. `keep` hides a value behind an exclusive or with a zero that
// is read from a buffer, which no compiler can see through; every sum and product passes it. WGSL's
// own division and square root may be off by a few units in the last place: their results are
// corrected with exact integer remainders.

@group(0) @binding(0) var<storage, read> p: array<u32>;
@group(0) @binding(1) var<storage, read> m: array<u32>;         // the batch; m[0] is 0
@group(0) @binding(2) var<storage, read_write> x: array<u32>;   // f32 and i32 values
@group(0) @binding(3) var<storage, read_write> faults: array<atomic<u32>>;

var<private> zero: u32;  // m[0], read once by every invocation

fn keep(v: f32) -> f32 { return bitcast<f32>(bitcast<u32>(v) ^ zero); }
fn from_bits(b: u32) -> f32 { return bitcast<f32>(b); }
fn add(a: f32, b: f32) -> f32 { return keep(a + b); }
fn subtract(a: f32, b: f32) -> f32 { return keep(a - b); }
fn multiply(a: f32, b: f32) -> f32 { return keep(a * b); }

// Half to even for |a| < 2^22: adding 1.5*2^23 leaves no bits below one.
fn rint(a: f32) -> f32 { return subtract(add(a, 12582912.0), 12582912.0); }

fn exp2_int(n: i32) -> f32 { return bitcast<f32>(u32(n + 127) << 23u); }

fn magnitude_bits(v: f32) -> u32 { return bitcast<u32>(v) & 0x7fffffffu; }

const SMALLEST_BITS = 0x2b800000u;  // 2^-40
const LARGEST_BITS = 0x58800000u;   // 2^50

// snap: the bits of canonical y; outside the domain the row is at fault and the value +0.
fn canonical(y: f32, row: u32) -> u32 {
  let size = magnitude_bits(y);
  if (size >= LARGEST_BITS) {
    atomicOr(&faults[$faults + row], 1u);
    return 0u;
  }
  return select(0u, bitcast<u32>(y), size >= SMALLEST_BITS);
}

// a/b for a = 0 or normal, b normal, quotient normal.
fn divide(a: f32, b: f32) -> f32 {
  let ua = bitcast<u32>(a);
  let ub = bitcast<u32>(b);
  let sign = (ua ^ ub) & 0x80000000u;
  if ((ua & 0x7fffffffu) == 0u) { return bitcast<f32>(sign); }
  let ma = (ua & 0x7fffffu) | 0x800000u;
  let mb = (ub & 0x7fffffu) | 0x800000u;
  let fa = bitcast<f32>((ua & 0x7fffffu) | 0x3f800000u);  // the mantissas, in [1, 2)
  let fb = bitcast<f32>((ub & 0x7fffffu) | 0x3f800000u);
  let below = ma < mb;  // the quotient of the mantissas is below 1
  let shift = select(23u, 24u, below);
  let exponent = i32((ua >> 23u) & 255u) - i32((ub >> 23u) & 255u) + 127 - select(0, 1, below);
  var q = i32(fa / fb * select(8388608.0, 16777216.0, below));  // near ma*2^shift/mb
  var rest = bitcast<i32>((ma << shift) - u32(q) * mb);  // small, so exact modulo 2^32
  let divisor = i32(mb);
  let off = i32(f32(rest) / f32(divisor));  // by how many q is off, or one less or more
  q += off;
  rest -= off * divisor;
  let less = rest < 0;
  q -= select(0, 1, less);
  rest += select(0, divisor, less);
  let more = rest >= divisor;
  q += select(0, 1, more);
  rest -= select(0, divisor, more);
  q += select(0, 1, 2 * rest > divisor);  // no ties: 2*rest == divisor is impossible for 24 bits
  return bitcast<f32>(sign | u32((exponent << 23u) + (q - 0x800000)));
}

// The square root of a normal a > 0.
fn square_root(a: f32) -> f32 {
  let ua = bitcast<u32>(a);
  let exponent = i32(ua >> 23u) - 127;
  let odd = (exponent & 1) != 0;
  let mantissa = (ua & 0x7fffffu) | 0x800000u;
  let fa = bitcast<f32>((ua & 0x7fffffu) | 0x3f800000u);
  var q = i32(sqrt(select(fa, fa + fa, odd)) * 8388608.0);
  var rest = bitcast<i32>((mantissa << select(23u, 24u, odd)) - u32(q) * u32(q));
  for (var k = 0; k < 12; k++) {
    if (rest < 0) { q -= 1; rest += 2 * q + 1; }
    else if (rest > 2 * q) { rest -= 2 * q + 1; q += 1; }
    else { break; }
  }
  q += select(0, 1, rest > q);  // (q + 1/2)^2 = q^2 + q + 1/4
  let half = (exponent - select(0, 1, odd)) / 2 + 127;
  return bitcast<f32>(u32((half << 23u) + (q - 0x800000)));
}

// RN(i) for any i: WGSL does not say how an inexact conversion rounds.
fn round_int32(i: i32) -> f32 {
  return add(multiply(f32(i >> 12u), 4096.0), f32(i & 4095));
}

// RN(high*256 + low).
fn round_two_planes(high_plane: i32, low_plane: i32) -> f32 {
  let carry = (low_plane + 128) >> 8u;
  let high = high_plane + carry;
  let low = low_plane - (carry << 8u);
  let a = (high + 16384) >> 15u;
  let rest = ((high - (a << 15u)) << 8u) + low;
  return add(multiply(f32(a), 8388608.0), f32(rest));
}

// RN(high*65536 + middle*256 + low).
fn round_three_planes(high_plane: i32, middle_plane: i32, low_plane: i32) -> f32 {
  var carry = (low_plane + 128) >> 8u;
  let low = low_plane - (carry << 8u);
  var middle = middle_plane + carry;
  carry = (middle + 128) >> 8u;
  middle -= carry << 8u;
  let high = high_plane + carry;
  let a = (high + 64) >> 7u;
  let rest = ((high - (a << 7u)) << 16u) + (middle << 8u) + low;
  return add(multiply(f32(a), 8388608.0), f32(rest));
}

// A number of the row's record in the batch: token 0, position 1, pages 2, block 3, first and end of its
// segment 4 5, source 6, draws 7, tops 8, drawn logits 9; angles
// from 10 on.
fn about(row: u32, number: u32) -> u32 { return m[m[4u + $set] + row * $record + number]; }

// Where page 0 of a group of the row's sequence would be listed: the first ones may have been given up.
fn pages_of(row: u32, group: u32) -> u32 { return m[about(row, 2u) + group]; }
