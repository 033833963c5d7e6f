// Four words that depend on every bit of a value's row.
fn mix_word(value: u32) -> u32 {
  var word = (value ^ (value >> 16u)) * MIX0;
  word = (word ^ (word >> 15u)) * MIX1;
  return word ^ (word >> 16u);
}

fn fold_words(lane: u32, value: u32) -> u32 {
  words[lane] = value;
  for (var half = LANES / 2u; half > 0u; half /= 2u) {
    workgroupBarrier();
    if (lane < half) { words[lane] += words[lane + half]; }
  }
  workgroupBarrier();
  let total = words[0];
  workgroupBarrier();
  return total;
}

fn stage(row: u32, lane: u32) {
  var sum = vec4u(0u);
  for (var i = lane; i < $n; i += LANES) {
    let word = x[$x + row * $n + i] ^ mix_word(i + INDEX_KEY);
    sum += vec4u(
      mix_word(word + LANE0), mix_word(word + LANE1), mix_word(word + LANE2),
      mix_word(word + LANE3));
  }
  for (var k = 0u; k < 4u; k++) {
    let total = fold_words(lane, sum[k]);
    if (lane == 0u) { x[$out + row * 4u + k] = total; }
  }
}
