// Products of many rows and a matrix of bytes under a scale a line, for GPUs: a workgroup of 16 by
// 16 lanes has a tile of rows by outputs, a lane ROWS by OUTPUTS of them in registers. A stretch of
// UNITS*16 columns at a time lies in workgroup memory, turned so that a lane reads four rows' or
// four outputs' words at once; while it is multiplied the next one is on its way.

@group(0) @binding(4) var<storage, read> q: array<vec4u>;
@group(0) @binding(5) var<storage, read> codes: array<vec4u>;
@group(0) @binding(6) var<storage, read> s: array<u32>;

const TILE_ROWS = 16u * {{ROWS}}u;
const TILE_OUTPUTS = 16u * {{OUTPUTS}}u;
const UNITS = {{UNITS}}u;
const SKIP = 8u / UNITS;  // between units, so that what a warp stores is in 32 banks
const ROWS_UNIT = TILE_ROWS + SKIP;  // four words of every row
const OUTPUTS_UNIT = TILE_OUTPUTS + SKIP;
const PLANE = UNITS * ROWS_UNIT;

var<workgroup> planes: array<vec4u, 2u * PLANE>;  // [plane][unit][word][row / 4], a component a row
var<workgroup> columns: array<vec4u, UNITS * OUTPUTS_UNIT>;  // likewise, a component an output

fn target_of(row: u32, slot: u32, n: u32) -> u32 {
  {{TARGET}}
}

// Item i of a stretch: a unit of a row's plane, or of a line.
fn put_row(i: u32, value: vec4u) {
  let row = i / UNITS % TILE_ROWS;
  let to = i / (UNITS * TILE_ROWS) * PLANE + i % UNITS * ROWS_UNIT + row / 4u;
  for (var k = 0u; k < 4u; k++) { planes[to + k * (TILE_ROWS / 4u)][row % 4u] = value[k]; }
}

fn put_column(i: u32, value: vec4u) {
  let output = i / UNITS;
  let to = i % UNITS * OUTPUTS_UNIT + output / 4u;
  for (var k = 0u; k < 4u; k++) { columns[to + k * (TILE_OUTPUTS / 4u)][output % 4u] = value[k]; }
}

fn record_of(row: u32, count: u32) -> u32 { return ($q + min(row, count - 1u) * $size) / 4u; }
fn line_of(n: u32) -> u32 { return min(n + $base, $stop - 1u) - $start; }
fn exponent_of(row: u32, count: u32) -> f32 {
  return exp2_int(bitcast<i32>(q[record_of(row, count) + $size / 4u - 1u].x));
}

fn finish(row: u32, n: u32, count: u32, rounded: f32, scale: f32, power: f32) {
  if (row >= count || n >= $n || n + $base >= $stop) { return; }
  let y = multiply(multiply(rounded, scale), power);
  x[target_of(row, 0u, n)] = canonical(y, row / $inner);
}

fn q_at(place: u32, unit: u32, units: u32) -> vec4u {
  return select(vec4u(0u), q[place + min(unit, units - 1u)], unit < units);
}

fn codes_at(place: u32, unit: u32, units: u32) -> vec4u {
  return select(vec4u(0u), codes[place + min(unit, units - 1u)], unit < units);
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_id) local: vec3u) {
  zero = m[0];
  let lane = local.x;
  let across = lane % 16u;
  let down = lane / 16u;
  let count = m[1u + $set] * $inner;
  let first_row = group.y * TILE_ROWS;
  let first_n = max($start, $base) - $base + group.x * TILE_OUTPUTS;
  let units = $units;
  var unit = lane % UNITS;
  {{DECLARED}}
  {{PLACES}}
  {{FETCHED}}
  for (var unit0 = 0u; unit0 < units; unit0 += UNITS) {
    workgroupBarrier();
    {{PUT}}
    workgroupBarrier();
    unit += UNITS;
    {{FETCHED}}
    for (var k = 0u; k < UNITS; k++) {
      let rows_at = k * ROWS_UNIT + down;
      let columns_at = k * OUTPUTS_UNIT + across;
      {{SUMS}}
    }
  }
  let row = first_row + down * 4u;
  let n = first_n + across * 4u;
  {{FINISHED}}
}
