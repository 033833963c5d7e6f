// One element of x [rows, heads, width] a thread; p = zero, count, heads, width, pairs, half?.

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
  let at = id.x + id.y * groups.x * 256u;
  if (at >= p[1]) { return; }
  let pairs = p[4];
  let i = at % p[3];
  let row = at / (p[2] * p[3]);
  if (i >= 2u * pairs) { out[at] = x[at]; return; }
  var pair = i / 2u;
  var first = i % 2u == 0u;
  var distance = 1u;
  if (p[5] == 1u) {
    pair = i % pairs;
    first = i < pairs;
    distance = pairs;
  }
  let partner = select(at - distance, at + distance, first);
  let along = multiply(from_bits(x[at]), from_bits(cos_table[row * pairs + pair]));
  let across = multiply(from_bits(x[partner]), from_bits(sin_table[row * pairs + pair]));
  let y = add(along, select(across, -across, first));
  out[at] = bitcast<u32>(snapped(y));
}
