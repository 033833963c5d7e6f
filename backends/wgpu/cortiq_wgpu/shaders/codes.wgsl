// A weight's codes: rows of groups of 32, and what belongs to them beside.
//
// codes holds 16 (4 to 6 bits) or 32 bytes (8 bits) a group; s the fifth and sixth bits, scales,
// minima, and bytes of sub-scales and offsets, each in a stretch of its own.

struct Codes { a: vec4u, b: vec4u }  // 16 signed bytes each

fn signed_bytes(v: vec4u) -> vec4u { {{ZERO_POINT}} }

fn codes_of(row: u32, group: u32, plane: u32) -> Codes {
  let at = row * $groups + group;
  {{UNPACK}}
}
