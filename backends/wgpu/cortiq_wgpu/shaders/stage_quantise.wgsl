// Quantised rows: `heads` stretches of n values to records of two planes, sums of 16 and an
// exponent. A lane takes 16 values; planes are padded with zeros to whole pairs of 16.
fn stage(row: u32, lane: u32) {
  let width = $width;
  let group = LANES / width;
  let n = $n;
  let units = $units;
  for (var head = lane / width; head < ($heads + group - 1u) / group * group; head += group) {
    let from_ = $x + (row * $heads + head) * n;
    let record = $out + (row * $heads + head) * $size;
    var largest = 0u;
    if (head < $heads) {
      for (var i = lane % width; i < n; i += width) {
        largest = max(largest, x[from_ + i] & 0x7fffffffu);
      }
    }
    largest = fold_max(lane, width, largest);
    if (head < $heads) {
      let empty = largest < SMALLEST_BITS;
      let e = select(i32((largest + 0x20000u) >> 23u) - 141, -54, empty);
      let factor = exp2_int(-e);
      for (var unit = lane % width; unit < units; unit += width) {
        var sum = 0;
        for (var k = 0u; k < 4u; k++) {
          var high = 0u;
          var low = 0u;
          for (var j = 0u; j < 4u; j++) {
            let i = unit * 16u + k * 4u + j;
            if (i < n && !empty) {
              let value = i32(rint(multiply(from_bits(x[from_ + i]), factor)));
              let carry = (value + 128) >> 8u;
              high |= (u32(carry) & 255u) << (8u * j);
              low |= (u32(value) & 255u) << (8u * j);
              sum += value;
            }
          }
          q[record + unit * 4u + k] = high;
          q[record + (units + unit) * 4u + k] = low;
        }
        q[record + units * 8u + unit] = u32(sum);
      }
      if (lane % width == 0u) { q[record + $size - 4u] = u32(e); }
    }
  }
}
