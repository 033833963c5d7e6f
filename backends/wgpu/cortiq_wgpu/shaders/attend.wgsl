// HEADS heads of a row that share their keys, over one run of 16 tiles, or over all of them: 64 lanes
// are the keys of a tile, then the channels. Writes total, its exponent, the output's exponent and the
// output per head and part.

@group(0) @binding(4) var<storage, read> q: array<vec4u>;
@group(0) @binding(5) var<storage, read> pool: array<u32>;
@group(0) @binding(6) var<storage, read_write> scratch: array<u32>;

const NONE = -1048576;      // exponent of an empty state, below every real one
const RUNS = {{RUNS}}u;  // runs that one dispatch goes through
const HEADS = {{HEADS}}u;

struct State { value: f32, exponent: i32 }

var<workgroup> peak: array<atomic<i32>, HEADS>;
var<workgroup> top: array<atomic<i32>, HEADS>;
var<workgroup> mass: array<atomic<i32>, HEADS>;
var<workgroup> seen_keys: array<atomic<u32>, HEADS>;
var<workgroup> weight_bytes: array<u32, 128u * HEADS>;  // high bytes of 64 weights, then low ones
var<workgroup> weight_words: array<vec4u, 8u * HEADS>;  // the same, four to a word

// 2^n, or 0 below -60.
fn delta(n: i32) -> f32 { return select(exp2_int(max(n, -60)), 0.0, n < -60); }

fn combine(a: State, b: State) -> State {
  let most = max(a.exponent, b.exponent);
  let left = multiply(a.value, delta(a.exponent - most));
  return State(add(left, multiply(b.value, delta(b.exponent - most))), most);
}

fn dot16(a: vec4u, b: vec4u) -> i32 {
  return dot4(a.x, b.x) + dot4(a.y, b.y) + dot4(a.z, b.z) + dot4(a.w, b.w);
}

// Four neighbouring words of a lane's key, or channel. Beyond a key's last word q is zero.
fn four_of(at: u32, step: u32) -> vec4u {
  return vec4u(pool[at], pool[at + step], pool[at + 2u * step], pool[at + 3u * step]);
}

fn capped(s: f32) -> f32 {
  if ($cap == 0u) { return s; }
  let bounded = tanh_(multiply(s, from_bits($inverse_cap)));
  return multiply(multiply(from_bits($cap), bounded), LOG2_E());
}

// The score of a key at a position, for a head's query at another.
fn sloped(s: f32, head: u32, key: u32, own: u32) -> f32 { {{SLOPED}} }

