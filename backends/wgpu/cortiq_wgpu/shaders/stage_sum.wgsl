// The canonical sum of a row.
fn stage(row: u32, lane: u32) {
  var sum = 0.0;
  for (var i = lane; i < $n; i += LANES) { sum = add(sum, from_bits(x[$x + row * $n + i])); }
  let total = fold(lane, LANES, sum);
  if (lane == 0u) { x[$out + row] = bitcast<u32>(total); }
}
