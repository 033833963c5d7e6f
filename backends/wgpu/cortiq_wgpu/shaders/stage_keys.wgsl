// The keys that a query scores best, by the sum over its heads; of keys that close a window of
// `every` rows. Scores of all to scratch, then the `top` largest, the lower position on equality.

fn of_head(row: u32, head: u32, keys: u32, exponent: i32) -> f32 {
  let record = $q + (row * $heads + head) * $key_size;
  let e = bitcast<i32>(q[record + $key_size - 4u]);
  let score = multiply(row_times_key(record, keys, $key_words, $key_units), exp2_int(e + exponent));
  let positive = select(0.0, min(score, 1125899906842624.0), score >= from_bits(SMALLEST_BITS));
  return multiply(from_bits(x[$weights + row * $heads + head]), positive);
}

// The canonical sum over heads. Taken in the order of their reversed bits, neighbours in its tree
// follow one another, so that one partial sum of each level is enough.
fn key_score(row: u32, key: u32) -> f32 {
  let size = 128u * $key_words + 128u;
  let base = m[pages_of(row, $group) + key / 64u] * size;
  let exponent = bitcast<i32>(atomicLoad(&pool[base + size - 128u + key % 64u]));
  var sums: array<f32, 9>;
  for (var leaf = 0u; leaf < (1u << $levels); leaf++) {
    let head = reverseBits(leaf) >> (32u - $levels);
    var sum = 0.0;
    if (head < $heads) { sum = of_head(row, head, base + key % 64u, exponent); }
    var level = 0u;
    for (var done = leaf; (done & 1u) == 1u; done >>= 1u) {
      sum = add(sums[level], sum);
      level++;
    }
    sums[level] = sum;
  }
  return add(sums[$levels], 0.0);  // -0 is the zero that it is compared as
}

fn stage(row: u32, lane: u32) {
  let seen = about(row, 1u) + 1u;
  let count = seen / $every;
  let scores = row * m[9];
  for (var k = lane; k < count; k += LANES) {
    scratch[scores + k] = order_of(bitcast<u32>(key_score(row, (k + 1u) * $every - 1u)));
  }
  storageBarrier();
  workgroupBarrier();
  var bound = 0u;  // the largest score that `top` keys reach
  for (var bit = 0u; bit < 32u; bit++) {
    let trial = bound | (0x80000000u >> bit);
    var reach = 0.0;
    for (var k = lane; k < count; k += LANES) {
      if (scratch[scores + k] >= trial) { reach += 1.0; }
    }
    bound = select(bound, trial, fold(lane, LANES, reach) >= f32($top));
  }
  var more = 0.0;
  for (var k = lane; k < count; k += LANES) {
    if (scratch[scores + k] > bound) { more += 1.0; }
  }
  var equal = $top - u32(fold(lane, LANES, more));  // keys with the bound itself that have room
  if (lane != 0u) { return; }
  let to = $out + row * $top;
  var place = 0u;
  for (var k = 0u; k < count && place < $top; k++) {
    let score = scratch[scores + k];
    if (score < bound || (score == bound && equal == 0u)) { continue; }
    if (score == bound) { equal--; }
    x[to + place] = (k + 1u) * $every - 1u;
    place++;
  }
  for (var k = seen; place < $top; k++) { x[to + place] = k; place++; }
}
