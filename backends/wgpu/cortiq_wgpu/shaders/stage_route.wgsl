// Experts from scores: {{KIND}}. The first lane chooses; p of all experts stays in x at `p`.
fn stage(row: u32, lane: u32) {
  let n = $experts;
  let scores = $x + row * n;
  let values = $p + row * n;
  {{VALUES}}
  storageBarrier();
  workgroupBarrier();
  if (lane == 0u) { choose(row, scores, values); }
}

fn key_of(row: u32, scores: u32, values: u32, i: u32) -> f32 {
  if ($bias == 0xffffffffu) { return from_bits(x[scores + i]); }
  return from_bits(canonical(add(from_bits(x[values + i]), from_bits(w[$bias + i])), row));
}

fn counted_of(row: u32, scores: u32, values: u32, i: u32) -> f32 {
  if ($bias == 0xffffffffu) { return from_bits(x[values + i]); }
  return key_of(row, scores, values, i);
}

fn masked_in(i: u32) -> bool {
  return $mask == 0xffffffffu || (w[select($mask + i, 0u, $mask == 0xffffffffu)] & 0x7fffffffu) != 0u;
}

var<private> kept: array<u32, 32>;  // groups that are admitted, a bit each

fn admitted(i: u32) -> bool {
  let group = i / ($experts / $groups);
  return masked_in(i) && ((kept[group / 32u] >> (group % 32u)) & 1u) != 0u;
}

// The score of a group: 0.0 and false if no expert of it is admitted.
fn group_score(row: u32, scores: u32, values: u32, group: u32) -> vec2f {
  let size = $experts / $groups;
  var best = LOWEST();
  var second = LOWEST();
  for (var i = group * size; i < group * size + size; i++) {
    if (!masked_in(i)) { continue; }
    var score = key_of(row, scores, values, i);
    if ($top2 == 1u) { score = counted_of(row, scores, values, i); }
    if (score > best) { second = best; best = score; } else if (score > second) { second = score; }
  }
  let there = select(0.0, 1.0, best != LOWEST());
  if ($top2 == 1u && second != LOWEST()) { best = add(best, second); }
  return vec2f(best, there);
}

fn keep_groups(row: u32, scores: u32, values: u32) {
  for (var k = 0u; k < 32u; k++) { kept[k] = select(0u, 0xffffffffu, $groups == 1u); }
  if ($groups == 1u) { return; }
  for (var taken = 0u; taken < $kept_groups; taken++) {
    var best = vec2f(LOWEST(), -1.0);
    var at = 0u;
    for (var group = 0u; group < $groups; group++) {
      if (((kept[group / 32u] >> (group % 32u)) & 1u) != 0u) { continue; }
      let score = group_score(row, scores, values, group);
      if (score.y > best.y || (score.y == best.y && score.x > best.x)) { best = score; at = group; }
    }
    kept[at / 32u] |= 1u << (at % 32u);
  }
}

fn choose(row: u32, scores: u32, values: u32) {
  let k = $k;
  let indices = $index + row * k;
  let weights = $out + row * k;
  keep_groups(row, scores, values);
  var bound = 0.0;  // the last expert taken
  var bound_at = 0u;
  var bound_late = false;
  for (var taken = 0u; taken < k; taken++) {
    var best = 0.0;
    var at = 0xffffffffu;
    var late = true;
    for (var i = 0u; i < $experts; i++) {
      let key = key_of(row, scores, values, i);
      let mine = !admitted(i);
      var after = taken == 0u || (mine && !bound_late);
      if (!after && mine == bound_late) {
        after = key < bound || (key == bound && i > bound_at);
      }
      if (!after) { continue; }
      if (at == 0xffffffffu || (late && !mine) || (late == mine && key > best)) {
        best = key; at = i; late = mine;
      }
    }
    bound = best; bound_at = at; bound_late = late;
    var place = taken;  // indices ascend
    while (place > 0u && x[indices + place - 1u] > at) {
      x[indices + place] = x[indices + place - 1u];
      place--;
    }
    x[indices + place] = at;
  }
  weigh(row, scores, values, indices, weights);
}

fn weigh(row: u32, scores: u32, values: u32, indices: u32, weights: u32) {
  let k = $k;
  {{WEIGHTS}}
  if ($tau != 0u) { trim(row, scores, values, indices, weights); }
  if ($renormalise == 1u) {
    var total = 0.0;
    for (var i = 0u; i < k; i++) { total = add(total, from_bits(x[weights + i])); }
    total = add(total, from_bits($floor));
    for (var i = 0u; i < k; i++) {
      let share = divide(from_bits(x[weights + i]), select(total, 1.0, total == 0.0));
      x[weights + i] = select(bitcast<u32>(share), 0u, total == 0.0);
    }
  }
  for (var i = 0u; i < k; i++) {
    var weight = from_bits(x[weights + i]);
    if ($scaling != 0u) { weight = multiply(weight, from_bits($scaling)); }
    x[weights + i] = canonical(weight, row);
  }
}

fn trim(row: u32, scores: u32, values: u32, indices: u32, weights: u32) {
  let k = $k;
  var total = 0.0;
  for (var i = 0u; i < k; i++) { total = add(total, from_bits(x[weights + i])); }
  let enough = multiply(from_bits($tau), total);
  var gone = 0u;
  for (var c = 0u; c < k; c++) {
    let mine = key_of(row, scores, values, x[indices + c]);
    var before = 0.0;
    for (var d = 0u; d < k; d++) {
      let key = key_of(row, scores, values, x[indices + d]);
      if (key > mine || (key == mine && d < c)) { before = add(before, from_bits(x[weights + d])); }
    }
    if (enough != 0.0 && before >= enough) { gone |= 1u << c; }
  }
  for (var c = 0u; c < k; c++) {
    if (((gone >> c) & 1u) != 0u) { x[weights + c] = 0u; }
  }
}
