// Norms of `heads` stretches of n values: {{KIND}}. Lanes are shared out to stretches by `width`.
fn stage(row: u32, lane: u32) {
  let width = $width;
  let i0 = lane % width;
  let group = LANES / width;
  for (var head = lane / width; head < ($heads + group - 1u) / group * group; head += group) {
    let there = head < $heads;
    let from_ = $x + (row * $heads + head) * $n;
    let to = $out + (row * $heads + head) * $n;
    let last = select(0u, $n, there);
    {{BODY}}
  }
}
