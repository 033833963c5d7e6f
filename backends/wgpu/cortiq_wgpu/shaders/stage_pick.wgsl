// Argmax of a value's row.
fn stage(row: u32, lane: u32) {
  var best = 0u;
  var at = 0xffffffffu;
  for (var i = lane; i < $n; i += LANES) {
    let key = order_of(x[$x + row * $n + i]);
    if (key > best) { best = key; at = i; }
  }
  let found = largest_of(lane, best, at);
  if (lane == 0u) { x[$out + row] = found; }
}
