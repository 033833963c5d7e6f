// A token drawn from a row: bias, penalties, temperature, filters as thresholds on (distance, id),
// and the largest of distance + noise. See `cortiq.numerics.sampling`.
//
// The row's block in the batch: temperature 0?, 1/T, repetition, 1/repetition, presence, frequency,
// top_k, top_p, min_p (both in 2^-24; 0 is off), seed (2), choice, position, then count and place of
// bias ids (values follow), count and place of seen ids (counts follow), place of the mask or 0.
// Per id in x at `work`: a key that orders as the distance does (0: not allowed), then the weight
// h*2^20 + l, h and l below or at 2^20; behind them both bounds, the largest value of each part, and the
// best of each part. A part is what one workgroup sees of a row: every `span`-th 256 ids.
//
// Phases, each a dispatch: adjust and weigh by parts, bound, pick by parts, end.

var<private> keys: u32;
var<private> highs: u32;
var<private> lows: u32;
var<private> bounds: u32;
var<private> peaks: u32;
var<private> picks: u32;

fn allowed(d: u32, id: u32) -> bool {
  let mask = m[d + 17u];
  return mask == 0u || ((m[mask + id / 32u] >> (id % 32u)) & 1u) != 0u;
}

fn barrier() {
  storageBarrier();
  workgroupBarrier();
}

fn is_mine(id: u32) -> bool { return id % span / LANES == start / LANES; }

fn adjust(d: u32, row: u32, lane: u32) {
  for (var i = start + lane; i < $n; i += span) { x[keys + i] = x[$x + row * $n + i]; }
  barrier();
  for (var i = lane; i < m[d + 13u]; i += LANES) {
    let id = m[m[d + 14u] + i];
    if (is_mine(id) && allowed(d, id)) {
      let bias = from_bits(m[m[d + 14u] + m[d + 13u] + i]);
      x[keys + id] = canonical(add(from_bits(x[keys + id]), bias), row);
    }
  }
  barrier();
  for (var i = lane; i < m[d + 15u]; i += LANES) {
    let id = m[m[d + 16u] + i];
    if (!is_mine(id) || !allowed(d, id)) { continue; }
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
  if (m[d] == 1u) { return; }
  var largest = 0u;
  for (var i = start + lane; i < $n; i += span) {
    if (!allowed(d, i)) { continue; }
    let scaled = canonical(multiply(from_bits(x[keys + i]), from_bits(m[d + 1u])), row);
    x[keys + i] = scaled;
    largest = max(largest, order_of(scaled));
  }
  largest = fold_max(lane, LANES, largest);
  if (lane == 0u) { x[peaks + start / LANES] = largest; }
}

// Keys and weights of the distances.
fn weigh(d: u32, row: u32, lane: u32) {
  if (m[d] == 1u) { return; }
  var largest = 0u;
  for (var i = lane; i < $parts; i += LANES) { largest = max(largest, x[peaks + i]); }
  let highest = from_bits(bits_of(fold_max(lane, LANES, largest)));
  for (var i = start + lane; i < $n; i += span) {
    if (!allowed(d, i)) { x[keys + i] = 0u; continue; }
    let distance = canonical(subtract(from_bits(x[keys + i]), highest), row);
    let scaled = multiply(exp_(from_bits(distance)), 1048576.0);
    let h = u32(scaled);
    x[keys + i] = order_of(distance);
    x[highs + i] = h;
    x[lows + i] = u32(multiply(subtract(scaled, f32(h)), 1048576.0));
  }
}

{{SEARCH}}
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

// What both filters keep.
fn bound(d: u32, row: u32, lane: u32) {
  if (m[d] == 1u) { return; }
  var by_count = Bound(1u, 0xffffffffu);
  if (m[d + 6u] > 0u && m[d + 6u] < $n) {
    by_count = bound_of(lane, by_count, vec2u(m[d + 6u], 0u), false);
  }
  var by_weight = Bound(1u, 0xffffffffu);
  if (m[d + 7u] > 0u) {
    let total = weight_of(lane, by_count);
    by_weight = bound_of(lane, by_count, share_of(total, m[d + 7u]), true);
  }
  if (lane == 0u) {
    x[bounds] = by_count.key;
    x[bounds + 1u] = by_count.id;
    x[bounds + 2u] = by_weight.key;
    x[bounds + 3u] = by_weight.id;
  }
}

// An id's order: of its value, or of its distance and noise; 0 where it cannot be drawn.
fn order_at(d: u32, i: u32) -> u32 {
  let key = x[keys + i];
  if (m[d] == 1u) { return select(0u, order_of(key), allowed(d, i)); }
  let by_count = Bound(x[bounds], x[bounds + 1u]);
  let by_weight = Bound(x[bounds + 2u], x[bounds + 3u]);
  if (key == 0u || !keeps(by_count, key, i) || !keeps(by_weight, key, i)) { return 0u; }
  if (below(weight_at(i), vec2u(m[d + 8u] << 16u, m[d + 8u] >> 16u))) { return 0u; }
  let counter = vec4u(i, m[d + 12u], m[d + 11u], STREAM);
  let noise = gumbel(philox(counter, vec2u(m[d + 9u], m[d + 10u])));
  return order_of(bitcast<u32>(add(from_bits(bits_of(key)), noise)));
}

fn pick(d: u32, row: u32, lane: u32) {
  var best = 0u;
  var at = 0xffffffffu;
  for (var i = start + lane; i < $n; i += span) {
    let order = order_at(d, i);
    if (order > best) { best = order; at = i; }
  }
  let found = largest_of(lane, best, at);
  if (lane == 0u) {
    x[picks + start / LANES * 2u] = words[0];
    x[picks + start / LANES * 2u + 1u] = found;
  }
}

fn end(d: u32, row: u32, lane: u32) {
  var best = 0u;
  var at = 0xffffffffu;
  if (lane < $parts) {
    best = x[picks + lane * 2u];
    at = x[picks + lane * 2u + 1u];
  }
  let token = largest_of(lane, best, at);
  if (lane == 0u) { x[$out + row] = token; }
}

fn stage(row: u32, lane: u32) {
  let draws = about(row, 7u);
  if (draws == 0u) { return; }
  let d = m[draws + $number];
  if (d == 0u) { return; }
  keys = $work + row * $each;
  highs = keys + $n;
  lows = highs + $n;
  bounds = lows + $n;
  peaks = bounds + 4u;
  picks = peaks + $parts;
  {{PHASE}}(d, row, lane);
}
