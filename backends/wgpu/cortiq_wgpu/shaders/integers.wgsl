// Integers that bytes, or nibbles, stand for.

// The integer of an E4M3 byte, in units of 2^-9.
fn integer_of_e4m3b32(byte: u32) -> i32 {
  let exponent = (byte >> 3u) & 15u;
  let mantissa = i32(byte & 7u);
  let size = select(mantissa, (8 + mantissa) << (max(exponent, 1u) - 1u), exponent > 0u);
  return select(size, -size, (byte >> 7u) != 0u);
}

// The integers at the places of bitsandbytes' tables.
fn integer_of_nf4b32(place: u32) -> i32 {
  var values = array<i32, 16>(
    -31908, -22214, -16754, -12601, -9076, -5896, -2905, 0,
    2539, 5135, 7853, 10782, 14062, 17952, 23068, 31908);
  return values[place];
}

fn integer_of_fp4b32(place: u32) -> i32 {
  var sizes = array<i32, 8>(0, 1, 128, 192, 64, 96, 32, 48);
  let size = sizes[place & 7u];
  return select(size, -size, place >= 8u);
}

fn signed_byte(at: u32, index: u32) -> i32 {
  return bitcast<i32>(s[at + index / 4u] << (24u - 8u * (index % 4u))) >> 24u;
}
