// Products of many rows and a matrix of bytes under a scale a line, for GPUs: 64 rows by 128
// outputs a workgroup, a stretch of 64 columns at a time in workgroup memory; a lane has 4 rows by
// 8 outputs.

@group(0) @binding(4) var<storage, read> q: array<vec4u>;
@group(0) @binding(5) var<storage, read> codes: array<vec4u>;
@group(0) @binding(6) var<storage, read> s: array<u32>;

const STRETCH = 16u;  // words

var<workgroup> highs: array<vec4u, 256>;   // [word][row / 4], a component a row
var<workgroup> lows: array<vec4u, 256>;
var<workgroup> columns: array<vec4u, 512>;  // [word][output / 4], a component an output

fn target_of(row: u32, slot: u32, n: u32) -> u32 {
  {{TARGET}}
}

fn finish(row: u32, n: u32, high: i32, low: i32) {
  let line = n + $base;
  if (row >= m[1u + $set] * $inner || n >= $n || line >= $stop) { return; }
  let e = bitcast<i32>(q[($q + row * $size) / 4u + $size / 4u - 1u].x);
  let y = multiply(round_two_planes(high, low), from_bits(s[$scale + line - $start]));
  x[target_of(row, 0u, n)] = canonical(multiply(y, exp2_int(e)), row / $inner);
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_id) local: vec3u) {
  zero = m[0];
  let lane = local.x;
  let across = lane % 16u;  // four outputs each, and four more
  let down = lane / 16u;    // four rows each
  let count = m[1u + $set] * $inner;
  let first_row = group.y * 64u;
  let first_n = max($start, $base) - $base + group.x * 128u;
  let units = $units;
  {{DECLARED}}
  for (var unit0 = 0u; unit0 < units; unit0 += STRETCH / 4u) {
    workgroupBarrier();
    {
      let row = lane / 4u;  // 64 rows, four units each
      let unit = unit0 + lane % 4u;
      let record = ($q + min(first_row + row, count - 1u) * $size) / 4u;
      let there = unit < units;
      let high = select(vec4u(0u), q[record + min(unit, units - 1u)], there);
      let low = select(vec4u(0u), q[record + units + min(unit, units - 1u)], there);
      for (var k = 0u; k < 4u; k++) {
        let place = ((lane % 4u) * 4u + k) * 16u + row / 4u;
        highs[place][row % 4u] = high[k];
        lows[place][row % 4u] = low[k];
      }
    }
    for (var part = 0u; part < 2u; part++) {
      let output = part * 64u + lane / 4u;
      let unit = unit0 + lane % 4u;
      let line = min(first_n + output + $base, $stop - 1u) - $start;
      let found = codes[line * units + min(unit, units - 1u)];
      let code = select(vec4u(0u), found, unit < units);
      for (var k = 0u; k < 4u; k++) {
        columns[((lane % 4u) * 4u + k) * 32u + output / 4u][output % 4u] = code[k];
      }
    }
    workgroupBarrier();
    for (var k0 = 0u; k0 < STRETCH; k0 += 2u) {
      {{SUMS}}
    }
  }
  let row = first_row + down * 4u;
  let n = first_n + across * 4u;  // and 64 further on
  {{FINISHED}}
}
