/**
 * Numbers of answers: exact fractions while they are small, otherwise floating point with an error bound, and complex numbers
 * of both. First the budget that limits the work of a comparison, because 2,000 characters could otherwise take minutes.
 */
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

// Real numbers.

export interface Value {
  approximate: number;
  /** The true value is within this distance of `approximate`. */
  error: number;
  /** The value in lowest terms with a positive denominator, if it is known exactly. */
  exact?: { numerator: bigint; denominator: bigint };
  /** The part that is multiplied by i; absent for a real number. The other fields are the real part. */
  imaginary?: Value;
}

/** Larger numbers are not kept exactly. 2000! has 19,053 bits. */
const maxBits = 20_000;
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
  const size = bits(numerator) + bits(denominator);
  spend(1 + size / 16);
  if (denominator === 1n) return lowest(numerator, 1n);
  // Euclid's algorithm takes quadratic time.
  spend((size / 512) ** 2);
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

function addReal(left: Value, right: Value): Value {
  const [a, b] = [left.exact, right.exact];
  if (!a || !b) return real(left.approximate + right.approximate, left.error + right.error);
  return fraction(a.numerator * b.denominator + b.numerator * a.denominator, a.denominator * b.denominator);
}

function multiplyReal(left: Value, right: Value): Value {
  const [a, b] = [left.exact, right.exact];
  if (a && b) return fraction(a.numerator * b.numerator, a.denominator * b.denominator);
  const [x, y] = [Math.abs(left.approximate), Math.abs(right.approximate)];
  if (x !== 0 && y !== 0 && underflows(x * y)) return undefinedValue;
  return real(left.approximate * right.approximate, x * right.error + y * left.error + left.error * right.error);
}

function negateReal({ approximate, error, exact }: Value): Value {
  const value: Value = { approximate: -approximate, error };
  if (exact) value.exact = { numerator: -exact.numerator, denominator: exact.denominator };
  return value;
}

export const decimalOf = (integer: number): Value => fraction(BigInt(integer), 1n);

