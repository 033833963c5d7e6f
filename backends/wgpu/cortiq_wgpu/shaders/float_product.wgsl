// Products of float rows and a float matrix: one output a workgroup, in canonical order, of
// snapped products.

@group(0) @binding(4) var<storage, read> codes: array<u32>;

var<workgroup> lanes: array<f32, 256>;

fn target_of(row: u32, slot: u32, n: u32) -> u32 {
  {{TARGET}}
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_id) local: vec3u) {
  zero = m[0];
  let lane = local.x;
  var n = group.x;
  let row = group.y;
  let first = row;
  let slot = group.z;
  {{CHOICE}}
  if (n >= $n || line < $start || line >= $stop) { return; }
  line -= $start;
  let from_ = $x + {{RECORD}} * $k;
  var sum = 0.0;
  for (var i = lane; i < $k; i += 256u) {
    let value = multiply(from_bits(x[from_ + i]), from_bits(codes[line * $k + i]));
    sum = add(sum, from_bits(canonical(value, row / $inner)));
  }
  lanes[lane] = sum;
  for (var half = 128u; half > 0u; half /= 2u) {
    workgroupBarrier();
    if (lane < half) { lanes[lane] = add(lanes[lane], lanes[lane + half]); }
  }
  if (lane == 0u) {
    x[target_of(row, slot, n)] = canonical(lanes[0], row / $inner);
  }
}
