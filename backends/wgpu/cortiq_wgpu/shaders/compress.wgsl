// An entry of keys and values where a row closes a window: each column's values weighed by the
// softmax of their gates, the oldest first. Rows before the batch are in the ring.

@group(0) @binding(4) var<storage, read> pool: array<u32>;

fn kept(row: u32, at: u32, column: u32) -> f32 {
  let position = about(row, 1u);
  if (at >= about(row, 4u)) { return from_bits(x[$x + (row - (position - at)) * $n + column]); }
  return from_bits(pool[(about(row, 3u) * $capacity + at % $capacity) * $n + column]);
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_id) local: vec3u) {
  zero = m[0];
  let c = group.x * 64u + local.x;
  let row = group.y;
  if (c >= $width) { return; }
  let to = $out + row * $width + c;
  let end = about(row, 1u) + 1u;
  if (end % $rate != 0u) { x[to] = 0u; return; }
  // Windows that overlap have the first half of the columns of the window before.
  let windows = select(1u, $parts, end >= $parts * $rate);
  let rows = windows * $rate;
  var largest = LOWEST();
  for (var i = 0u; i < rows; i++) {
    largest = max(largest, kept(row, end - rows + i, gate_of(i, windows) + c));
  }
  var total = 0.0;
  var y = 0.0;
  for (var i = 0u; i < rows; i++) {
    let at = end - rows + i;
    let distance = subtract(kept(row, at, gate_of(i, windows) + c), largest);
    let weight = from_bits(canonical(exp_(distance), row));
    total = add(total, weight);
    y = add(y, multiply(weight, kept(row, at, column_of(i, windows) + c)));
  }
  x[to] = canonical(multiply(y, divide(1.0, total)), row);
}

fn column_of(i: u32, windows: u32) -> u32 {
  return select(0u, $width, $parts == 2u && (windows == 1u || i >= $rate));
}

fn gate_of(i: u32, windows: u32) -> u32 { return $parts * $width + column_of(i, windows); }
