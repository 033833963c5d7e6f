// The digest of x [n] by one workgroup; p = zero, n.

var<workgroup> sums: array<vec4u, 256>;

fn mix_word(value: u32) -> u32 {
  var word = (value ^ (value >> 16u)) * MIX0;
  word = (word ^ (word >> 15u)) * MIX1;
  return word ^ (word >> 16u);
}

@compute @workgroup_size(256)
fn main(@builtin(local_invocation_id) local: vec3u) {
  var sum = vec4u(0u);
  for (var i = local.x; i < p[1]; i += 256u) {
    let word = x[i] ^ mix_word(i + INDEX_KEY);
    sum += vec4u(
      mix_word(word + LANE0), mix_word(word + LANE1), mix_word(word + LANE2), mix_word(word + LANE3));
  }
  sums[local.x] = sum;
  for (var half = 128u; half > 0u; half /= 2u) {
    workgroupBarrier();
    if (local.x < half) { sums[local.x] += sums[local.x + half]; }
  }
  if (local.x == 0u) {
    for (var lane = 0u; lane < 4u; lane++) { out[lane] = sums[0][lane]; }
  }
}
