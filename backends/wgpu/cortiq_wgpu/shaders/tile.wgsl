// Products of many rows and a matrix, for GPUs: a workgroup of lanes, 16 across, has a tile of rows by
// outputs, a lane ROWS by OUTPUTS of them in registers. Sixteen or 32 columns at a time lie in workgroup
// memory, codes unpacked once for the whole tile; while they are multiplied the next ones are on their
// way.

@group(0) @binding(4) var<storage, read> turned: array<vec4<{{VALUE}}>>;  // see spread_rows.wgsl
@group(0) @binding(5) var<storage, read> codes: array<u32>;
@group(0) @binding(6) var<storage, read> s: array<u32>;

const LANES = {{LANES}}u;
const TILE_ROWS = LANES / 16u * {{ROWS}}u;
const TILE_OUTPUTS = 16u * {{OUTPUTS}}u;
const ROW_FOURS = TILE_ROWS / 4u;
const OUTPUT_FOURS = TILE_OUTPUTS / 4u;
const STEP = OUTPUT_FOURS + 1u;  // between columns, so that what a warp stores is in other banks
const UNIT = {{UNIT}}u;    // values of 16 columns
const STAGE = {{STAGE}}u;  // values of a row at a time
const PLANE = STAGE * ROW_FOURS;
const PLANES = {{PLANES}}u;
const KINDS = {{KINDS}}u;

var<workgroup> row_values: array<vec4<{{VALUE}}>, PLANES * PLANE>;  // [plane][value][row / 4]
var<workgroup> code_values: array<vec4<{{VALUE}}>, STAGE * STEP>;  // [value][output / 4]
var<workgroup> beside: array<vec4u, max(1u, KINDS * OUTPUT_FOURS)>;  // scales and the like

fn target_of(row: u32, slot: u32, n: u32) -> u32 {
  {{TARGET}}
}

// What is beside the codes of a group of 32 columns.
fn beside_of(kind: u32, line: u32, g: u32) -> u32 {
  {{BESIDE}}
}

fn line_of(n: u32) -> u32 { return min(n + $base, $stop - 1u) - $start; }

fn values_of(word: u32) -> {{CODE}} {
  {{VALUES}}
}

// Word `word` of an output's codes.
fn put_code(word: u32, output: u32, codes_: u32) {
  let values = values_of(codes_);
  {{PUT_CODE}}
}

fn is_there(row: u32, n: u32, count: u32) -> bool {
  return row < count && n < $n && n + $base < $stop;
}

{{KEPT}}
fn finish(row: u32, n: u32, count: u32, sum: f32, power: f32) {
  if (is_there(row, n, count)) {
    let to = target_of(row, 0u, n);
    x[to] = canonical(multiply({{LAST}}, power), row / $inner);
  }
}

@compute @workgroup_size({{LANES}})
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_id) local: vec3u) {
  zero = m[0];
  let lane = local.x;
  let across = lane % 16u;
  let down = lane / 16u;
  let count = m[1u + $set] * $inner;
  let first_row = group.y * TILE_ROWS;
  let first_n = max($start, $base) - $base + group.x * TILE_OUTPUTS;
  let units = $units;
  let groups = $groups;
  let pitch = $pitch / 4u;
  let sums_at = PLANES * UNIT * units * pitch + first_row / 4u + down;
  {{DECLARED}}
  let row = first_row + down * 4u;
  let n = first_n + across * 4u;
  var g = 0u;
  var stage = 0u;
  {{BEGUN}}
  for (var now = 0u; now < groups; now++) {
    {{GROUP}}
  }
  {{FINISHED}}
}
