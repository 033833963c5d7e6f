// A row's head over one run of 16 tiles, or over all of them: 64 lanes are the keys of a tile, then
// the channels. Writes total, its exponent, the output's exponent and the output per part.

@group(0) @binding(4) var<storage, read> q: array<u32>;
@group(0) @binding(5) var<storage, read> pool: array<u32>;
@group(0) @binding(6) var<storage, read_write> scratch: array<u32>;

const NONE = -1048576;      // exponent of an empty state, below every real one
const RUNS = {{RUNS}}u;  // runs that one dispatch goes through
const CHANNELS = {{CHANNELS}}u;  // channels a lane

struct State { value: f32, exponent: i32 }

var<workgroup> peak: atomic<i32>;
var<workgroup> top: atomic<i32>;
var<workgroup> mass: atomic<i32>;
var<workgroup> seen_keys: atomic<u32>;
var<workgroup> weight_bytes: array<u32, 128>;  // high bytes of 64 weights, then low ones
var<workgroup> high_words: array<u32, 16>;
var<workgroup> low_words: array<u32, 16>;

// 2^n, or 0 below -60.
fn delta(n: i32) -> f32 { return select(exp2_int(max(n, -60)), 0.0, n < -60); }

fn combine(a: State, b: State) -> State {
  let most = max(a.exponent, b.exponent);
  let left = multiply(a.value, delta(a.exponent - most));
  return State(add(left, multiply(b.value, delta(b.exponent - most))), most);
}

// RN(q.k) of a record and a lane's key.
fn dot(record: u32, keys: u32) -> f32 {
  let words = $key_words;
  let low_plane = $key_units * 4u;
  var high = 0;
  var middle = 0;
  var low = 0;
  for (var i = 0u; i < words; i++) {
    let qh = q[record + i];
    let ql = q[record + low_plane + i];
    let kh = pool[keys + i * 64u];
    let kl = pool[keys + (words + i) * 64u];
    high += dot4(qh, kh);
    middle += dot4(qh, kl) + dot4(ql, kh);
    low += dot4(ql, kl);
  }
  return round_three_planes(high, middle, low);
}

// RN(sum of weight*v[channel]) over a tile.
fn mixed(values: u32, c: u32) -> f32 {
  let channels = $channels;
  var high = 0;
  var middle = 0;
  var low = 0;
  for (var k = 0u; k < 16u; k++) {
    let vh = pool[values + k * channels + c];
    let vl = pool[values + (16u + k) * channels + c];
    let wh = high_words[k];
    let wl = low_words[k];
    high += dot4(wh, vh);
    middle += dot4(wh, vl) + dot4(wl, vh);
    low += dot4(wl, vl);
  }
  return round_three_planes(high, middle, low);
}

fn capped(s: f32) -> f32 {
  if ($cap == 0u) { return s; }
  let bounded = tanh_(multiply(s, from_bits($inverse_cap)));
  return multiply(multiply(from_bits($cap), bounded), LOG2_E());
}

