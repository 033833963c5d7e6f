// Adds up what the runs of each head's keys gave, then the sink, and divides.
const NONE = -1048576;
struct State { value: f32, exponent: i32 }

fn delta(n: i32) -> f32 { return select(exp2_int(max(n, -60)), 0.0, n < -60); }

fn combine(a: State, b: State) -> State {
  let top = max(a.exponent, b.exponent);
  let left = multiply(a.value, delta(a.exponent - top));
  return State(add(left, multiply(b.value, delta(b.exponent - top))), top);
}

fn stage(row: u32, lane: u32) {
  let channels = $channels;
  let parts = m[8];
  for (var k = start + lane; k < $heads * channels; k += span) {
    let head = k / channels;
    let c = k % channels;
    let first = (row * $heads + head) * parts * (channels + 3u);
    var total = State(0.0, NONE);
    var sum = State(0.0, NONE);
    for (var part = 0u; part < parts; part++) {
      let at = first + part * (channels + 3u);
      let part_total = State(from_bits(scratch[at]), bitcast<i32>(scratch[at + 1u]));
      if (part_total.exponent == NONE) { continue; }
      total = combine(total, part_total);
      sum = combine(sum, State(from_bits(scratch[at + 3u + c]), bitcast<i32>(scratch[at + 2u])));
    }
    var y = 0.0;
    if (total.exponent != NONE) {
      if ($sinks != 0xffffffffu) {
        let s = clamp(multiply(from_bits(w[$sinks + head]), LOG2_E()), -16384.0, 16384.0);
        let whole = rint(s);
        let gain = multiply(exp2g(subtract(s, whole)), 2097152.0);
        total = combine(total, State(gain, i32(whole)));
      }
      let shift = sum.exponent - total.exponent + 7;
      let scale = select(exp2_int(clamp(shift, -126, 127)), 0.0, shift < -126);
      y = multiply(multiply(sum.value, divide(1.0, total.value)), scale);
    }
    x[$out + row * $heads * channels + k] = canonical(y, row);
    {{MASS}}
  }
}
