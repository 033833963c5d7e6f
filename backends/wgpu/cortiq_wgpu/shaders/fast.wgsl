// Products of few rows and a matrix, for GPUs: 64 lanes read neighbouring words of four lines, so
// that weights stream; what they sum is put together in workgroup memory.

@group(0) @binding(4) var<storage, read> q: array<vec4u>;
@group(0) @binding(5) var<storage, read> codes: array<vec4u>;
@group(0) @binding(6) var<storage, read> s: array<u32>;

const ROWS = {{ROWS}}u;
const LANES = 64u;

var<workgroup> parts: array<vec4i, 256>;
var<workgroup> terms: array<f32, 256>;
var<workgroup> runs: array<f32, 32>;

fn dot16(a: vec4u, b: vec4u) -> i32 {
  return dot4(a.x, b.x) + dot4(a.y, b.y) + dot4(a.z, b.z) + dot4(a.w, b.w);
}

{{FUNCTIONS}}

// Every lane's integers added up, in any order.
fn total_of(lane: u32, value: vec4i) -> vec4i {
  workgroupBarrier();
  parts[lane] = value;
  for (var half = LANES / 2u; half > 0u; half /= 2u) {
    workgroupBarrier();
    if (lane < half) { parts[lane] += parts[lane + half]; }
  }
  workgroupBarrier();
  return parts[0];
}

fn target_of(row: u32, slot: u32, n: u32) -> u32 {
  {{TARGET}}
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_id) local: vec3u) {
  zero = m[0];
  let lane = local.x;
  let first = group.y * ROWS;
  let count = m[1u + $set] * $inner;
  let slot = group.z;
  {{PLACE}}  // the first output, and how far its line is from it
  let units = $units;
  var lines: array<u32, 4>;
  for (var k = 0u; k < 4u; k++) { lines[k] = clamp(n0 + k + shift, $start, $stop - 1u) - $start; }
  var records: array<u32, ROWS>;
  for (var r = 0u; r < ROWS; r++) {
    let row = min(first + r, count - 1u);
    records[r] = ($q + {{RECORD}} * $size) / 4u;
  }
  var y: array<f32, ROWS>;  // of output `lane`, in the first four lanes
  for (var r = 0u; r < ROWS; r++) { y[r] = 0.0; }
  {{SUMS}}
  let n = n0 + lane;
  if (lane >= 4u || n >= $n || n + shift < $start || n + shift >= $stop) { return; }
  for (var r = 0u; r < ROWS; r++) {
    let row = first + r;
    if (row < count) {
      let e = bitcast<i32>(q[records[r] + $size / 4u - 1u].x);
      x[target_of(row, slot, n)] = canonical(multiply(y[r], exp2_int(e)), row / $inner);
    }
  }
}
