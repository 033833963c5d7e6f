// The delta rule or a state space: a lane has one column of a head's state, and takes the rows of
// a sequence in order: of the batch, which it keeps, or kept ones. Sums over the column are the tree of
// canonical_sum: leaves are visited in bit-reversed order, so that partial sums wait on a stack of one
// value a level.

@group(0) @binding(4) var<storage, read_write> pool: array<u32>;

const LEVELS = {{LEVELS}}u;
const LEAVES = {{LEAVES}}u;  // a power of two, at most 256
const MARK = {{MARK}}u;
const KEPT = {{KEPT}}u;

fn leaf_of(i: u32) -> u32 { return reverseBits(i) >> (32u - LEVELS); }

// Where a kept row begins, behind the state and its marks.
fn kept_at(place: u32, unit: u32, size: u32) -> u32 {
  return unit + {{COPIES}}u * size + place * $row_width;
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_id) local: vec3u) {
  zero = m[0];
  let j = group.x * 64u + local.x;
  let head = group.z;
  let columns = $columns;
  let state_rows = $state_rows;
  if (j >= columns) { return; }
  {{SEGMENT}}
  let unit = block * $unit;
  let size = $heads * state_rows * columns;
  let keys = $key_heads * state_rows;
  let state = unit + head * state_rows * columns + j;
  let shared_head = head / ($heads / $key_heads);
  let end = first + min(count, $begin + $step);
  for (var row = first + $begin; row < end; row++) {
    {{ROW}}
    let v = from_bits({{SOURCE}}[value]);
    let beta = from_bits({{SOURCE}}[driver]);
    var stack: array<f32, 9>;
    {{DRIVEN}}
    for (var t = 0u; t < LEAVES; t++) {
      let base = leaf_of(t);
      var leaf = 0.0;
      for (var i = base; i < state_rows; i += 256u) {
        let alpha = from_bits({{SOURCE}}[decays + select(0u, i, $decays > 1u)]);
        let at = state + i * columns;
        let kept = multiply(from_bits(pool[at]), alpha);
        let after = canonical(add(kept, multiply(from_bits({{SOURCE}}[key + i]), driven)), row);
        pool[at] = after;
        leaf = add(leaf, multiply(from_bits(after), from_bits({{SOURCE}}[query + i])));
      }
      {{PUSH}}
    }
    let y = canonical(stack[LEVELS], row);
    {{OUT}}
  }
}
