// Functions of the contract; the *_polynomial functions are generated from its constants.

fn exp_(a: f32) -> f32 {
  let x = max(a, -80.0);
  let k = rint(multiply(x, LOG2_E()));
  var r = subtract(x, multiply(k, LN2_HIGH()));
  r = subtract(r, multiply(k, LN2_LOW()));
  var y = multiply(exp_polynomial(r), multiply(r, r));
  y = add(add(y, r), 1.0);
  return bitcast<f32>(bitcast<i32>(y) + (i32(k) << 23u));
}

fn exp2g(x: f32) -> f32 { return exp2_polynomial(x); }

fn sigmoid(x: f32) -> f32 {
  let e = exp_(-abs(x));
  let r = divide(1.0, add(1.0, e));
  return select(multiply(e, r), r, x >= 0.0);
}

fn silu(x: f32) -> f32 { return multiply(x, sigmoid(x)); }

fn gelu_tanh(x: f32) -> f32 {
  let v = clamp(x, -16.0, 16.0);
  let cube = multiply(multiply(v, v), v);
  let u = multiply(GELU_SCALE(), add(v, multiply(GELU_CUBIC(), cube)));
  return multiply(x, sigmoid(add(u, u)));
}

fn tanh_(x: f32) -> f32 {
  if (abs(x) < 0.625) {
    let z = multiply(x, x);
    return add(multiply(multiply(tanh_polynomial(z), z), x), x);
  }
  let e = exp_(multiply(-2.0, abs(x)));
  let large = divide(subtract(1.0, e), add(1.0, e));
  return select(large, -large, x < 0.0);
}

fn log_(x: f32) -> f32 {
  let shift = (bitcast<i32>(x) - 0x3f3504f3) >> 23u;
  let f = subtract(bitcast<f32>(bitcast<i32>(x) - (shift << 23u)), 1.0);
  let k = f32(shift);
  let s = divide(f, add(2.0, f));
  let z = multiply(s, s);
  let rest = multiply(z, log_polynomial(z));
  let half_square = multiply(multiply(0.5, f), f);
  let low = add(multiply(s, add(half_square, rest)), multiply(k, LN2_LOW()));
  return add(multiply(k, LN2_HIGH()), subtract(f, subtract(half_square, low)));
}

fn log1p_(y: f32) -> f32 {
  let u = add(1.0, y);
  return add(log_(u), divide(subtract(y, subtract(u, 1.0)), u));
}

fn softplus(x: f32) -> f32 { return add(select(0.0, x, x > 0.0), log1p_(exp_(-abs(x)))); }

fn relu(x: f32) -> f32 { return select(0.0, x, x > 0.0); }

fn relu2(x: f32) -> f32 { return multiply(relu(x), relu(x)); }

fn exponential(x: f32) -> f32 {
  let e = exp_(-abs(x));
  if (x > 0.0) { return divide(1.0, e); }
  return e;
}

fn gelu(x: f32) -> f32 {
  let a = min(abs(x), 16.0);
  let t = divide(1.0, add(multiply(TAIL_SCALE(), a), 1.0));
  let tail = multiply(exp_(multiply(multiply(a, a), -0.5)), multiply(tail_polynomial(t), t));
  return multiply(x, select(tail, subtract(1.0, tail), x >= 0.0));
}

fn signed_root(x: f32) -> f32 {
  let size = abs(x);
  let root = square_root(select(size, ROOT_FLOOR(), size < ROOT_FLOOR()));
  return select(select(0.0, -root, x < 0.0), root, x > 0.0);
}
