// A token drawn from a row: bias, penalties, temperature, filters as thresholds on (distance, id),
// and the largest of distance + noise. See `cortiq.numerics.sampling`.
//
// The row's block in the batch: temperature 0?, 1/T, repetition, 1/repetition, presence, frequency,
// top_k, top_p, min_p (both in 2^-24; 0 is off), seed (2), choice, position, then count and place of
// bias ids (values follow), count and place of seen ids (counts follow), place of the mask or 0.
// Per id in x at `work`: a key that orders as the distance does (0: not allowed), then the weight
// h*2^20 + l, h and l below or at 2^20.

var<private> keys: u32;
var<private> highs: u32;
var<private> lows: u32;

fn allowed(d: u32, id: u32) -> bool {
  let mask = m[d + 17u];
  return mask == 0u || ((m[mask + id / 32u] >> (id % 32u)) & 1u) != 0u;
}

fn barrier() {
  storageBarrier();
  workgroupBarrier();
}

fn adjust(d: u32, row: u32, lane: u32) {
  for (var i = lane; i < m[d + 13u]; i += LANES) {
    let id = m[m[d + 14u] + i];
    if (allowed(d, id)) {
      let bias = from_bits(m[m[d + 14u] + m[d + 13u] + i]);
      x[keys + id] = canonical(add(from_bits(x[keys + id]), bias), row);
    }
  }
  barrier();
  for (var i = lane; i < m[d + 15u]; i += LANES) {
    let id = m[m[d + 16u] + i];
    if (!allowed(d, id)) { continue; }
    var v = from_bits(x[keys + id]);
    if (m[d + 2u] != 0x3f800000u) {
      v = multiply(v, from_bits(select(m[d + 2u], m[d + 3u], v > 0.0)));
    }
    if ((m[d + 4u] & 0x7fffffffu) != 0u) { v = subtract(v, from_bits(m[d + 4u])); }
    if ((m[d + 5u] & 0x7fffffffu) != 0u) {
      let times = f32(m[m[d + 16u] + m[d + 15u] + i]);
      v = subtract(v, multiply(from_bits(m[d + 5u]), times));
    }
    x[keys + id] = canonical(v, row);
  }
  barrier();
}

// Keys and weights of the distances.
fn spread(d: u32, row: u32, lane: u32) {
  var largest = 0u;
  for (var i = lane; i < $n; i += LANES) {
    if (!allowed(d, i)) { continue; }
    let scaled = canonical(multiply(from_bits(x[keys + i]), from_bits(m[d + 1u])), row);
    x[keys + i] = scaled;
    largest = max(largest, order_of(scaled));
  }
  let highest = from_bits(bits_of(fold_max(lane, LANES, largest)));
  for (var i = lane; i < $n; i += LANES) {
    if (!allowed(d, i)) { x[keys + i] = 0u; continue; }
    let distance = canonical(subtract(from_bits(x[keys + i]), highest), row);
    let scaled = multiply(exp_(from_bits(distance)), 1048576.0);
    let h = u32(scaled);
    x[keys + i] = order_of(distance);
    x[highs + i] = h;
    x[lows + i] = u32(multiply(subtract(scaled, f32(h)), 1048576.0));
  }
  barrier();
}

struct Bound { key: u32, id: u32 }  // keeps what has a larger key, or this one and at most this id

fn keeps(bound: Bound, key: u32, id: u32) -> bool {
  return key > bound.key || (key == bound.key && id <= bound.id);
}

// 64-bit integers are (low, high).
fn plus(a: vec2u, b: vec2u) -> vec2u {
  let low = a.x + b.x;
  return vec2u(low, a.y + b.y + select(0u, 1u, low < a.x));
}
fn minus(a: vec2u, b: vec2u) -> vec2u {
  return vec2u(a.x - b.x, a.y - b.y - select(0u, 1u, a.x < b.x));
}
fn below(a: vec2u, b: vec2u) -> bool { return a.y < b.y || (a.y == b.y && a.x < b.x); }

// Bins of one digit: counts, or weights in limbs of 10 bits, whose sums cannot overflow: there are at
// most 2^21 ids.
var<workgroup> bins: array<atomic<u32>, 1024>;
var<workgroup> ranks: array<vec2u, 256>;  // what the bins from the first one on hold
var<workgroup> digit: u32;

fn tally(bin: u32, id: u32, weighted: bool) {
  if (!weighted) {
    atomicAdd(&bins[bin], 1u);
    return;
  }
  let h = x[highs + id];
  let l = x[lows + id];
  if (l > 0u) {
    atomicAdd(&bins[bin], l & 1023u);
    atomicAdd(&bins[256u + bin], l >> 10u);
  }
  if (h > 0u) {
    atomicAdd(&bins[512u + bin], h & 1023u);
    atomicAdd(&bins[768u + bin], h >> 10u);
  }
}

