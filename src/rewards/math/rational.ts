/** Exact numbers where they stay small, floating point where they do not. */

/** `exact` holds the value as a fraction in lowest terms with a positive denominator, where it is known exactly. */
export interface Value {
  approximate: number;
  exact?: { numerator: bigint; denominator: bigint };
}

/** Beyond this many bits exactness costs more than it tells. */
const mostBits = 2048;

function gcd(left: bigint, right: bigint): bigint {
  let [a, b] = [left < 0n ? -left : left, right < 0n ? -right : right];
  while (b !== 0n) [a, b] = [b, a % b];
  return a;
}

const bits = (value: bigint) => value.toString(16).length * 4;

function fraction(numerator: bigint, denominator: bigint): Value {
  if (denominator === 0n) return { approximate: Number.NaN };
  const shared = gcd(numerator, denominator) * (denominator < 0n ? -1n : 1n);
  const exact = { numerator: numerator / shared, denominator: denominator / shared };
  const approximate = quotient(exact.numerator, exact.denominator);
  const large = bits(exact.numerator) > mostBits || bits(exact.denominator) > mostBits;
  return large ? { approximate } : { approximate, exact };
}

/** Both may be beyond the range of floating point although their quotient is not. */
function quotient(numerator: bigint, denominator: bigint): number {
  const excess = Math.max(0, bits(numerator) - 900, bits(denominator) - 900);
  return Number(numerator >> BigInt(excess)) / Number(denominator >> BigInt(excess));
}

export const real = (approximate: number): Value => ({ approximate });

/** @param written digits with at most one decimal point: `"12"`, `".5"`, `"3.140"` */
export function decimal(written: string): Value {
  const [whole = "", places = ""] = written.split(".");
  if (whole.length + places.length > 600) return real(Number(written));
  return fraction(BigInt(whole + places || "0"), 10n ** BigInt(places.length));
}

export function add(left: Value, right: Value): Value {
  const [a, b] = [left.exact, right.exact];
  if (!a || !b) return real(left.approximate + right.approximate);
  return fraction(a.numerator * b.denominator + b.numerator * a.denominator, a.denominator * b.denominator);
}

export function multiply(left: Value, right: Value): Value {
  const [a, b] = [left.exact, right.exact];
  if (!a || !b) return real(left.approximate * right.approximate);
  return fraction(a.numerator * b.numerator, a.denominator * b.denominator);
}

export const negate = (value: Value) => multiply(value, decimalOf(-1));
export const subtract = (left: Value, right: Value) => add(left, negate(right));
export const decimalOf = (integer: number): Value => fraction(BigInt(integer), 1n);

export function divide(left: Value, right: Value): Value {
  const b = right.exact;
  if (!b) return real(left.approximate / right.approximate);
  if (b.numerator === 0n) return real(Number.NaN);
  return multiply(left, fraction(b.denominator, b.numerator));
}

/** Whole powers of fractions stay exact; roots are exact where they come out even. */
export function power(base: Value, exponent: Value): Value {
  const [b, e] = [base.exact, exponent.exact];
  if (b && e && e.denominator === 1n && bits(e.numerator) <= 12) {
    const times = e.numerator < 0n ? -e.numerator : e.numerator;
    const size = Math.max(bits(b.numerator), bits(b.denominator));
    if (size * Number(times) <= 4 * mostBits) {
      const raised = fraction(b.numerator ** times, b.denominator ** times);
      return e.numerator < 0n ? divide(decimalOf(1), raised) : raised;
    }
  }
  if (b && e && e.denominator > 1n && e.denominator <= 8n) {
    const root = exactRoot(b.numerator, b.denominator, Number(e.denominator));
    if (root)
      return power(root, { approximate: Number(e.numerator), exact: { numerator: e.numerator, denominator: 1n } });
  }
  return real(base.approximate ** exponent.approximate);
}

function exactRoot(numerator: bigint, denominator: bigint, degree: number): Value | undefined {
  const [top, bottom] = [wholeRoot(numerator, degree), wholeRoot(denominator, degree)];
  return top === undefined || bottom === undefined ? undefined : fraction(top, bottom);
}

function wholeRoot(value: bigint, degree: number): bigint | undefined {
  if (value < 0n) {
    const positive = degree % 2 === 1 ? wholeRoot(-value, degree) : undefined;
    return positive === undefined ? undefined : -positive;
  }
  if (bits(value) > 52) return undefined;
  const root = BigInt(Math.round(Number(value) ** (1 / degree)));
  return root ** BigInt(degree) === value ? root : undefined;
}

/** Equal exactly where both are exact, else to nine digits. A rounded decimal is not the fraction it stands for. */
export function equal(left: Value, right: Value): boolean {
  if (left.exact && right.exact) {
    return left.exact.numerator === right.exact.numerator && left.exact.denominator === right.exact.denominator;
  }
  const [a, b] = [left.approximate, right.approximate];
  if (!Number.isFinite(a) || !Number.isFinite(b)) return false;
  return Math.abs(a - b) <= 1e-9 * Math.max(1, Math.abs(a), Math.abs(b));
}
