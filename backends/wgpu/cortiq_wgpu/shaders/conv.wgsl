// Depthwise causal convolution: taps in order, the oldest row first. Rows before the batch are in
// the ring, at position % capacity; rows before the sequence are +0.

@group(0) @binding(4) var<storage, read> w: array<u32>;
@group(0) @binding(5) var<storage, read> pool: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_id) local: vec3u) {
  zero = m[0];
  let c = group.x * 64u + local.x;
  let row = group.y;
  let n = $n;
  if (c >= n) { return; }
  let position = i32(about(row, 1u));
  let begin = i32(about(row, 4u));  // the segment's first position
  let ring = about(row, 3u) * $capacity * n;
  var y = 0.0;
  for (var tap = 0u; tap < $taps; tap++) {
    let at = position - i32($taps) + 1 + i32(tap);
    var value = 0.0;
    if (at >= begin) {
      value = from_bits(x[$x + (row - u32(position - at)) * n + c]);
    } else if (at >= 0) {
      value = from_bits(pool[ring + (u32(at) % $capacity) * n + c]);
    }
    y = add(y, multiply(from_bits(w[$weight + c * $taps + tap]), value));
  }
  if ($bias != 0xffffffffu) { y = add(y, from_bits(w[$bias + c])); }
  x[$out + row * n + c] = canonical(y, row);
}
