// The logit of the token that the row drew, and the row's logsumexp, both of logits times a scale. The
// row's list in the batch has for each such want a place: the scale, and where in x the token is.

var<private> factor: u32;

fn value_at(row: u32, i: u32) -> f32 {
  let value = from_bits(x[$x + row * $n + i]);
  if (factor == 0x3f800000u) { return value; }
  return from_bits(canonical(multiply(value, from_bits(factor)), row));
}

fn stage(row: u32, lane: u32) {
  let list = about(row, 9u);
  if (list == 0u) { return; }
  let d = m[list + $number];
  if (d == 0u) { return; }
  factor = m[d];
  var largest = 0u;
  for (var i = lane; i < $n; i += LANES) {
    largest = max(largest, order_of(bitcast<u32>(value_at(row, i))));
  }
  let highest = from_bits(bits_of(fold_max(lane, LANES, largest)));
  var sum = 0.0;
  for (var i = lane; i < $n; i += LANES) {
    sum = add(sum, exp_(subtract(value_at(row, i), highest)));
  }
  let total = fold(lane, LANES, sum);
  if (lane == 0u) {
    x[$out + row * 2u] = bitcast<u32>(value_at(row, x[m[d + 1u]]));
    x[$out + row * 2u + 1u] = canonical(add(highest, log_(total)), row);
  }
}
