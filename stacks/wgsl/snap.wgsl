// Canonical rows of x [rows, n], and a fault flag each.

var<workgroup> fault: array<u32, 256>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_id) local: vec3u) {
  let n = p[1];
  var bad = 0u;
  for (var i = local.x; i < n; i += 256u) {
    let bits = x[group.x * n + i];
    let size = bits & 0x7fffffffu;
    bad |= select(0u, 1u, size >= LARGEST_BITS);
    out[group.x * n + i] = select(0u, bits, size >= SMALLEST_BITS && size < LARGEST_BITS);
  }
  fault[local.x] = bad;
  workgroupBarrier();
  if (local.x == 0u) {
    for (var i = 0u; i < 256u; i++) { bad |= fault[i]; }
    faults[group.x] = bad;
  }
}
