// Quantised rows turned for `tile.wgsl`: values of one place of all rows lie side by side, in one
// plane or two; behind them sums of 16 columns, and the rows' powers of two.

@group(0) @binding(4) var<storage, read> q: array<vec4u>;
@group(0) @binding(5) var<storage, read_write> turned: array<u32>;

const UNIT = {{UNIT}}u;  // values of 16 columns

fn byte_of(v: vec4u, i: u32) -> i32 {
  return bitcast<i32>(v[i / 4u] << (24u - 8u * (i % 4u))) >> 24u;
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_id) local: vec3u) {
  zero = m[0];
  let row = group.y * 64u + local.x;
  let unit = group.x;
  let count = m[1u + $set] * $inner;
  let pitch = $pitch;
  let units = $units;
  if (row >= pitch) { return; }
  let record = ($q + min(row, count - 1u) * $size) / 4u;
  let high = q[record + unit];
  let low = q[record + units + unit];
  for (var i = 0u; i < UNIT; i++) {
    let at = (unit * UNIT + i) * pitch + row;
    {{PUT}}
  }
  let sums = {{PLANES}}u * UNIT * units;
  turned[(sums + unit) * pitch + row] = q[record + 2u * units + unit / 4u][unit % 4u];
  if (unit == 0u) {
    let e = bitcast<i32>(q[record + $size / 4u - 1u].x);
    turned[(sums + units) * pitch + row] = bitcast<u32>(exp2_int(e));
  }
}
