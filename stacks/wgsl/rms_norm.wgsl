// Row `group` of x [rows, n] over its root mean square; p = zero, n, RN(1/n), eps.

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_id) local: vec3u) {
  let n = p[1];
  var sum = 0.0;
  for (var i = local.x; i < n; i += 256u) {
    let value = from_bits(x[group.x * n + i]);
    sum = add(sum, multiply(value, value));
  }
  lanes[local.x] = sum;
  let mean = multiply(fold(local.x), from_bits(p[2]));
  let r = divide(1.0, square_root(add(mean, from_bits(p[3]))));
  for (var i = local.x; i < n; i += 256u) {
    let scaled = multiply(multiply(from_bits(x[group.x * n + i]), r), from_bits(weight[i]));
    out[group.x * n + i] = bitcast<u32>(snapped(scaled));
  }
}
