// The batch's rows into the ring; of rows that share a place the last one is kept.

@group(0) @binding(4) var<storage, read_write> pool: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_id) local: vec3u) {
  let c = group.x * 64u + local.x;
  let row = group.y;
  if (c >= $n) { return; }
  let position = about(row, 1u);
  if (about(row, 5u) > position + $capacity) { return; }  // the segment's end
  let ring = about(row, 3u) * $capacity * $n;
  pool[ring + (position % $capacity) * $n + c] = x[$x + row * $n + c];
}
