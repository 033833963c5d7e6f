// Every value of a row by itself; workgroups side by side share them out.
fn stage(row: u32, lane: u32) {
  for (var i = start + lane; i < $n; i += span) {
    {{BODY}}
  }
}
