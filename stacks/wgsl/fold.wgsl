// Lane i += lane i+h for h = 128, 64, ..., 1, over 256 values that each lane has written.

var<workgroup> lanes: array<f32, 256>;

fn fold(lane: u32) -> f32 {
  for (var half = 128u; half > 0u; half /= 2u) {
    workgroupBarrier();
    if (lane < half) { lanes[lane] = add(lanes[lane], lanes[lane + half]); }
  }
  workgroupBarrier();
  return lanes[0];
}
