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
      for (var i = lane % width; i < n; i += 4u * width) {
        //each u 4
        let v#u = x[from_ + min(i + #uu * width, n - 1u)] & 0x7fffffffu;
        //end
        largest = max(largest, max(max(v0, v1), max(v2, v3)));
      }
    }
    largest = fold_max(lane, width, largest);
    if (head < $heads) {
      let empty = largest < SMALLEST_BITS;
      let e = select(i32((largest + 0x20000u) >> 23u) - 141, -54, empty);
      let factor = exp2_int(-e);
      for (var unit = lane % width; unit < units; unit += width) {
        var sum = 0;
        //each k 4
        //each j 4
        let i#k_#j = unit * 16u + #ku * 4u + #ju;
        let v#k_#j = select(x[from_ + min(i#k_#j, n - 1u)], 0u, empty || i#k_#j >= n);
        //end
        //end
        //each k 4
        var high#k = 0u;
        var low#k = 0u;
        //each j 4
        let value#k_#j = i32(rint(multiply(from_bits(v#k_#j), factor)));
        high#k |= (u32((value#k_#j + 128) >> 8u) & 255u) << (8u * #ju);
        low#k |= (u32(value#k_#j) & 255u) << (8u * #ju);
        sum += value#k_#j;
        //end
        //end
        //each k 4
        q[record + unit * 4u + #ku] = high#k;
        q[record + (units + unit) * 4u + #ku] = low#k;
        //end
        q[record + units * 8u + unit] = u32(sum);
      }
      if (lane % width == 0u) { q[record + $size - 4u] = u32(e); }
    }
  }
}
