// Every value of a row from two, which are loaded for four values at a time.
fn stage(row: u32, lane: u32) {
  for (var i = start + lane; i < $n; i += 4u * span) {
    //each u 4
    let at#u = row * $n + min(i + #uu * span, $n - 1u);
    let a#u = from_bits(x[$x + at#u]);
    let b#u = from_bits(x[$y + at#u]);
    //end
    //each u 4
    if (i + #uu * span < $n) { x[$out + at#u] = canonical({{FUNCTION}}(a#u, b#u), row); }
    //end
  }
}
