// One row of a batch a workgroup of 256 lanes: stages one after the other, each the whole of a
// primitive, with a barrier between them; or, where all are of single values, several workgroups. What a stage leaves in x or q the next one reads.

@group(0) @binding(4) var<storage, read_write> q: array<u32>;             // quantised rows
@group(0) @binding(5) var<storage, read> w: array<u32>;                   // vectors: f32
@group(0) @binding(6) var<storage, read_write> pool: array<atomic<u32>>;  // a slot's memory
@group(0) @binding(7) var<storage, read_write> scratch: array<u32>;

var<workgroup> lanes: array<f32, 256>;
var<workgroup> words: array<u32, 256>;

const LANES = 256u;

var<private> start: u32;  // the first value of this workgroup, where several share a row
var<private> span: u32;   // lanes of all of them

// Each of `width` neighbouring lanes, a power of two, adds up to its group's first: lane i += lane
// i+h for h = width/2, ..., 1. Lanes past a row hold +0, which changes no sum.
fn fold(lane: u32, width: u32, value: f32) -> f32 {
  lanes[lane] = value;
  for (var half = width / 2u; half > 0u; half /= 2u) {
    workgroupBarrier();
    if (lane % width < half) { lanes[lane] = add(lanes[lane], lanes[lane + half]); }
  }
  workgroupBarrier();
  let total = lanes[lane - lane % width];
  workgroupBarrier();
  return total;
}

// The largest word of a group of `width` lanes.
fn fold_max(lane: u32, width: u32, value: u32) -> u32 {
  words[lane] = value;
  for (var half = width / 2u; half > 0u; half /= 2u) {
    workgroupBarrier();
    if (lane % width < half) { words[lane] = max(words[lane], words[lane + half]); }
  }
  workgroupBarrier();
  let largest = words[lane - lane % width];
  workgroupBarrier();
  return largest;
}

// Integers that order as the floats do, and back.
fn order_of(bits: u32) -> u32 {
  return select(bits | 0x80000000u, ~bits, (bits & 0x80000000u) != 0u);
}
fn bits_of(order: u32) -> u32 {
  return select(~order, order & 0x7fffffffu, (order & 0x80000000u) != 0u);
}

// A quantised row times a key in the pages, the exact integer rounded once; of each the high and then
// the low plane, the row's `units` times 16 codes wide, the key's `words` times 4.
fn row_times_key(record: u32, keys: u32, words: u32, units: u32) -> f32 {
  var high = 0;
  var middle = 0;
  var low = 0;
  for (var i = 0u; i < words; i++) {
    let qh = q[record + i];
    let ql = q[record + units * 4u + i];
    let kh = atomicLoad(&pool[keys + i * 64u]);
    let kl = atomicLoad(&pool[keys + (words + i) * 64u]);
    high += dot4(qh, kh);
    middle += dot4(qh, kl) + dot4(ql, kh);
    low += dot4(ql, kl);
  }
  return round_three_planes(high, middle, low);
}
