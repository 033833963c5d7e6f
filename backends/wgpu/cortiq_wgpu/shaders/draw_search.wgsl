// The bounds of a draw's filters: what they keep of a row's keys, found digit by digit.

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
