// The table's row of each token, or of each position or number that its row supplies: scale*code, with a minimum added to it.

@group(0) @binding(5) var<storage, read> codes: array<vec4u>;
@group(0) @binding(6) var<storage, read> s: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_id) local: vec3u) {
  zero = m[0];
  let g = group.x * 64u + local.x;  // a group of 32 values
  let at = group.y;
  let row = at / $inner;
  let token = select(about(row, min($by, 1u)), x[$ids + at], $by > 1u);
  if (g >= $groups) { return; }
  let to = $out + at * $n;
  if (token >= $vocabulary && $start == 0u) {
    for (var i = g * 32u; i < min(g * 32u + 32u, $n); i++) { x[to + i] = 0u; }
  }
  if (token < $start || token >= $stop) { return; }
  let line = token - $start;
  var both = array<vec4u, 2>(vec4u(0u), vec4u(0u));
  var low_both = array<vec4u, 2>(vec4u(0u), vec4u(0u));
  let found = codes_of(line, g, 0u);
  both[0] = found.a;
  both[1] = found.b;
  {{SECOND}}
  for (var i = 0u; i < 32u; i++) {
    let k = g * 32u + i;
    if (k >= $n) { break; }
    let word = both[i / 16u][(i % 16u) / 4u];
    var code = bitcast<i32>(word << (24u - 8u * (i % 4u))) >> 24u;
    {{CODE}}
    {{VALUE}}
    x[to + k] = canonical(value, row);
  }
}
