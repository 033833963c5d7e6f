// A quantised key row and value row to the page of the row's position. In a page, a head has the
// words of both key planes [2, words, 64 keys], both value planes [2, 16 words of 4 keys,
// channels], exponents of 64 keys and of 64 values.
fn place(at: u32, word: u32) { atomicStore(&pool[at], word); }

fn stage(row: u32, lane: u32) {
  let position = about(row, 1u);
  let page = m[pages_of(row, $group) + position / 64u];
  let j = position % 64u;
  let key_words = $key_words;
  let channels = $channels;
  let block = 128u * key_words + 32u * channels + 128u;
  for (var head = 0u; head < $heads; head++) {
    let base = (page * $heads + head) * block;
    let key = $keys + (row * $heads + head) * $key_size;
    for (var k = lane; k < 2u * key_words; k += LANES) {
      let plane = k / key_words;
      place(base + k * 64u + j, q[key + plane * $key_units * 4u + k % key_words]);
    }
    let value = $values + (row * $heads + head) * $value_size;
    let shift = 8u * (j % 4u);
    for (var k = lane; k < 2u * channels; k += LANES) {
      let plane = k / channels;
      let c = k % channels;
      let byte = (q[value + plane * $value_units * 4u + c / 4u] >> (8u * (c % 4u))) & 255u;
      let at = base + 128u * key_words + (plane * 16u + j / 4u) * channels + c;
      atomicAnd(&pool[at], ~(255u << shift));  // rows beside this one write the other bytes
      atomicOr(&pool[at], byte << shift);
    }
    if (lane == 0u) {
      let exponents = base + block - 128u + j;
      place(exponents, q[key + $key_size - 4u]);
      if (channels > 0u) { place(exponents + 64u, q[value + $value_size - 4u]); }
    }
  }
}
