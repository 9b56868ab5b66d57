/** Limits the work of a comparison: 2,000 characters of a reply could otherwise take minutes. */
class OutOfBudget extends Error {}

/** Comparisons are synchronous, so one counter is enough. A step takes about a microsecond. */
let left = Number.POSITIVE_INFINITY;
let depth = 0;

const deepest = 60;

/** @returns undefined if the work takes more steps */
export function withBudget<Result>(steps: number, work: () => Result): Result | undefined {
  left = steps;
  depth = 0;
  try {
    return work();
  } catch (error) {
    if (error instanceof OutOfBudget) return undefined;
    throw error;
  } finally {
    left = Number.POSITIVE_INFINITY;
  }
}

/** @throws OutOfBudget if no steps are left */
export function spend(steps: number): void {
  left -= steps;
  if (left < 0) throw new OutOfBudget();
}

/** @throws OutOfBudget if calls are nested too deeply */
export function nested<Result>(work: () => Result): Result {
  if (++depth > deepest) throw new OutOfBudget();
  const result = work();
  depth--;
  return result;
}

// Exact fractions while they are small, otherwise floating point with an error bound.

export interface Value {
  approximate: number;
  /** The true value is within this distance of `approximate`. */
  error: number;
  /** The value in lowest terms with a positive denominator, if it is known exactly. */
  exact?: { numerator: bigint; denominator: bigint };
}

/** Larger numbers are not kept exactly. 0.99^365 has 2,500 bits. */
const maxBits = 4096;
/** Longer decimals are not compared by value. */
const maxDigits = 1000;
const rounding = 2 ** -50;

function gcd(left: bigint, right: bigint): bigint {
  let [a, b] = [left < 0n ? -left : left, right];
  while (b !== 0n) [a, b] = [b, a % b];
  return a;
}

const bits = (value: bigint) => (value < 0n ? -value : value).toString(16).length * 4;

/** @param denominator not zero */
function fraction(numerator: bigint, denominator: bigint): Value {
  spend(1 + (bits(numerator) + bits(denominator)) / 16);
  const shared = gcd(numerator, denominator < 0n ? -denominator : denominator) * (denominator < 0n ? -1n : 1n);
  return lowest(numerator / shared, denominator / shared);
}

function lowest(numerator: bigint, denominator: bigint): Value {
  const approximate = quotient(numerator, denominator);
  const isLost = numerator !== 0n && underflows(approximate);
  const value: Value = isLost
    ? { approximate: numerator < 0n ? -smallestKept : smallestKept, error: Number.POSITIVE_INFINITY }
    : real(approximate, 0);
  if (Math.max(bits(numerator), bits(denominator)) <= maxBits) value.exact = { numerator, denominator };
  return value;
}

/** Both may exceed the range of floating point even if their quotient does not. */
function quotient(numerator: bigint, denominator: bigint): number {
  const [above, below] = [numerator, denominator].map((value) => Math.max(0, bits(value) - 900)) as [number, number];
  return (Number(numerator >> BigInt(above)) / Number(denominator >> BigInt(below))) * 2 ** (above - below);
}

/** @param error without the rounding of the number itself */
export const real = (approximate: number, error: number): Value => ({
  approximate,
  error: error + rounding * Math.abs(approximate),
});

export const undefinedValue: Value = { approximate: Number.NaN, error: 0 };

/** Below it floating point loses digits and becomes 0, which would equal every other number that does. */
const smallestKept = 2 ** -1000;
const underflows = (result: number) => Math.abs(result) < smallestKept;

/** @param written digits with at most one decimal point and an exponent: `"12"`, `".5"`, `"3.140"`, `"6.02e23"` */
export function decimal(written: string): Value {
  const [digits = "", exponent = "0"] = written.toLowerCase().split("e");
  const [whole = "", places = ""] = digits.split(".");
  const shift = Number(exponent) - places.length;
  if (whole.length + places.length + Math.abs(shift) > maxDigits) return undefinedValue;
  const value = BigInt(whole + places || "0");
  return shift < 0 ? fraction(value, 10n ** BigInt(-shift)) : fraction(value * 10n ** BigInt(shift), 1n);
}

export function add(left: Value, right: Value): Value {
  const [a, b] = [left.exact, right.exact];
  if (!a || !b) return real(left.approximate + right.approximate, left.error + right.error);
  return fraction(a.numerator * b.denominator + b.numerator * a.denominator, a.denominator * b.denominator);
}

