// Argmax of a value's row.
fn stage(row: u32, lane: u32) {
  var best = 0u;
  var at = 0xffffffffu;
  for (var i = lane; i < $n; i += 4u * LANES) {
    //each u 4
    let i#u = min(i + #uu * LANES, $n - 1u);
    let key#u = order_of(x[$x + row * $n + i#u]);
    //end
    //each u 4
    if (key#u > best) { best = key#u; at = i#u; }
    //end
  }
  let found = largest_of(lane, best, at);
  if (lane == 0u) { x[$out + row] = found; }
}