function divideReal(left: Value, right: Value): Value {
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
function powerReal(base: Value, exponent: Value): Value {
  const [b, e] = [base.exact, exponent.exact];
  if (b && e && e.denominator === 1n && bits(e.numerator) <= 16) {
    const times = e.numerator < 0n ? -e.numerator : e.numerator;
    const size = Math.max(bits(b.numerator), bits(b.denominator));
    if (b.numerator === 0n && e.numerator <= 0n) return undefinedValue;
    if (size * Number(times) <= 2 * maxBits) {
      spend((size * Number(times)) / 16);
      const raised = lowest(b.numerator ** times, b.denominator ** times);
      return e.numerator < 0n ? divideReal(decimalOf(1), raised) : raised;
    }
  }
  if (b && e && e.denominator > 1n && e.denominator <= 8n) {
    const root = exactRoot(b.numerator, b.denominator, Number(e.denominator));
    if (root) return powerReal(root, lowest(e.numerator, 1n));
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

/**
 * Applies a function of floating point, e.g. a sine. The error is computed at the ends of the argument's range; an end outside
 * of the function's domain does not count, as that of arcsin 1.
 */
export function apply(compute: (value: number) => number, value: Value): Value {
  if (value.imaginary) return undefinedValue;
  const { approximate, exact } = value;
  const isWhole = exact?.denominator === 1n && Number.isSafeInteger(approximate);
  const error = isWhole ? 0 : value.error;
  const result = compute(approximate);
  const ends = [compute(approximate - error), compute(approximate + error)]
    .filter((end) => !Number.isNaN(end))
    .map((end) => Math.abs(end - result));
  return real(result, Math.max(0, ...ends));
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

/** Without its fraction: the largest integer that is not above it. Undefined if the error bound contains an integer. */
export function floor({ approximate, error, exact, imaginary }: Value): Value {
  if (imaginary) return undefinedValue;
  if (exact) {
    const rest = ((exact.numerator % exact.denominator) + exact.denominator) % exact.denominator;
    return fraction((exact.numerator - rest) / exact.denominator, 1n);
  }
  const [low, high] = [Math.floor(approximate - error), Math.floor(approximate + error)];
  return low === high && Number.isSafeInteger(low) ? decimalOf(low) : undefinedValue;
}

const factorials = [1n];

/** Of whole numbers up to 2,000. */
export function factorial({ exact, imaginary }: Value): Value {
  if (imaginary || exact?.denominator !== 1n || exact.numerator < 0n || exact.numerator > 2000n) return undefinedValue;
  const n = Number(exact.numerator);
  spend(1 + n / 2);
  for (let next = factorials.length; next <= n; next++) factorials.push((factorials[next - 1] ?? 1n) * BigInt(next));
  return lowest(factorials[n] ?? 1n, 1n);
}

/** n (n - 1) ... (n - k + 1) / k! for whole k, so that `n` may be a variable. */
export function binomial(n: Value, k: Value): Value {
  if (n.imaginary || k.imaginary || !n.exact || k.exact?.denominator !== 1n || k.exact.numerator < 0n)
    return undefinedValue;
  const isWhole = n.exact.denominator === 1n && n.exact.numerator >= 0n;
  const above = n.exact.numerator;
  if (isWhole && k.exact.numerator > above) return decimalOf(0);
  const rest = isWhole ? above - k.exact.numerator : k.exact.numerator;
  const times = Number(rest < k.exact.numerator ? rest : k.exact.numerator);
  if (times > 2000 || (bits(above) + bits(n.exact.denominator)) * times > maxBits) return undefinedValue;
  spend(1 + times);
  let [top, bottom] = [1n, 1n];
  for (let index = 0; index < times; index++) {
    top *= above - BigInt(index) * n.exact.denominator;
    bottom *= n.exact.denominator * BigInt(index + 1);
  }
  return fraction(top, bottom);
}

// Complex numbers: pairs of real ones.

const zero = decimalOf(0);

function complex(realPart: Value, imaginary: Value): Value {
  const { approximate, error, exact } = realPart;
  const value: Value = { approximate, error };
  if (exact) value.exact = exact;
  if (imaginary.exact?.numerator !== 0n) value.imaginary = imaginary;
  return value;
}

const partsOf = (value: Value): [Value, Value] => [complex(value, zero), value.imaginary ?? zero];

export const imaginaryUnit: Value = complex(zero, decimalOf(1));

export function add(left: Value, right: Value): Value {
  const sum = addReal(left, right);
  if (!left.imaginary && !right.imaginary) return sum;
  return complex(sum, addReal(left.imaginary ?? zero, right.imaginary ?? zero));
}

export function negate(value: Value): Value {
  const negated = negateReal(value);
  return value.imaginary ? complex(negated, negateReal(value.imaginary)) : negated;
}

export const subtract = (left: Value, right: Value) => add(left, negate(right));

export function multiply(left: Value, right: Value): Value {
  if (!left.imaginary && !right.imaginary) return multiplyReal(left, right);
  const [[a, b], [c, d]] = [partsOf(left), partsOf(right)];
  return complex(
    addReal(multiplyReal(a, c), negateReal(multiplyReal(b, d))),
    addReal(multiplyReal(a, d), multiplyReal(b, c)),
  );
}

export function divide(left: Value, right: Value): Value {
  if (!left.imaginary && !right.imaginary) return divideReal(left, right);
  const [c, d] = partsOf(right);
  const square = addReal(multiplyReal(c, c), multiplyReal(d, d));
  const [top, bottom] = partsOf(multiply(left, complex(c, negateReal(d))));
  return complex(divideReal(top, square), divideReal(bottom, square));
}

export function absolute(value: Value): Value {
  if (!value.imaginary) return value.approximate < 0 ? negateReal(value) : value;
  const [a, b] = partsOf(value);
  return powerReal(addReal(multiplyReal(a, a), multiplyReal(b, b)), divideReal(decimalOf(1), decimalOf(2)));
}

export function power(base: Value, exponent: Value): Value {
  if (!base.imaginary && !exponent.imaginary) return powerReal(base, exponent);
  const whole =
    exponent.exact?.denominator === 1n && !exponent.imaginary ? Number(exponent.exact.numerator) : Number.NaN;
  if (Math.abs(whole) <= 200) {
    let result = decimalOf(1);
    for (let index = 0; index < Math.abs(whole); index++) result = multiply(result, base);
    return whole < 0 ? divide(decimalOf(1), result) : result;
  }
  // exp(exponent * ln(base)) of the principal value, in floating point.
  const [a, b] = partsOf(base);
  const [c, d] = partsOf(exponent);
  const uncertain = [a, b, c, d].some(({ approximate, error }) => error > 1e-13 * Math.max(1, Math.abs(approximate)));
  const length = Math.hypot(a.approximate, b.approximate);
  if (uncertain || !(length > 1e-6 && length < 1e6 && Math.hypot(c.approximate, d.approximate) < 1e3))
    return undefinedValue;
  const [logarithm, angle] = [Math.log(length), Math.atan2(b.approximate, a.approximate)];
  const size = Math.exp(c.approximate * logarithm - d.approximate * angle);
  const turn = d.approximate * logarithm + c.approximate * angle;
  const error = 1e-11 * size;
  return complex(real(size * Math.cos(turn), error), real(size * Math.sin(turn), error));
}

/**
 * Compares exactly if both values are exact, else within their error bounds. So a rounded decimal does not equal the number
 * that it rounds.
 * @returns undefined if a value is undefined or too uncertain
 */
export function compare(left: Value, right: Value): boolean | undefined {
  const verdict = compareReal(left, right);
  if (verdict === false || (!left.imaginary && !right.imaginary)) return verdict;
  const imaginary = compareReal(left.imaginary ?? zero, right.imaginary ?? zero);
  return imaginary === false ? false : verdict && imaginary;
}

function compareReal(left: Value, right: Value): boolean | undefined {
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
