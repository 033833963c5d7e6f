// Rotary embedding of `heads` stretches of n values by the row's cosines and sines.
fn stage(row: u32, lane: u32) {
  let pairs = $pairs;
  let angles = m[4u + $set] + row * $record + $angles;
  let each = $n - pairs;
  for (var k = lane; k < $heads * each; k += LANES) {
    let base = (row * $heads + k / each) * $n;
    let pair = k % each;
    if (pair >= pairs) {
      let i = base + pairs + pair;  // beyond what is turned
      x[$out + i] = x[$x + i];
      continue;
    }
    let first = base + select(2u * pair, pair, $half == 1u);
    let second = first + select(1u, pairs, $half == 1u);
    let a = from_bits(x[$x + first]);
    let b = from_bits(x[$x + second]);
    let cosine = from_bits(m[angles + pair]);
    let sine = from_bits(m[angles + pairs + pair]);
    let along = subtract(multiply(a, cosine), multiply(b, sine));
    let across = add(multiply(b, cosine), multiply(a, sine));
    x[$out + first] = canonical(along, row);
    x[$out + second] = canonical(across, row);
  }
}
