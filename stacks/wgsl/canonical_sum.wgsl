// The sum of row `group` of x [rows, n]: lane i adds x[i], x[i+256], ... in order, then lanes fold.

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_id) local: vec3u) {
  let n = p[1];
  var sum = 0.0;
  for (var i = local.x; i < n; i += 256u) { sum = add(sum, from_bits(x[group.x * n + i])); }
  lanes[local.x] = sum;
  let total = fold(local.x);
  if (local.x == 0u) { out[group.x] = bitcast<u32>(total); }
}
