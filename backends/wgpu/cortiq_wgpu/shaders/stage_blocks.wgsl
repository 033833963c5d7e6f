// The blocks of keys that a head of a query scores best: scores of all blocks to scratch, then
// `top` of them, the last `local` first, the lower index on equality; listed in ascending order.

fn best_of(row: u32, record: u32, block: u32, last: u32) -> u32 {
  let pages = pages_of(row, $group);
  let size = 128u * $key_words + 128u;
  let e = bitcast<i32>(q[record + $key_size - 4u]);
  var best = 0u;
  for (var key = block * $block; key < min(block * $block + $block, last); key++) {
    let base = m[pages + key / 64u] * size;
    let exponent = bitcast<i32>(atomicLoad(&pool[base + size - 128u + key % 64u]));
    let score = multiply(row_times_key(record, base + key % 64u, $key_words, $key_units), exp2_int(e + exponent));
    // A score too small for a device that flushes is compared as the zero it becomes elsewhere.
    best = max(best, order_of(bitcast<u32>(score)));
  }
  return best;
}

fn stage(row: u32, lane: u32) {
  let last = about(row, 1u) + 1u;
  let count = (last - 1u) / $block + 1u;
  let record = $q + (row * $heads + $head) * $key_size;
  let to = $out + (row * $heads + $head) * $top;
  let scores = row * m[9];
  for (var b = lane; b < count; b += LANES) {
    let late = b + $local >= count;
    var score = 0xffffffffu;
    if (!late) { score = best_of(row, record, b, last); }
    scratch[scores + b] = score;
  }
  storageBarrier();
  workgroupBarrier();
  for (var taken = 0u; taken < min($top, count); taken++) {
    var best = 0u;
    var at = 0xffffffffu;
    for (var b = lane; b < count; b += LANES) {
      let score = scratch[scores + b];
      if (score > best) { best = score; at = b; }
    }
    let found = largest_of(lane, best, at);
    if (lane == 0u) { scratch[scores + found] = 0u; }
    storageBarrier();
    workgroupBarrier();
  }
  if (lane == 0u) {
    var place = 0u;
    for (var b = 0u; b < count; b++) {
      if (scratch[scores + b] == 0u) { x[to + place] = b; place++; }
    }
    for (var b = count; place < $top; b++) { x[to + place] = b; place++; }
  }
}
