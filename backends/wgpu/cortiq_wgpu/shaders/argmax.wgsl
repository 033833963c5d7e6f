// The lowest index of a row's largest value.
var<workgroup> places: array<u32, 256>;

fn largest_of(lane: u32, key: u32, at: u32) -> u32 {
  words[lane] = key;
  places[lane] = at;
  for (var half = LANES / 2u; half > 0u; half /= 2u) {
    workgroupBarrier();
    if (lane < half) {
      let other = words[lane + half];
      let tie = other == words[lane] && places[lane + half] < places[lane];
      if (other > words[lane] || tie) {
        words[lane] = other;
        places[lane] = places[lane + half];
      }
    }
  }
  workgroupBarrier();
  let found = places[0];
  workgroupBarrier();
  return found;
}
