// A kernel of another package, on one row.
fn stage(row: u32, lane: u32) {
  {{BODY}}
}
