// Rows of a table by the last tokens of a sequence: integers of 64 bits in two words, low and high.
// A sequence's ring holds token + 1 of the rows before the batch as floats.

@group(0) @binding(4) var<storage, read_write> pool: array<u32>;

// The lower 64 bits of a product with one word.
fn times(a: vec2u, b: u32) -> vec2u {
  let a0 = a.x & 0xffffu;
  let a1 = a.x >> 16u;
  let b0 = b & 0xffffu;
  let b1 = b >> 16u;
  let middle = a1 * b0 + ((a0 * b0) >> 16u);
  let cross = a0 * b1 + (middle & 0xffffu);
  return vec2u(a.x * b, a1 * b1 + (middle >> 16u) + (cross >> 16u) + a.y * b);
}

// The rest of a division by a number below 2^31, bit after bit.
fn rest_of(a: vec2u, divisor: u32) -> u32 {
  var rest = 0u;
  for (var bit = 0u; bit < 64u; bit++) {
    let word = select(a.x, a.y, bit < 32u);
    rest = (rest << 1u) | ((word >> (31u - bit % 32u)) & 1u);
    rest -= select(0u, divisor, rest >= divisor);
  }
  return rest;
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_id) local: vec3u) {
  zero = m[0];
  var factors = array<vec2u, {{SIZE}}>({{FACTORS}});
  var heights = array<u32, {{HEADS}}>({{HEIGHTS}});
  var firsts = array<u32, {{HEADS}}>({{FIRSTS}});
  let head = group.x * 64u + local.x;
  let row = group.y;
  if (head >= $heads) { return; }
  let position = i32(about(row, 1u));
  let begin = i32(about(row, 4u));  // the segment's first position
  let ring = about(row, 3u) * $capacity;
  var mixed = times(factors[0], about(row, 0u));
  var over = false;
  for (var back = 1u; back < 2u + head / $each; back++) {
    let at = position - i32(back);
    var token = -1;
    if (at >= begin) { token = i32(about(row - back, 0u)); }
    else if (at >= 0) { token = i32(from_bits(pool[ring + u32(at) % $capacity])) - 1; }
    over = over || token < 0 || token == i32($end);
    mixed = mixed ^ times(factors[back], select(u32(token), $end, over));
  }
  x[$out + row * $heads + head] = firsts[head] + rest_of(mixed, heights[head]);
}