// One id's part in a digit: of its key, among those that begin as `key` does, from the highest on;
// or (by_id) of itself, among those with this key, from the lowest on.
fn consider(i: u32, outer: Bound, prefix: Bound, shift: u32, by_id: bool, weighted: bool) {
  if (i >= $n) { return; }
  let key = x[keys + i];
  if (key == 0u || !keeps(outer, key, i)) { return; }
  if (by_id) {
    if (key == prefix.key && (i >> shift) >> 8u == (prefix.id >> shift) >> 8u) {
      tally((i >> shift) & 255u, i, weighted);
    }
  } else if ((key >> shift) >> 8u == (prefix.key >> shift) >> 8u) {
    tally(255u - ((key >> shift) & 255u), i, weighted);
  }
}

// The first bin with which at least `rest` is reached, 256 if none is; `ranks` is left.
fn chosen_bin(lane: u32, rest: vec2u, weighted: bool) -> u32 {
  var sum = vec2u(atomicLoad(&bins[lane]), 0u);
  if (weighted) {
    let l1 = atomicLoad(&bins[256u + lane]);
    let h0 = atomicLoad(&bins[512u + lane]);
    let h1 = atomicLoad(&bins[768u + lane]);
    sum = plus(sum, vec2u(l1 << 10u, l1 >> 22u));
    sum = plus(sum, vec2u(h0 << 20u, h0 >> 12u));
    sum = plus(sum, vec2u(h1 << 30u, h1 >> 2u));
  }
  ranks[lane] = sum;
  if (lane == 0u) { digit = 256u; }
  for (var step = 1u; step < LANES; step *= 2u) {
    workgroupBarrier();
    let before = ranks[lane - min(lane, step)];
    workgroupBarrier();
    if (lane >= step) { ranks[lane] = plus(ranks[lane], before); }
  }
  workgroupBarrier();
  var earlier = vec2u(0u);
  if (lane > 0u) { earlier = ranks[lane - 1u]; }
  let first = lane == 0u || below(earlier, rest);
  if (first && !below(ranks[lane], rest)) { digit = lane; }
  workgroupBarrier();
  return workgroupUniformLoad(&digit);
}

// The largest bound that, of what `outer` keeps, keeps `least` ids, or ids of this weight.
fn bound_of(lane: u32, outer: Bound, least: vec2u, weighted: bool) -> Bound {
  var prefix = Bound(0u, 0u);
  var rest = least;
  for (var turn = 0u; turn < 7u; turn++) {  // four digits of the key, three of the id
    let by_id = turn > 3u;
    let shift = select(24u - 8u * turn, 48u - 8u * turn, by_id);
    for (var i = lane; i < 1024u; i += LANES) { atomicStore(&bins[i], 0u); }
    workgroupBarrier();
    for (var i = lane; i < $n; i += 4u * LANES) {
      consider(i, outer, prefix, shift, by_id, weighted);
      consider(i + LANES, outer, prefix, shift, by_id, weighted);
      consider(i + 2u * LANES, outer, prefix, shift, by_id, weighted);
      consider(i + 3u * LANES, outer, prefix, shift, by_id, weighted);
    }
    workgroupBarrier();
    let bin = chosen_bin(lane, rest, weighted);
    if (bin == 256u) { return Bound(1u, 0xffffffffu); }  // there is not so much
    if (bin > 0u) { rest = minus(rest, ranks[bin - 1u]); }
    if (by_id) {
      prefix.id |= bin << shift;
    } else {
      prefix.key |= (255u - bin) << shift;
    }
    workgroupBarrier();
  }
  return prefix;
}

fn weight_at(i: u32) -> vec2u {
  return plus(vec2u(x[highs + i] << 20u, x[highs + i] >> 12u), vec2u(x[lows + i], 0u));
}

// The weight of what a bound keeps.
fn weight_of(lane: u32, bound: Bound) -> vec2u {
  var sum = vec2u(0u);
  for (var i = lane; i < $n; i += LANES) {
    let key = x[keys + i];
    if (key != 0u && keeps(bound, key, i)) { sum = plus(sum, weight_at(i)); }
  }
  ranks[lane] = sum;
  for (var half = LANES / 2u; half > 0u; half /= 2u) {
    workgroupBarrier();
    if (lane < half) { ranks[lane] = plus(ranks[lane], ranks[lane + half]); }
  }
  workgroupBarrier();
  let total = ranks[0];
  workgroupBarrier();
  return total;
}

