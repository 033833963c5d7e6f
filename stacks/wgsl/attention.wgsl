// One query and head a workgroup, one key of the tile a thread, then channels a thread.
// q [2, T, H, W], k [2, S, G, W] and v [2, S, G, V]: int8 planes, four a word; exponents of q [T, H],
// then k and v [S, G]; p = zero, T, H, S, G, W, V, window, sinks?, then four floats: c, RN(log2 e),
// the soft cap C (0: none), RN(1/C).

const NONE = -1048576;      // exponent of an empty state, below every real one
const CHANNELS = 4u;        // channels a thread: heads up to 256 wide

struct State { value: f32, exponent: i32 }
struct Score { kappa: i32, fraction: f32 }

var<workgroup> kappas: array<i32, 64>;
var<workgroup> epsilons: array<i32, 64>;
var<workgroup> masses: array<i32, 64>;
var<workgroup> weights: array<i32, 64>;

// 2^n, or 0 below -60.
fn delta(n: i32) -> f32 { return select(exp2_int(max(n, -60)), 0.0, n < -60); }

fn combine(a: State, b: State) -> State {
  let top = max(a.exponent, b.exponent);
  let left = multiply(a.value, delta(a.exponent - top));
  let right = multiply(b.value, delta(b.exponent - top));
  return State(add(left, right), top);
}

// kappa and g with 2^s = g*2^kappa.
fn score_of(value: f32) -> Score {
  let s = clamp(value, -16384.0, 16384.0);
  let k = rint(s);
  return Score(i32(k), exp2g(subtract(s, k)));
}

fn capped(s: f32) -> f32 {
  if (p[11] == 0u) { return s; }
  return multiply(multiply(from_bits(p[11]), tanh_(multiply(s, from_bits(p[12])))), from_bits(p[10]));
}

// RN(q.k), from dots of the planes.
fn dot(q_row: u32, k_row: u32) -> f32 {
  let width = p[5];
  let q_plane = p[1] * p[2] * width;
  let k_plane = p[3] * p[4] * width;
  var high = 0;
  var middle = 0;
  var low = 0;
  for (var i = 0u; i < width; i++) {
    let qh = q[q_row * width + i];
    let ql = q[q_plane + q_row * width + i];
    let kh = k[k_row * width + i];
    let kl = k[k_plane + k_row * width + i];
    high += dot4I8Packed(qh, kh);
    middle += dot4I8Packed(qh, kl) + dot4I8Packed(ql, kh);
    low += dot4I8Packed(ql, kl);
  }
  return round_three_planes(high, middle, low);
}

fn byte(word: u32, lane: u32) -> i32 { return bitcast<i32>(word << (24u - 8u * lane)) >> 24u; }

// RN(sum of weight*v[channel]) over the keys first..last-1 of a tile.
fn mix_values(tile: u32, first: u32, last: u32, g: u32, channel: u32) -> f32 {
  let plane = p[3] * p[4] * p[6];
  var high = 0;
  var middle = 0;
  var low = 0;
  for (var j = first; j < last; j++) {
    let at = (j * p[4] + g) * p[6] + channel / 4u;
    let vh = byte(v[at], channel % 4u);
    let vl = byte(v[plane + at], channel % 4u);
    let w = weights[j - tile];
    let wh = (w + 128) >> 8u;
    let wl = w - (wh << 8u);
    high += wh * vh;
    middle += wh * vl + wl * vh;
    low += wl * vl;
  }
  return round_three_planes(high, middle, low);
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_id) local: vec3u) {
  let lane = local.x;
  let row = group.x;  // query*H + head
  let head = row % p[2];
  let g = head / (p[2] / p[4]);
  let last = positions[row / p[2]] + 1u;
  let first = select(0u, max(last, p[7]) - p[7], p[7] > 0u);
  let width = p[6] * 4u;
  let k_exponents = p[1] * p[2];
  let v_exponents = k_exponents + p[3] * p[4];
  var total = State(0.0, NONE);
  var sums: array<State, CHANNELS>;
  for (var c = 0u; c < CHANNELS; c++) { sums[c] = State(0.0, NONE); }
  for (var run = first / 1024u * 1024u; run < last; run += 1024u) {
    var l = State(0.0, NONE);
    var o: array<State, CHANNELS>;
    for (var c = 0u; c < CHANNELS; c++) { o[c] = State(0.0, NONE); }
    for (var tile = max(run, first / 64u * 64u); tile < min(run + 1024u, last); tile += 64u) {
      let from_key = max(tile, first);
      let to_key = min(tile + 64u, last);
      let key = tile + lane;
      let seen = key >= from_key && key < to_key;
      var score = Score(NONE, 0.0);
      var epsilon = NONE;
      if (seen) {
        let e = i32(exponents[row]) + i32(exponents[k_exponents + key * p[4] + g]);
        let scaled = multiply(dot(row, key * p[4] + g), from_bits(p[9]));
        score = score_of(capped(multiply(scaled, exp2_int(e))));
        epsilon = score.kappa + i32(exponents[v_exponents + key * p[4] + g]);
      }
      workgroupBarrier();
      kappas[lane] = score.kappa;
      epsilons[lane] = epsilon;
      workgroupBarrier();
      var K = NONE;
      var E = NONE;
      for (var j = 0u; j < 64u; j++) {
        K = max(K, kappas[j]);
        E = max(E, epsilons[j]);
      }
      masses[lane] = i32(rint(multiply(score.fraction, delta(21 + score.kappa - K))));
      weights[lane] = i32(rint(multiply(score.fraction, delta(14 + epsilon - E))));
      workgroupBarrier();
      var L = 0;
      for (var j = 0u; j < 64u; j++) { L += masses[j]; }
      l = combine(l, State(round_int32(L), K));
      for (var c = 0u; c < CHANNELS; c++) {
        let channel = lane + 64u * c;
        if (channel < width) {
          o[c] = combine(o[c], State(mix_values(tile, from_key, to_key, g, channel), E));
        }
      }
    }
    total = combine(total, l);
    for (var c = 0u; c < CHANNELS; c++) { sums[c] = combine(sums[c], o[c]); }
  }
  if (p[8] > 0u) {
    let score = score_of(multiply(from_bits(sink[head]), from_bits(p[10])));
    total = combine(total, State(multiply(score.fraction, 2097152.0), score.kappa));
  }
  let inverse = divide(1.0, select(1.0, total.value, last > 0u));
  for (var c = 0u; c < CHANNELS; c++) {
    let channel = lane + 64u * c;
    if (channel < width) {
      let n = clamp(sums[c].exponent - total.exponent + 7, -126, 127);
      let y = multiply(multiply(sums[c].value, inverse), exp2_int(n));
      out[row * width + channel] = bitcast<u32>(snapped(y));
    }
  }
}