fn is_chosen(row: u32, head: u32, key: u32) -> bool { {{CHOSEN}} }

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_id) local: vec3u) {
  zero = m[0];
  let lane = local.x;
  let head = group.x;
  let row = group.y;
  let parts = m[8];
  let channels = $channels;
  let key_words = $key_words;
  let block = 128u * key_words + 32u * channels + 128u;
  let kv_head = head / ($heads / $kv_heads);
  let record = $q + (row * $heads + head) * $key_size;
  let q_exponent = bitcast<i32>(q[record + $key_size - 4u]);
  let pages = about(row, 2u);
  let last = {{LAST}} + 1u;
  let first = select(0u, max(last, $window) - $window, $window > 0u);
  let one = parts > 1u;
  // Runs side by side, or (parts is 1) one after the other, going on from what scratch holds.
  let from_run = select($begin * 1024u, first / 1024u * 1024u + group.z * 1024u, one);
  let begin = max(from_run, first / 1024u * 1024u);
  let end = min(last, select(($begin + RUNS) * 1024u, begin + 1024u, one));
  let at = ((row * $heads + head) * parts + group.z) * (channels + 3u);
  var total = State(0.0, NONE);
  var sums: array<State, CHANNELS>;
  for (var c = 0u; c < CHANNELS; c++) { sums[c] = State(0.0, NONE); }
  if ($begin > 0u) {
    total = State(from_bits(scratch[at]), bitcast<i32>(scratch[at + 1u]));
    let exponent = bitcast<i32>(scratch[at + 2u]);
    for (var c = 0u; c < CHANNELS; c++) {
      let channel = lane + 64u * c;
      if (channel < channels) { sums[c] = State(from_bits(scratch[at + 3u + channel]), exponent); }
      else { sums[c].exponent = exponent; }
    }
    storageBarrier();
    workgroupBarrier();
  }
  for (var run = begin; run < end; run += 1024u) {
    var l = State(0.0, NONE);
    var o: array<State, CHANNELS>;
    for (var c = 0u; c < CHANNELS; c++) { o[c] = State(0.0, NONE); }
    for (var tile = max(run, first / 64u * 64u); tile < min(run + 1024u, last); tile += 64u) {
      let base = (m[pages + tile / 64u] * $kv_heads + kv_head) * block;
      let exponents = base + block - 128u;
      let key = tile + lane;
      if (lane == 0u) {
        atomicStore(&peak, NONE);
        atomicStore(&top, NONE);
        atomicStore(&mass, 0);
        atomicStore(&seen_keys, 0u);
      }
      workgroupBarrier();
      let seen = key >= first && key < last && is_chosen(row, head, key);
      var kappa = NONE;
      var epsilon = NONE;
      var fraction = 0.0;
      if (seen) {
        let e = q_exponent + bitcast<i32>(pool[exponents + lane]);
        let scaled = multiply(multiply(dot(record, base + lane), from_bits($factor)), exp2_int(e));
        let s = clamp(capped(scaled), -16384.0, 16384.0);
        let whole = rint(s);
        kappa = i32(whole);
        fraction = exp2g(subtract(s, whole));
        epsilon = kappa + bitcast<i32>(pool[exponents + 64u + lane]);
        atomicMax(&peak, kappa);
        atomicMax(&top, epsilon);
        atomicOr(&seen_keys, 1u);
      }
      workgroupBarrier();
      let K = atomicLoad(&peak);
      let E = atomicLoad(&top);
      var weight = 0;
      if (seen) {
        atomicAdd(&mass, i32(rint(multiply(fraction, delta(21 + kappa - K)))));
        weight = i32(rint(multiply(fraction, delta(14 + epsilon - E))));
      }
      let carry = (weight + 128) >> 8u;
      weight_bytes[lane] = (u32(carry) & 255u) << (8u * (lane % 4u));
      weight_bytes[64u + lane] = (u32(weight) & 255u) << (8u * (lane % 4u));
      workgroupBarrier();
      let four = 64u * (lane / 16u) + 4u * (lane % 16u);
      if (lane < 32u) {
        let packed = weight_bytes[four] | weight_bytes[four + 1u] | weight_bytes[four + 2u]
          | weight_bytes[four + 3u];
        if (lane < 16u) { high_words[lane] = packed; } else { low_words[lane - 16u] = packed; }
      }
      workgroupBarrier();
      if (atomicLoad(&seen_keys) != 0u) {
        l = combine(l, State(round_int32(atomicLoad(&mass)), K));
        for (var c = 0u; c < CHANNELS; c++) {
          let channel = lane + 64u * c;
          if (channel < channels) {
            o[c] = combine(o[c], State(mixed(base + 128u * key_words, channel), E));
          }
        }
      }
      workgroupBarrier();
    }
    if (l.exponent != NONE) {
      total = combine(total, l);
      for (var c = 0u; c < CHANNELS; c++) { sums[c] = combine(sums[c], o[c]); }
    }
  }
  if (lane == 0u) {
    scratch[at] = bitcast<u32>(total.value);
    scratch[at + 1u] = bitcast<u32>(total.exponent);
    scratch[at + 2u] = bitcast<u32>(sums[0].exponent);
  }
  for (var c = 0u; c < CHANNELS; c++) {
    let channel = lane + 64u * c;
    if (channel < channels) { scratch[at + 3u + channel] = bitcast<u32>(sums[c].value); }
  }
}
