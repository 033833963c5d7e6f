// Every value of a row by itself.
fn stage(row: u32, lane: u32) {
  for (var i = lane; i < $n; i += LANES) {
    {{BODY}}
  }
}
