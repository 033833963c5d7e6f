// The delta rule or a state space: a lane has one column of a head's state, and takes the rows of
// a sequence in order. Sums over the column are the tree of canonical_sum: leaves are visited in
// bit-reversed order, so that partial sums wait on a stack of one value a level.

@group(0) @binding(4) var<storage, read_write> pool: array<u32>;

const LEVELS = {{LEVELS}}u;
const LEAVES = {{LEAVES}}u;  // a power of two, at most 256

fn leaf_of(i: u32) -> u32 { return reverseBits(i) >> (32u - LEVELS); }

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_id) local: vec3u) {
  zero = m[0];
  let j = group.x * 64u + local.x;
  let head = group.z;
  let columns = $columns;
  let state_rows = $state_rows;
  if (j >= columns) { return; }
  let segment = m[6] + group.y * 4u;
  let first = m[segment];
  let count = m[segment + 1u];
  let state = (m[segment + 3u] * $heads + head) * state_rows * columns + j;
  let shared_head = head / ($heads / $key_heads);
  let end = first + min(count, $begin + $step);
  for (var row = first + $begin; row < end; row++) {
    let key = $k + (row * $key_heads + shared_head) * state_rows;
    let query = $q + (row * $key_heads + shared_head) * state_rows;
    let decays = $alpha + (row * $heads + head) * $decays;
    let v = from_bits(x[$v + (row * $heads + head) * columns + j]);
    let beta = from_bits(x[$beta + row * $heads + head]);
    var stack: array<f32, 9>;
    {{DRIVEN}}
    for (var t = 0u; t < LEAVES; t++) {
      let base = leaf_of(t);
      var leaf = 0.0;
      for (var i = base; i < state_rows; i += 256u) {
        let alpha = from_bits(x[decays + select(0u, i, $decays > 1u)]);
        let at = state + i * columns;
        let kept = multiply(from_bits(pool[at]), alpha);
        let after = canonical(add(kept, multiply(from_bits(x[key + i]), driven)), row);
        pool[at] = after;
        leaf = add(leaf, multiply(from_bits(after), from_bits(x[query + i])));
      }
      {{PUSH}}
    }
    x[$out + (row * $heads + head) * columns + j] = canonical(stack[LEVELS], row);
  }
}
