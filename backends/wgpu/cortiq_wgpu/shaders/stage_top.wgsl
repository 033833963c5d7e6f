// The `step` largest values of a row behind those already taken, by (value descending, index
// ascending), of `count` in all; after the last ones ln of the sum of e^x. Results: log-sum-exp,
// then indices, then values.
struct Best { key: u32, at: u32 }

fn better(row: u32, best: Best, bound: Best, i: u32) -> Best {
  if (i >= $n) { return best; }
  let key = order_of(x[$x + row * $n + i]);
  let after = key < bound.key || (key == bound.key && i > bound.at);
  if (after && key > best.key) { return Best(key, i); }
  return best;
}

fn stage(row: u32, lane: u32) {
  if ((about(row, 8u) & $bit) == 0u) { return; }  // no row that did not ask can be at fault
  let to = $out + row * (1u + 2u * $count);
  var bound = Best(0xffffffffu, 0xffffffffu);  // the last one taken
  if ($begin > 0u) {
    bound.at = x[to + $begin];
    bound.key = order_of(x[to + $count + $begin]);
  }
  for (var taken = $begin; taken < min($count, $begin + $step); taken++) {
    var best = Best(0u, 0xffffffffu);
    for (var i = lane; i < $n; i += 4u * LANES) {
      best = better(row, best, bound, i);
      best = better(row, best, bound, i + LANES);
      best = better(row, best, bound, i + 2u * LANES);
      best = better(row, best, bound, i + 3u * LANES);
    }
    let found = largest_of(lane, best.key, best.at);
    bound = Best(order_of(x[$x + row * $n + found]), found);
    if (lane == 0u) {
      x[to + 1u + taken] = found;
      x[to + 1u + $count + taken] = bits_of(bound.key);
    }
  }
  if ($begin + $step < $count) { return; }
  storageBarrier();
  workgroupBarrier();
  let highest = from_bits(x[to + 1u + $count]);
  var sum = 0.0;
  for (var i = lane; i < $n; i += LANES) {
    sum = add(sum, exp_(subtract(from_bits(x[$x + row * $n + i]), highest)));
  }
  let total = fold(lane, LANES, sum);
  if (lane == 0u) { x[to] = canonical(add(highest, log_(total)), row); }
}