fn is_chosen(row: u32, head: u32, key: u32) -> bool { {{CHOSEN}} }

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_id) local: vec3u) {
  zero = m[0];
  let lane = local.x;
  let head = group.x * HEADS;
  let row = group.y;
  let parts = m[8];
  let channels = $channels;
  let key_words = $key_words;
  let block = 128u * key_words + 32u * channels + 128u;
  let kv_head = head / ($heads / $kv_heads);
  let pages = pages_of(row, $group);
  let last = {{LAST}} + 1u;
  let own = about(row, 1u) + 1u;
  let first = select(0u, max(own, $window) - $window, $window > 0u);
  let one = parts > 1u;
  // Runs side by side, or (parts is 1) one after the other, going on from what scratch holds.
  let from_run = select($begin * 1024u, first / 1024u * 1024u + group.z * 1024u, one);
  let begin = max(from_run, first / 1024u * 1024u);
  let end = min(last, select(($begin + RUNS) * 1024u, begin + 1024u, one));
  //each h {{HEADS}}
  let record#h = ($q + (row * $heads + head + #hu) * $key_size) / 4u;
  let q_exponent#h = bitcast<i32>(q[record#h + $key_size / 4u - 1u].x);
  let at#h = ((row * $heads + head + #hu) * parts + group.z) * (channels + 3u);
  var total#h = State(0.0, NONE);
  //each c {{CHANNELS}}
  var sum#h_#c = State(0.0, NONE);
  //end
  if ($begin > 0u) {
    total#h = State(from_bits(scratch[at#h]), bitcast<i32>(scratch[at#h + 1u]));
    let exponent = bitcast<i32>(scratch[at#h + 2u]);
    //each c {{CHANNELS}}
    sum#h_#c = State(0.0, exponent);
    if (lane + 64u * #cu < channels) {
      sum#h_#c.value = from_bits(scratch[at#h + 3u + lane + 64u * #cu]);
    }
    //end
  }
  //end
  if ($begin > 0u) {
    storageBarrier();
    workgroupBarrier();
  }
  for (var run = begin; run < end; run += 1024u) {
    //each h {{HEADS}}
    var l#h = State(0.0, NONE);
    //each c {{CHANNELS}}
    var o#h_#c = State(0.0, NONE);
    //end
    //end
    for (var tile = max(run, first / 64u * 64u); tile < min(run + 1024u, last); tile += 64u) {
      let base = (m[pages + tile / 64u] * $kv_heads + kv_head) * block;
      let exponents = base + block - 128u;
      let key = tile + lane;
      if (lane < HEADS) {
        atomicStore(&peak[lane], NONE);
        atomicStore(&top[lane], NONE);
        atomicStore(&mass[lane], 0);
        atomicStore(&seen_keys[lane], 0u);
      }
      workgroupBarrier();
      let there = key >= first && key < last;
      var some = false;
      //each h {{HEADS}}
      let seen#h = there && is_chosen(row, head + #hu, key);
      some = some || seen#h;
      var kappa#h = NONE;
      var epsilon#h = NONE;
      var fraction#h = 0.0;
      var high#h = 0;
      var middle#h = 0;
      var low#h = 0;
      //end
      if (some) {
        for (var i = 0u; i < $key_units; i += 2u) {
          //each u 2
          let kh#u = four_of(base + lane + (i + #uu) * 256u, 64u);
          let kl#u = four_of(base + lane + (key_words + 4u * (i + #uu)) * 64u, 64u);
          //end
          //each h {{HEADS}}
          //each u 2
          let qh#h_#u = q[record#h + i + #uu];
          let ql#h_#u = q[record#h + $key_units + i + #uu];
          high#h += dot16(qh#h_#u, kh#u);
          middle#h += dot16(qh#h_#u, kl#u) + dot16(ql#h_#u, kh#u);
          low#h += dot16(ql#h_#u, kl#u);
          //end
          //end
        }
      }
      //each h {{HEADS}}
      if (seen#h) {
        let e = q_exponent#h + bitcast<i32>(pool[exponents + lane]);
        let rounded = round_three_planes(high#h, middle#h, low#h);
        let scaled = multiply(multiply(rounded, from_bits($factor)), exp2_int(e));
        let bent = sloped(capped(scaled), head + #hu, key, own - 1u);
        let s = clamp(bent, -16384.0, 16384.0);
        let whole = rint(s);
        kappa#h = i32(whole);
        fraction#h = exp2g(subtract(s, whole));
        epsilon#h = kappa#h + bitcast<i32>(pool[exponents + 64u + lane]);
        atomicMax(&peak[#h], kappa#h);
        atomicMax(&top[#h], epsilon#h);
        atomicOr(&seen_keys[#h], 1u);
      }
      //end
      workgroupBarrier();
      //each h {{HEADS}}
      let K#h = atomicLoad(&peak[#h]);
      let E#h = atomicLoad(&top[#h]);
      var weight#h = 0;
      if (seen#h) {
        atomicAdd(&mass[#h], i32(rint(multiply(fraction#h, delta(21 + kappa#h - K#h)))));
        weight#h = i32(rint(multiply(fraction#h, delta(14 + epsilon#h - E#h))));
      }
      let carry#h = (weight#h + 128) >> 8u;
      weight_bytes[#hu * 128u + lane] = (u32(carry#h) & 255u) << (8u * (lane % 4u));
      weight_bytes[#hu * 128u + 64u + lane] = (u32(weight#h) & 255u) << (8u * (lane % 4u));
      //end
      workgroupBarrier();
      for (var word = lane; word < 32u * HEADS; word += 64u) {
        let four = 4u * word;
        weight_words[word / 4u][word % 4u] = weight_bytes[four] | weight_bytes[four + 1u]
          | weight_bytes[four + 2u] | weight_bytes[four + 3u];
      }
      workgroupBarrier();
      //each h {{HEADS}}
      let any#h = atomicLoad(&seen_keys[#h]) != 0u;
      if (any#h) { l#h = combine(l#h, State(round_int32(atomicLoad(&mass[#h])), K#h)); }
      //end
      //each c {{CHANNELS}}
      let channel#c = lane + 64u * #cu;
      if (channel#c < channels) {
        let values = base + 128u * key_words + channel#c;
        //each h {{HEADS}}
        var high#h = 0;
        var middle#h = 0;
        var low#h = 0;
        //end
        //each k 4
        let vh#k = four_of(values + 4u * #ku * channels, channels);
        let vl#k = four_of(values + (16u + 4u * #ku) * channels, channels);
        //end
        //each h {{HEADS}}
        //each k 4
        let wh#h_#k = weight_words[#hu * 8u + #ku];
        let wl#h_#k = weight_words[#hu * 8u + 4u + #ku];
        high#h += dot16(wh#h_#k, vh#k);
        middle#h += dot16(wh#h_#k, vl#k) + dot16(wl#h_#k, vh#k);
        low#h += dot16(wl#h_#k, vl#k);
        //end
        //end
        //each h {{HEADS}}
        if (any#h) {
          o#h_#c = combine(o#h_#c, State(round_three_planes(high#h, middle#h, low#h), E#h));
        }
        //end
      }
      //end
      workgroupBarrier();
    }
    //each h {{HEADS}}
    if (l#h.exponent != NONE) {
      total#h = combine(total#h, l#h);
      //each c {{CHANNELS}}
      sum#h_#c = combine(sum#h_#c, o#h_#c);
      //end
    }
    //end
  }
  //each h {{HEADS}}
  if (lane == 0u) {
    scratch[at#h] = bitcast<u32>(total#h.value);
    scratch[at#h + 1u] = bitcast<u32>(total#h.exponent);
    scratch[at#h + 2u] = bitcast<u32>(sum#h_0.exponent);
  }
  //each c {{CHANNELS}}
  if (lane + 64u * #cu < channels) {
    scratch[at#h + 3u + lane + 64u * #cu] = bitcast<u32>(sum#h_#c.value);
  }
  //end
  //end
}
