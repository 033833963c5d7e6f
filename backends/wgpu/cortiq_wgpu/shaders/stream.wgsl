// Products of few rows and a matrix with a scale a line, for GPUs: LANES neighbouring lanes read
// neighbouring words of LINES lines, so that weights stream. What they add up, integers in any
// order, is put together in workgroup memory: by eights of lanes first, then by outputs.

@group(0) @binding(4) var<storage, read> q: array<vec4u>;
@group(0) @binding(5) var<storage, read> codes: array<vec4u>;
@group(0) @binding(6) var<storage, read> s: array<u32>;

const ROWS = {{ROWS}}u;
const LINES = {{LINES}}u;
const LANES = {{LANES}}u;
const SUMS = {{SUMS_EACH}}u * ROWS * LINES;
const STEP = LANES + 8u;  // so that eight sums' neighbouring lanes are in 32 banks

var<workgroup> parts: array<i32, SUMS * STEP>;
var<workgroup> eighths: array<i32, SUMS * 8u>;

fn dot16(a: vec4u, b: vec4u) -> i32 {
  return dot4(a.x, b.x) + dot4(a.y, b.y) + dot4(a.z, b.z) + dot4(a.w, b.w);
}

fn total_of(sum: u32) -> i32 {
  var total = 0;
  for (var i = 0u; i < 8u; i++) { total += eighths[sum * 8u + i]; }
  return total;
}

fn target_of(row: u32, slot: u32, n: u32) -> u32 {
  {{TARGET}}
}

@compute @workgroup_size({{LANES}})
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_id) local: vec3u) {
  zero = m[0];
  let lane = local.x;
  let first = group.y * ROWS;
  let count = m[1u + $set] * $inner;
  let slot = group.z;
  {{PLACE}}  // the first output, and how far its line is from it
  let units = $units;
  {{LOADED}}
  for (var u = lane; u < units; u += {{TURNS}}u * LANES) {
    {{ADDED}}
  }
  {{PUT}}
  workgroupBarrier();
  for (var j = lane; j < SUMS * 8u; j += LANES) {
    var sum = 0;
    for (var i = j % 8u; i < LANES; i += 8u) { sum += parts[j / 8u * STEP + i]; }
    eighths[j] = sum;
  }
  workgroupBarrier();
  let row = first + lane / LINES;
  let n = n0 + lane % LINES;
  let line = n + shift;
  if (lane >= ROWS * LINES || n >= $n || line < $start || line >= $stop || row >= count) { return; }
  let record = ($q + {{RECORD}} * $size) / 4u;
  let y = multiply({{ROUNDED}}, from_bits(s[$scale + line - $start]));
  let e = bitcast<i32>(q[record + $size / 4u - 1u].x);
  x[target_of(row, slot, n)] = canonical(multiply(y, exp2_int(e)), row / $inner);
}
