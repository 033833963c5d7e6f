// The stored key row of the row's position, as floats: q*2^e, exact but for what is below 2^-40. What
// is stored was canonical; where a row brings the value itself nothing may be stored yet.
fn byte_of(word: u32, i: u32) -> i32 { return bitcast<i32>(word << (24u - 8u * (i % 4u))) >> 24u; }

fn stage(row: u32, lane: u32) {
  let position = about(row, 1u);
  let words_ = ($n + 3u) / 4u;
  let block = 128u * words_ + 128u;
  let page = m[pages_of(row, $group) + position / 64u];
  for (var k = lane; k < $heads * $n; k += LANES) {
    let base = (page * $heads + k / $n) * block;
    let i = k % $n;
    let high = byte_of(atomicLoad(&pool[base + i / 4u * 64u + position % 64u]), i);
    let low = byte_of(atomicLoad(&pool[base + (words_ + i / 4u) * 64u + position % 64u]), i);
    let e = bitcast<i32>(atomicLoad(&pool[base + block - 128u + position % 64u]));
    let y = multiply(f32(high * 256 + low), exp2_int(clamp(e, -126, 127)));
    let size = magnitude_bits(y);
    let kept = size >= SMALLEST_BITS && size < LARGEST_BITS;
    x[$out + row * $heads * $n + k] = select(0u, bitcast<u32>(y), kept);
  }
}
