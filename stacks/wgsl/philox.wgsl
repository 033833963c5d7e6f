// Four words from each counter [n, 4] and key [n, 2]; p = zero, n.

// The high word of a 32 x 32 bit product, from 16-bit limbs: WGSL has no 64-bit integers.
fn multiply_high(a: u32, b: u32) -> u32 {
  let al = a & 0xffffu;
  let ah = a >> 16u;
  let bl = b & 0xffffu;
  let bh = b >> 16u;
  let cross = ah * bl + ((al * bl) >> 16u);
  let other = al * bh + (cross & 0xffffu);
  return ah * bh + (cross >> 16u) + (other >> 16u);
}

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
  let i = id.x + id.y * groups.x * 256u;
  if (i >= p[1]) { return; }
  var c = vec4u(counters[4u * i], counters[4u * i + 1u], counters[4u * i + 2u], counters[4u * i + 3u]);
  var k0 = keys[2u * i];
  var k1 = keys[2u * i + 1u];
  for (var round = 0; round < 10; round++) {
    let high0 = multiply_high(M0, c.x);
    let high1 = multiply_high(M1, c.z);
    c = vec4u(high1 ^ c.y ^ k0, M1 * c.z, high0 ^ c.w ^ k1, M0 * c.x);
    k0 += K0;
    k1 += K1;
  }
  for (var lane = 0u; lane < 4u; lane++) { out[4u * i + lane] = c[lane]; }
}