export function multiply(left: Value, right: Value): Value {
  const [a, b] = [left.exact, right.exact];
  if (a && b) return fraction(a.numerator * b.numerator, a.denominator * b.denominator);
  const [x, y] = [Math.abs(left.approximate), Math.abs(right.approximate)];
  if (x !== 0 && y !== 0 && underflows(x * y)) return undefinedValue;
  return real(left.approximate * right.approximate, x * right.error + y * left.error + left.error * right.error);
}

export function negate({ approximate, error, exact }: Value): Value {
  const value: Value = { approximate: -approximate, error };
  if (exact) value.exact = { numerator: -exact.numerator, denominator: exact.denominator };
  return value;
}

export const subtract = (left: Value, right: Value) => add(left, negate(right));
export const decimalOf = (integer: number): Value => fraction(BigInt(integer), 1n);

export function divide(left: Value, right: Value): Value {
  const [a, b] = [left.exact, right.exact];
  if (b?.numerator === 0n) return undefinedValue;
  if (a && b) return fraction(a.numerator * b.denominator, a.denominator * b.numerator);
  const smallest = Math.abs(right.approximate) - right.error;
  // It may be zero.
  if (!(smallest > 0)) return undefinedValue;
  const result = left.approximate / right.approximate;
  if (left.approximate !== 0 && underflows(result)) return undefinedValue;
  return real(result, (left.error + Math.abs(result) * right.error) / smallest);
}

/** Integer powers of fractions are exact, and so are roots with a rational result. */
export function power(base: Value, exponent: Value): Value {
  const [b, e] = [base.exact, exponent.exact];
  if (b && e && e.denominator === 1n && bits(e.numerator) <= 12) {
    const times = e.numerator < 0n ? -e.numerator : e.numerator;
    const size = Math.max(bits(b.numerator), bits(b.denominator));
    if (b.numerator === 0n && e.numerator <= 0n) return undefinedValue;
    if (size * Number(times) <= 2 * maxBits) {
      const raised = lowest(b.numerator ** times, b.denominator ** times);
      return e.numerator < 0n ? divide(decimalOf(1), raised) : raised;
    }
  }
  if (b && e && e.denominator > 1n && e.denominator <= 8n) {
    const root = exactRoot(b.numerator, b.denominator, Number(e.denominator));
    if (root) return power(root, lowest(e.numerator, 1n));
  }
  const result = base.approximate ** exponent.approximate;
  if (base.approximate !== 0 && underflows(result)) return undefinedValue;
  const distance = base.error / Math.abs(base.approximate);
  // The base may be zero, or of either sign.
  if (!(distance < 1))
    return exponent.approximate > 0 ? real(result, base.error ** exponent.approximate * 2) : undefinedValue;
  const logarithm = Math.abs(Math.log(Math.abs(base.approximate)));
  const relative = (Math.abs(exponent.approximate) * distance) / (1 - distance) + logarithm * exponent.error;
  return real(result, Math.abs(result) * Math.expm1(relative));
}

/** Applies a function of floating point, e.g. a sine. The error is computed at the ends of the argument's range. */
export function apply(compute: (value: number) => number, { approximate, error }: Value): Value {
  const result = compute(approximate);
  const ends = [compute(approximate - error), compute(approximate + error)].map((end) => Math.abs(end - result));
  return real(result, Math.max(...ends));
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

/**
 * Compares exactly if both values are exact, else within their error bounds. So a rounded decimal does not equal the number
 * that it rounds.
 * @returns undefined if a value is undefined or too uncertain
 */
export function compare(left: Value, right: Value): boolean | undefined {
  if (left.exact && right.exact) {
    return left.exact.numerator === right.exact.numerator && left.exact.denominator === right.exact.denominator;
  }
  const [a, b] = [left.approximate, right.approximate];
  const error = left.error + right.error;
  if (!Number.isFinite(a) || !Number.isFinite(b) || !Number.isFinite(error)) return undefined;
  if (Math.abs(a - b) > error) return false;
  if (error <= precise * Math.max(Math.abs(a), Math.abs(b))) return true;
  // Sums that cancel may both be zero.
  const bothZero = Math.abs(a) <= left.error && Math.abs(b) <= right.error && error <= precise;
  return bothZero ? true : undefined;
}

/** Largest relative error of a comparison. */
const precise = 1e-9;

export const equal = (left: Value, right: Value): boolean => compare(left, right) === true;
