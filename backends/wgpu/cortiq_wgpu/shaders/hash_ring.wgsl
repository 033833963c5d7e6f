// The batch's tokens into the ring; of rows that share a place the last one is kept.

@group(0) @binding(4) var<storage, read_write> pool: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_id) local: vec3u) {
  let row = group.y;
  let position = about(row, 1u);
  if (local.x > 0u || about(row, 5u) > position + $capacity) { return; }  // the segment's end
  let place = about(row, 3u) * $capacity + position % $capacity;
  pool[place] = bitcast<u32>(f32(about(row, 0u) + 1u));
}
