// The lowest index of the largest value of row `group`: integers that order as the floats do.

var<workgroup> keys: array<i32, 256>;
var<workgroup> indices: array<u32, 256>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_id) local: vec3u) {
  let n = p[1];
  var best = i32(-0x7fffffff);
  var at = n;
  for (var i = local.x; i < n; i += 256u) {
    let bits = bitcast<i32>(x[group.x * n + i]);
    let key = bits ^ ((bits >> 31u) & 0x7fffffff);
    if (key > best) { best = key; at = i; }
  }
  keys[local.x] = best;
  indices[local.x] = at;
  for (var half = 128u; half > 0u; half /= 2u) {
    workgroupBarrier();
    if (local.x < half) {
      let other = keys[local.x + half];
      let tie = other == keys[local.x] && indices[local.x + half] < indices[local.x];
      if (other > keys[local.x] || tie) {
        keys[local.x] = other;
        indices[local.x] = indices[local.x + half];
      }
    }
  }
  if (local.x == 0u) { out[group.x] = indices[0]; }
}
