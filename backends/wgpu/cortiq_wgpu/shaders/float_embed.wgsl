// The table's row of each token, or of each position: the values as they are.

@group(0) @binding(4) var<storage, read> codes: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_id) local: vec3u) {
  zero = m[0];
  let i = group.x * 64u + local.x;
  let at = group.y;
  let row = at / $inner;
  let token = select(about(row, min($by, 1u)), x[$ids + at], $by > 1u);
  if (i >= $n) { return; }
  if (token >= $vocabulary && $start == 0u) { x[$out + at * $n + i] = 0u; }
  if (token < $start || token >= $stop) { return; }
  x[$out + at * $n + i] = canonical(from_bits(codes[(token - $start) * $n + i]), row);
}