// ceil(total*f/2^24), f at most 2^24, from 16-bit limbs.
fn share_of(total: vec2u, f: u32) -> vec2u {
  let t = vec4u(total.x & 0xffffu, total.x >> 16u, total.y & 0xffffu, total.y >> 16u);
  var limbs: array<u32, 7>;
  for (var i = 0u; i < 4u; i++) {
    let low = t[i] * (f & 0xffffu);
    let high = t[i] * (f >> 16u);
    limbs[i] += low & 0xffffu;
    limbs[i + 1u] += (low >> 16u) + (high & 0xffffu);
    limbs[i + 2u] += high >> 16u;
  }
  limbs[0] += 0xffffu;
  limbs[1] += 0xffu;
  for (var i = 0u; i < 6u; i++) {
    limbs[i + 1u] += limbs[i] >> 16u;
    limbs[i] &= 0xffffu;
  }
  let low = (limbs[1] >> 8u) | (limbs[2] << 8u) | (limbs[3] << 24u);
  let high = (limbs[3] >> 8u) | (limbs[4] << 8u) | (limbs[5] << 24u);
  return vec2u(low, high);
}

fn multiply_high(a: u32, b: u32) -> u32 {
  let al = a & 0xffffu;
  let ah = a >> 16u;
  let bl = b & 0xffffu;
  let bh = b >> 16u;
  let cross = ah * bl + ((al * bl) >> 16u);
  let other = al * bh + (cross & 0xffffu);
  return ah * bh + (cross >> 16u) + (other >> 16u);
}

// The first word of Philox 4x32-10.
fn philox(counter: vec4u, key: vec2u) -> u32 {
  var c = counter;
  var k = key;
  for (var round = 0; round < 10; round++) {
    c = vec4u(multiply_high(M1, c.z) ^ c.y ^ k.x, M1 * c.z, multiply_high(M0, c.x) ^ c.w ^ k.y,
              M0 * c.x);
    k += vec2u(K0, K1);
  }
  return c.x;
}

fn uniform_(word: u32) -> f32 {
  let high = multiply(f32(word >> 8u), from_bits(0x33800000u));
  return add(high, multiply(f32(2u * (word & 255u) + 1u), from_bits(0x2f000000u)));
}

fn gumbel(word: u32) -> f32 {
  if (word < 0x80000000u) { return -log_(-log1p_(-uniform_(word))); }
  return -log_(-log_(uniform_(~word)));
}

fn chosen_of(d: u32, row: u32, lane: u32) -> u32 {
  spread(d, row, lane);
  var by_count = Bound(1u, 0xffffffffu);
  if (m[d + 6u] > 0u && m[d + 6u] < $n) {
    by_count = bound_of(lane, by_count, vec2u(m[d + 6u], 0u), false);
  }
  var by_weight = Bound(1u, 0xffffffffu);
  if (m[d + 7u] > 0u) {
    let total = weight_of(lane, by_count);
    by_weight = bound_of(lane, by_count, share_of(total, m[d + 7u]), true);
  }
  let least = vec2u(m[d + 8u] << 16u, m[d + 8u] >> 16u);
  var best = 0u;
  var at = 0xffffffffu;
  for (var i = lane; i < $n; i += LANES) {
    let key = x[keys + i];
    if (key == 0u || !keeps(by_count, key, i) || !keeps(by_weight, key, i)) { continue; }
    if (below(weight_at(i), least)) { continue; }
    let counter = vec4u(i, m[d + 12u], m[d + 11u], STREAM);
    let noise = gumbel(philox(counter, vec2u(m[d + 9u], m[d + 10u])));
    let order = order_of(bitcast<u32>(add(from_bits(bits_of(key)), noise)));
    if (order > best) { best = order; at = i; }
  }
  return largest_of(lane, best, at);
}

fn stage(row: u32, lane: u32) {
  let draws = about(row, 7u);
  if (draws == 0u) { return; }
  let d = m[draws + $number];
  if (d == 0u) { return; }
  keys = $work + row * 3u * $n;
  highs = keys + $n;
  lows = highs + $n;
  for (var i = lane; i < $n; i += LANES) { x[keys + i] = x[$x + row * $n + i]; }
  barrier();
  adjust(d, row, lane);
  var token = 0u;
  if (m[d] == 1u) {
    var best = 0u;
    var at = 0xffffffffu;
    for (var i = lane; i < $n; i += LANES) {
      let key = order_of(x[keys + i]);
      if (allowed(d, i) && key > best) { best = key; at = i; }
    }
    token = largest_of(lane, best, at);
  } else {
    token = chosen_of(d, row, lane);
  }
  if (lane == 0u) { x[$out + row] = token; }
}
