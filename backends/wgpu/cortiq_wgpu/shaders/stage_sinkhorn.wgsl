// Makes a matrix doubly stochastic: columns, then rows and columns in turn. A lane has one of them.
fn stage(row: u32, lane: u32) {
  let at = $out + row * $n * $n;
  for (var i = lane; i < $n * $n; i += LANES) {
    x[at + i] = canonical(add(from_bits(x[at + i]), from_bits($eps)), row);
  }
  normalise(row, lane, at, 1u, $n);
  for (var round = 1u; round < $rounds; round++) {
    normalise(row, lane, at, $n, 1u);
    normalise(row, lane, at, 1u, $n);
  }
}

fn normalise(row: u32, lane: u32, at: u32, apart: u32, step: u32) {
  storageBarrier();
  workgroupBarrier();
  for (var line = lane; line < $n; line += LANES) {
    var total = 0.0;
    for (var i = 0u; i < $n; i++) { total = add(total, from_bits(x[at + line * apart + i * step])); }
    total = add(total, from_bits($eps));
    for (var i = 0u; i < $n; i++) {
      let place = at + line * apart + i * step;
      x[place] = canonical(divide(from_bits(x[place]), total), row);
    }
  }
}
