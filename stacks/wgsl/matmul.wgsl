// One output a thread. q [2, M, W] and codes [PLANES, N, W] hold int8 planes, four a word;
// scales [2, N, blocks] the scales and minima; p = zero, M, N, W, words a block, blocks, PLANES,
// words a sub-block (0: no minima, offsets unread).

fn block_term(m: u32, n: u32, block: u32) -> f32 {
  let rows = p[1];
  let columns = p[2];
  let width = p[3];
  let sub = p[7];
  let first = block * p[4];
  let last = min(first + p[4], width);
  var hh = 0;
  var middle = 0;
  var ll = 0;
  var j = 0;
  for (var k = first; k < last; k++) {
    let high = q[m * width + k];
    let low = q[(rows + m) * width + k];
    let code = codes[n * width + k];
    hh += dot4I8Packed(high, code);
    if (p[6] == 2u) {
      let second = codes[(columns + n) * width + k];
      middle += dot4I8Packed(high, second) + dot4I8Packed(low, code);
      ll += dot4I8Packed(low, second);
    } else {
      ll += dot4I8Packed(low, code);
    }
    if (sub > 0u) {
      let sum = dot4I8Packed(high, 0x01010101u) * 256 + dot4I8Packed(low, 0x01010101u);
      j += sum * i32(offsets[n * (width / sub) + k / sub]);
    }
  }
  var dot: f32;
  if (p[6] == 2u) { dot = round_three_planes(hh, middle, ll); } else { dot = round_two_planes(hh, ll); }
  var term = multiply(dot, from_bits(scales[n * p[5] + block]));
  if (sub > 0u) {
    let minimum = from_bits(scales[(columns + n) * p[5] + block]);
    term = add(term, multiply(round_int32(j), minimum));
  }
  return term;
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
  let i = id.x + id.y * groups.x * 64u;
  if (i >= p[1] * p[2]) { return; }
  let m = i / p[2];
  let n = i % p[2];
  var y = 0.0;
  for (var first = 0u; first < p[5]; first += 8u) {
    var run = 0.0;
    for (var block = first; block < min(first + 8u, p[5]); block++) {
      run = add(run, block_term(m, n, block));
    }
    y = add(y, run);
  }
  out[i] = bitcast<u32>(snapped(multiply(y, exp2_int(i32(exponent[m])))));
}
