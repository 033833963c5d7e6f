// Products of quantised rows and a matrix: a lane has one output of ROWS rows, and goes through
// its blocks in order. Records of rows are two planes of 16s, their sums, and an exponent.

@group(0) @binding(4) var<storage, read> q: array<vec4u>;
@group(0) @binding(5) var<storage, read> codes: array<vec4u>;
@group(0) @binding(6) var<storage, read> s: array<u32>;

const ROWS = {{ROWS}}u;

fn dot16(a: vec4u, b: vec4u) -> i32 {
  return dot4(a.x, b.x) + dot4(a.y, b.y) + dot4(a.z, b.z) + dot4(a.w, b.w);
}

fn target_of(row: u32, slot: u32, n: u32) -> u32 {
  {{TARGET}}
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_id) local: vec3u) {
  zero = m[0];
  var n = group.x * 64u + local.x;
  let first = group.y * ROWS;
  let slot = group.z;
  let count = m[1u + $set] * $inner;
  {{CHOICE}}
  if (n >= $n || line < $start || line >= $stop) { return; }
  line -= $start;
  var records: array<u32, ROWS>;
  for (var r = 0u; r < ROWS; r++) {
    let row = min(first + r, count - 1u);
    records[r] = ($q + {{RECORD}} * $size) / 4u;
  }
  let units = $units;
  var y: array<f32, ROWS>;
  for (var r = 0u; r < ROWS; r++) { y[r] = 0.0; }
  {{BLOCKS}}
  for (var r = 0u; r < ROWS; r++) {
    let row = first + r;
    if (row < count) {
      let e = bitcast<i32>(q[records[r] + $size / 4u - 1u].x);
      x[target_of(row, slot, n)] = canonical(multiply(y[r], exp2_int(e)), row / $inner);
    }
  }
}
