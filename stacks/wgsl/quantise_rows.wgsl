// Row `group` of x [rows, n] as two planes and an exponent.

var<workgroup> lanes: array<u32, 256>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_id) local: vec3u) {
  let n = p[1];
  var largest = 0u;
  for (var i = local.x; i < n; i += 256u) { largest = max(largest, x[group.x * n + i] & 0x7fffffffu); }
  lanes[local.x] = largest;
  for (var half = 128u; half > 0u; half /= 2u) {
    workgroupBarrier();
    if (local.x < half) { lanes[local.x] = max(lanes[local.x], lanes[local.x + half]); }
  }
  workgroupBarrier();
  largest = lanes[0];
  let empty = largest < SMALLEST_BITS;
  let e = i32((max(largest, SMALLEST_BITS) + 0x20000u) >> 23u) - 141;
  for (var i = local.x; i < n; i += 256u) {
    let scaled = multiply(from_bits(x[group.x * n + i]), exp2_int(-e));
    let q = select(i32(rint(scaled)), 0, empty);
    let carry = (q + 128) >> 8u;
    high[group.x * n + i] = u32(carry);
    low[group.x * n + i] = u32(q - (carry << 8u));
  }
  if (local.x == 0u) { exponent[group.x] = u32(e); }
}
