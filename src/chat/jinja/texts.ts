/** The methods of Python's strings, `%` and `format`, and JSON as `json.dumps` writes it. */

import {
  asInteger,
  Dict,
  fail,
  findIn,
  isNumber,
  isPythonSpace,
  isTrue,
  iterate,
  lengthOf,
  letters,
  Markup,
  paid,
  represent,
  sequence,
  sorted,
  spend,
  stripPython,
  Tuple,
  typeName,
  type Value,
  write,
  writeFloat,
} from "./values.ts";

// Parts of a text.

const text = (value: Value, what = "argument"): string =>
  typeof value === "string" ? value : fail("TypeError", `${what} must be str, not ${typeName(value)}`);

export const whole = (value: Value): number => {
  const integer = asInteger(value);
  if (integer === undefined)
    return fail("TypeError", `'${typeName(value)}' object cannot be interpreted as an integer`);
  return Number(integer > 2n ** 52n ? 2n ** 52n : integer < -(2n ** 52n) ? -(2n ** 52n) : integer);
};

/** @returns `part` at most `most` times in the text, as UTF-16 positions */
function* occurrences(self: string, part: string, most = Number.POSITIVE_INFINITY): Generator<number> {
  let at = findIn(self, part, 0);
  for (let count = 0; at >= 0 && count < most; count++) {
    yield at;
    at = findIn(self, part, at + part.length);
  }
}

export function replaceText(self: string, old: string, fresh: string, count = -1): string {
  const most = count < 0 ? Number.POSITIVE_INFINITY : count;
  const parts: string[] = [];
  if (old === "") {
    const all = [...letters(self)];
    for (const [index, letter] of all.entries()) parts.push(index < most ? paid(fresh) : "", letter);
    if (all.length < most) parts.push(fresh);
    spend(parts.length);
    return parts.join("");
  }
  let from = 0;
  for (const at of occurrences(paid(self), old, most)) {
    parts.push(self.slice(from, at), paid(fresh));
    from = at + old.length;
  }
  return parts.length === 0 ? self : parts.join("") + self.slice(from);
}

function split(self: string, separator: Value, most: number): string[] {
  const limit = most < 0 ? Number.POSITIVE_INFINITY : most;
  const parts: string[] = [];
  if (separator === null) {
    let rest = stripPython(paid(self), "start");
    while (rest !== "" && parts.length < limit) {
      let end = 0;
      while (end < rest.length && !isPythonSpace(rest[end] ?? "")) end++;
      parts.push(rest.slice(0, end));
      let next = end;
      while (next < rest.length && isPythonSpace(rest[next] ?? "")) next++;
      rest = rest.slice(next);
      spend(1);
    }
    return rest === "" ? parts : [...parts, rest];
  }
  const mark = text(separator);
  if (mark === "") fail("ValueError", "empty separator");
  let from = 0;
  for (const at of occurrences(paid(self), mark, limit)) {
    parts.push(self.slice(from, at));
    from = at + mark.length;
  }
  return [...parts, self.slice(from)];
}

function splitFromEnd(self: string, separator: Value, most: number): string[] {
  if (most < 0) return split(self, separator, -1);
  const reversed = (value: string) => [...paid(value)].reverse().join("");
  const mark = separator === null ? null : reversed(text(separator));
  return split(reversed(self), mark, most).map(reversed).reverse();
}

const lineEnd = "(?:\\r\\n|[\\n\\r\\v\\f\\x1c-\\x1e\\x85\\u2028\\u2029])";
const inLine = "[^\\n\\r\\v\\f\\x1c-\\x1e\\x85\\u2028\\u2029]";
const lines = new RegExp(`${inLine}*${lineEnd}|${inLine}+$`, "g");
const lastLineEnd = new RegExp(`${lineEnd}$`);

export function splitLines(self: string, keepEnds = false): string[] {
  const found = paid(self).match(lines) ?? [];
  spend(found.length);
  return found.map((line) => (keepEnds ? line : line.replace(lastLineEnd, "")));
}

/** Positions in characters, as Python counts them. */
function between(self: string, start: Value, end: Value): { part: string; offset: number } | undefined {
  if (start === null && end === null) return { part: self, offset: 0 };
  const all = letters(self);
  const place = (value: Value, otherwise: number) => {
    const index = value === null ? otherwise : whole(value);
    return index < 0 ? Math.max(0, index + all.length) : index;
  };
  const [from, until] = [place(start, 0), place(end, all.length)];
  if (from > all.length) return undefined;
  const part = all.slice(from, until);
  return { part: typeof part === "string" ? part : part.join(""), offset: from };
}

function find(self: string, part: Value, start: Value, end: Value, last = false): bigint {
  const wanted = text(part);
  const searched = between(self, start, end);
  if (searched === undefined) return -1n;
  let at = -1;
  if (last) {
    const found = findIn([...paid(searched.part)].reverse().join(""), [...wanted].reverse().join(""), 0);
    at = found < 0 ? -1 : searched.part.length - found - wanted.length;
  } else at = findIn(searched.part, wanted, 0);
  return at < 0 ? -1n : BigInt(searched.offset + letters(searched.part.slice(0, at)).length);
}

const found = (at: bigint) => (at < 0n ? fail("ValueError", "substring not found") : at);

/** `startswith` and `endswith`. */
function hasEdge(self: string, edges: Value, start: Value, end: Value, side: "startsWith" | "endsWith"): boolean {
  const searched = between(self, start, end);
  const wanted = edges instanceof Tuple ? edges.items : [edges];
  const name = side.toLowerCase();
  return wanted.some((given) => {
    const edge = given instanceof Markup ? given.text : given;
    if (typeof edge !== "string") {
      return fail("TypeError", `${name} first arg must be str or a tuple of str, not ${typeName(edge)}`);
    }
    return searched?.part[side](paid(edge)) ?? false;
  });
}

function strip(self: string, characters: Value, side: "start" | "end" | "both"): string {
  return stripPython(paid(self), side, characters === null ? undefined : text(characters, `strip arg`));
}
export const stripText = strip;

export const capitalize = (self: string): string => {
  const [first = "", ...rest] = letters(self);
  return titled(first) + rest.join("").toLowerCase();
};

/** Title case differs from upper case for a few ligatures. */
const titled = (letter: string) => {
  const upper = letter.toUpperCase();
  return upper.length > letter.length && letter !== "ŉ" ? (upper[0] ?? "") + upper.slice(1).toLowerCase() : upper;
};

function titleCase(self: string): string {
  return paid(self).replace(/\p{Cased}[\p{Cased}]*/gu, capitalize);
}

function pad(self: string, width: Value, fill: Value, side: "left" | "right" | "both"): string {
  const mark = text(fill);
  if (letters(mark).length !== 1) fail("TypeError", "The fill character must be exactly one character long");
  const length = letters(self).length;
  const missing = Math.max(0, whole(width) - length);
  spend(missing / 16);
  if (missing > 2 ** 26) fail("OverflowError", `a width of ${missing} characters`);
  const before = side === "left" ? 0 : side === "right" ? missing : (missing >> 1) + (missing & whole(width) & 1);
  return mark.repeat(before) + self + mark.repeat(missing - before);
}
export const centered = (self: string, width: Value) => pad(self, width, " ", "both");

function zfill(self: string, width: Value): string {
  const sign = /^[-+]/.exec(self)?.[0] ?? "";
  return sign + pad(self.slice(sign.length), BigInt(whole(width) - sign.length), "0", "right");
}

function partition(self: string, separator: Value, last: boolean): Tuple {
  const mark = text(separator);
  if (mark === "") fail("ValueError", "empty separator");
  const parts = last ? splitFromEnd(self, mark, 1) : split(self, mark, 1);
  if (parts.length === 1) return new Tuple(last ? ["", "", self] : [self, "", ""]);
  return new Tuple([parts[0], mark, parts[1]]);
}

function expandTabs(self: string, size: number): string {
  let column = 0;
  const out: string[] = [];
  for (const letter of letters(self)) {
    if (letter === "\t") {
      const blanks = size > 0 ? size - (column % size) : 0;
      spend(blanks / 16);
      out.push(" ".repeat(blanks));
      column += blanks;
    } else {
      out.push(letter);
      column = letter === "\n" || letter === "\r" ? 0 : column + 1;
    }
  }
  return out.join("");
}

export function joinTexts(separator: string, values: Value, convert: boolean): string {
  const parts: string[] = [];
  for (const value of iterate(values)) {
    if (!convert && typeof value !== "string") {
      fail("TypeError", `sequence item ${parts.length}: expected str instance, ${typeName(value)} found`);
    }
    parts.push(convert ? write(value) : paid(value as string));
    if (parts.length > 1) paid(separator);
  }
  return parts.join(separator);
}

/** Whether all characters match, and there is one. */
const every = (pattern: RegExp) => (self: string) => pattern.test(paid(self));

// The patterns match whole texts of single classes, so they take linear time.
const hasLower = /\p{Lowercase}/u;
const hasUpper = /\p{Uppercase}|\p{Lt}/u;

type Method = (self: string, ...args: Value[]) => Value;

/** Signatures: `?` marks an optional argument, `/` methods without named arguments. */
export const textMethods: Readonly<Record<string, readonly [signature: string, method: Method]>> = {
  upper: ["/", (self) => paid(self).toUpperCase()],
  lower: ["/", (self) => paid(self).toLowerCase()],
  casefold: ["/", (self) => paid(self).toLowerCase().replaceAll("ß", "ss").replaceAll("ς", "σ")],
  title: ["/", titleCase],
  capitalize: ["/", capitalize],
  swapcase: [
    "/",
    (self) => paid(self).replace(/\p{L}/gu, (one) => (hasUpper.test(one) ? one.toLowerCase() : one.toUpperCase())),
  ],
  strip: ["/ chars?", (self, characters = null) => strip(self, characters, "both")],
  lstrip: ["/ chars?", (self, characters = null) => strip(self, characters, "start")],
  rstrip: ["/ chars?", (self, characters = null) => strip(self, characters, "end")],
  split: ["sep? maxsplit?", (self, separator = null, most = -1n) => split(self, separator, whole(most))],
  rsplit: ["sep? maxsplit?", (self, separator = null, most = -1n) => splitFromEnd(self, separator, whole(most))],
  splitlines: ["keepends?", (self, keep = false) => splitLines(self, isTrue(keep))],
  partition: ["/ sep", (self, separator) => partition(self, separator, false)],
  rpartition: ["/ sep", (self, separator) => partition(self, separator, true)],
  replace: [
    "/ old new count?",
    (self, old, fresh, count = -1n) => replaceText(self, text(old), text(fresh), whole(count)),
  ],
  removeprefix: [
    "/ prefix",
    (self, edge) => (self.startsWith(paid(text(edge))) ? self.slice(text(edge).length) : self),
  ],
  removesuffix: [
    "/ suffix",
    (self, edge) => (edge !== "" && self.endsWith(paid(text(edge))) ? self.slice(0, -text(edge).length) : self),
  ],
  startswith: [
    "/ prefix start? end?",
    (self, edge, from = null, to = null) => hasEdge(self, edge, from, to, "startsWith"),
  ],
  endswith: ["/ suffix start? end?", (self, edge, from = null, to = null) => hasEdge(self, edge, from, to, "endsWith")],
  find: ["/ sub start? end?", (self, part, from = null, to = null) => find(self, part, from, to)],
  rfind: ["/ sub start? end?", (self, part, from = null, to = null) => find(self, part, from, to, true)],
  index: ["/ sub start? end?", (self, part, from = null, to = null) => found(find(self, part, from, to))],
  rindex: ["/ sub start? end?", (self, part, from = null, to = null) => found(find(self, part, from, to, true))],
  count: [
    "/ sub start? end?",
    (self, part, from = null, to = null) => {
      const wanted = text(part);
      const searched = between(self, from, to);
      if (searched === undefined) return 0n;
      if (wanted === "") return BigInt(letters(searched.part).length + 1);
      return BigInt([...occurrences(searched.part, wanted)].length);
    },
  ],
  join: ["/ iterable", (self, values) => joinTexts(self, values, false)],
  center: ["/ width fillchar?", (self, width, fill = " ") => pad(self, width, fill, "both")],
  ljust: ["/ width fillchar?", (self, width, fill = " ") => pad(self, width, fill, "left")],
  rjust: ["/ width fillchar?", (self, width, fill = " ") => pad(self, width, fill, "right")],
  zfill: ["/ width", zfill],
  expandtabs: ["tabsize?", (self, size = 8n) => expandTabs(self, whole(size))],
  isalpha: ["/", every(/^\p{L}+$/u)],
  isdecimal: ["/", every(/^\p{Nd}+$/u)],
  isdigit: [
    "/",
    every(/^[\p{Nd}\u00b2\u00b3\u00b9\u2070\u2074-\u2079\u2080-\u2089\u2460-\u2468\u2474-\u247c\u2488-\u2490]+$/u),
  ],
  isnumeric: ["/", every(/^[\p{N}]+$/u)],
  isalnum: ["/", every(/^[\p{L}\p{N}]+$/u)],
  isascii: ["/", (self) => /^[\0-\x7f]*$/.test(paid(self))],
  isspace: ["/", (self) => self !== "" && stripPython(paid(self), "end") === ""],
  isprintable: ["/", (self) => !/[\p{C}\p{Zl}\p{Zp}]|(?! )\p{Zs}/u.test(paid(self))],
  isidentifier: ["/", every(/^[\p{L}\p{Nl}_][\p{L}\p{Nl}\p{Mn}\p{Mc}\p{Nd}\p{Pc}]*$/u)],
  islower: ["/", isLower],
  isupper: ["/", isUpper],
  istitle: ["/", (self) => (hasLower.test(self) || hasUpper.test(self)) && titleCase(self) === self],
};

export function isLower(self: string): boolean {
  return hasLower.test(paid(self)) && !hasUpper.test(self);
}

export function isUpper(self: string): boolean {
  return hasUpper.test(paid(self)) && !hasLower.test(self);
}

// Numbers in a format.

/** The exact value of a float as a fraction. */
function fraction(value: number): [numerator: bigint, denominator: bigint] {
  const bits = new DataView(new ArrayBuffer(8));
  bits.setFloat64(0, Math.abs(value));
  const raw = bits.getBigUint64(0);
  const exponent = Number(raw >> 52n);
  const mantissa = (raw & (2n ** 52n - 1n)) | (exponent === 0 ? 0n : 2n ** 52n);
  const power = (exponent === 0 ? 1 : exponent) - 1075;
  return power >= 0 ? [mantissa << BigInt(power), 1n] : [mantissa, 1n << BigInt(-power)];
}

const mostDecimals = 1000;

/** Rounds as Python does: the exact value, and halves to even. */
export function fixed(value: number, decimals: number): string {
  if (!Number.isFinite(value)) return writeFloat(value);
  if (decimals > mostDecimals) fail("ValueError", `${decimals} decimals`);
  spend(decimals);
  const [numerator, denominator] = fraction(value);
  const scaled = decimals >= 0 ? numerator * 10n ** BigInt(decimals) : numerator;
  const unit = decimals >= 0 ? denominator : denominator * 10n ** BigInt(Math.min(400, -decimals));
  let digits = scaled / unit;
  const rest = (scaled % unit) * 2n;
  if (rest > unit || (rest === unit && digits % 2n === 1n)) digits++;
  const sign = value < 0 || Object.is(value, -0) ? "-" : "";
  if (decimals <= 0) return `${sign}${digits * 10n ** BigInt(Math.min(400, -decimals))}`;
  const written = digits.toString().padStart(decimals + 1, "0");
  return `${sign}${written.slice(0, -decimals)}.${written.slice(-decimals)}`;
}

const exponential = (value: number, decimals: number) =>
  value.toExponential(Math.min(100, decimals)).replace(/e([+-])(\d)$/, "e$10$2");

/** @param asDecimal keeps a digit after the point, as Python does without a type */
function general(value: number, precision: number, keepZeros = false, asDecimal = false): string {
  const figures = Math.max(1, Math.min(100, precision));
  const power = value === 0 ? 0 : Number(value.toExponential(figures - 1).split("e")[1]);
  const usesExponent = power < -4 || power >= figures - (asDecimal ? 1 : 0);
  const written = usesExponent ? exponential(value, figures - 1) : fixed(value, figures - 1 - power);
  return keepZeros || !written.includes(".") ? written : written.replace(/\.?0+(?=e|$)/, "");
}

interface Format {
  fill: string;
  align: string;
  sign: string;
  alternate: boolean;
  width: number;
  grouping: string;
  precision: number | undefined;
  type: string;
}

function formatted(value: Value, format: Format): string {
  const { fill, sign, alternate, width, grouping, precision, type } = format;
  let { align } = format;
  if (width > 2 ** 20) fail("ValueError", `a width of ${width} characters`);
  let body: string;
  let prefix = "";
  if (isNumber(value) && type !== "s" && type !== "c") {
    align ||= ">";
    const integer = asInteger(value);
    const number = Number(value);
    if ("dbxXon".includes(type || "d") && integer !== undefined) {
      if (precision !== undefined) fail("ValueError", "Precision not allowed in integer format specifier");
      const base = { b: 2, o: 8, x: 16, X: 16 }[type] ?? 10;
      body = (integer < 0n ? -integer : integer).toString(base);
      if (type === "X") body = body.toUpperCase();
      if (alternate && base !== 10) prefix = `0${type}`;
      if (integer < 0n) body = `-${body}`;
    } else if ("dbxXoc".includes(type || "f")) {
      return fail("ValueError", `Unknown format code '${type}' for object of type '${typeName(value)}'`);
    } else if (!Number.isFinite(number)) body = writeFloat(number);
    else if (type === "f" || type === "F") body = fixed(number, precision ?? 6);
    else if (type === "e" || type === "E") body = exponential(number, precision ?? 6);
    else if (type === "%") body = `${fixed(number * 100, precision ?? 6)}%`;
    else if (type === "" && precision === undefined) body = writeFloat(number);
    else body = general(number, precision ?? 6, alternate, type === "");
    if (type === "E" || type === "G") body = body.toUpperCase();
    if (type === "" && precision !== undefined && !/[.e]/.test(body) && Number.isFinite(number)) body += ".0";
    const minus = body.startsWith("-");
    body = minus ? body.slice(1) : body;
    if (grouping) body = body.replace(/^\d+/, (figures) => figures.replace(/\B(?=(\d{3})+$)/g, grouping));
    prefix = (minus ? "-" : sign === "-" || sign === "" ? "" : sign) + prefix;
  } else {
    if (type !== "" && type !== "s")
      return fail("ValueError", `Unknown format code '${type}' for object of type '${typeName(value)}'`);
    if (sign !== "" && sign !== "-") fail("ValueError", "Sign not allowed in string format specifier");
    if (grouping) fail("ValueError", `Cannot specify '${grouping}' with 's'.`);
    body = write(value);
    if (precision !== undefined) body = [...letters(body)].slice(0, precision).join("");
    align ||= "<";
    if (align === "=") fail("ValueError", "'=' alignment not allowed in string format specifier");
  }
  const missing = Math.max(0, width - letters(body).length - prefix.length);
  spend(missing / 16);
  if (align === "=") return paid(prefix + fill.repeat(missing) + body);
  const before = align === ">" ? missing : align === "^" ? missing >> 1 : 0;
  return paid(fill.repeat(before) + prefix + body + fill.repeat(missing - before));
}

/** Python's `%` of a string. */
export function percent(pattern: string, given: Value): string {
  const values = given instanceof Tuple ? [...given.items] : [given];
  let used = 0;
  const next = () =>
    used < values.length ? values[used++] : fail("TypeError", "not enough arguments for format string");
  const written = paid(pattern).replace(
    /%(?:\(([^()]*)\))?([-+ #0]*)(\*|\d+)?(?:\.(\*|\d+)?)?[hlL]?([\s\S]?)/g,
    (
      all,
      key: string | undefined,
      flags: string,
      wide: string | undefined,
      exact: string | undefined,
      type: string,
    ) => {
      spend(1);
      if (type === "%") return "%";
      const width = wide === "*" ? whole(next()) : Number(wide ?? 0);
      const hasPoint = /\.(?:\*|\d*)[hlL]?[\s\S]?$/.test(all);
      const precision = exact === "*" ? whole(next()) : hasPoint ? Number(exact ?? 0) : undefined;
      let value: Value;
      if (key === undefined) value = next();
      else {
        if (!(given instanceof Dict)) fail("TypeError", "format requires a mapping");
        const dict = given as Dict;
        if (!dict.has(key)) fail("KeyError", `'${key}'`);
        value = dict.get(key);
        used = values.length;
      }
      if (!"diouxXeEfFgGcrsa".includes(type) || type === "") {
        fail("ValueError", `unsupported format character '${type}'`);
      }
      const left = flags.includes("-");
      const zero = flags.includes("0") && !left && isNumber(value) && !"rsac".includes(type);
      const format: Format = {
        fill: zero ? "0" : " ",
        align: left ? "<" : zero ? "=" : ">",
        sign: flags.includes("+") ? "+" : flags.includes(" ") ? " " : "-",
        alternate: flags.includes("#"),
        width: Math.abs(width),
        grouping: "",
        precision,
        type: "s",
      };
      const asText = { ...format, sign: "" };
      if (type === "s") return formatted(write(value), asText);
      if (type === "r" || type === "a") return formatted(represent(value), asText);
      if (type === "c") {
        const code = asInteger(value);
        if (code === undefined && lengthOf(text(value)) !== 1) fail("TypeError", "%c requires int or char");
        return formatted(code === undefined ? text(value) : String.fromCodePoint(Number(code)), asText);
      }
      if (!isNumber(value))
        return fail("TypeError", `%${type} format: a real number is required, not ${typeName(value)}`);
      if ("diu".includes(type)) {
        const integer = asInteger(value) ?? BigInt(Math.trunc(value as number));
        const padded =
          precision === undefined ? undefined : (integer < 0n ? -integer : integer).toString().padStart(precision, "0");
        if (padded === undefined) return formatted(integer, { ...format, type: "d", precision: undefined });
        return formatted((integer < 0n ? "-" : format.sign === "-" ? "" : format.sign) + padded, {
          ...asText,
          fill: " ",
          align: left ? "<" : ">",
          precision: undefined,
        });
      }
      if ("oxX".includes(type) && asInteger(value) === undefined) {
        return fail("TypeError", `%${type} format: an integer is required, not ${typeName(value)}`);
      }
      if ("oxX".includes(type)) return formatted(asInteger(value), { ...format, type, precision: undefined });
      return formatted(Number(value), { ...format, type });
    },
  );
  // Python ignores a list, and whatever else has items, if the text has no place for it.
  const unused =
    given instanceof Tuple
      ? used < values.length
      : used === 0 && (isNumber(given) || given === null || typeof given === "string");
  if (unused) {
    fail("TypeError", "not all arguments converted during string formatting");
  }
  return paid(written);
}

/** Reads an attribute or an item of a value, as templates do. */
export type Member = (value: Value, key: Value, kind: "attribute" | "item") => Value;

/** `str.format`. */
export function formatText(
  pattern: string,
  positional: readonly Value[],
  named: ReadonlyMap<string, Value>,
  member: Member,
) {
  let automatic = 0;
  const argument = (name: string): Value => {
    const index = name === "" ? automatic++ : /^\d+$/.test(name) ? Number(name) : undefined;
    if (index === undefined) return named.has(name) ? named.get(name) : fail("KeyError", `'${name}'`);
    return index < positional.length ? positional[index] : fail("IndexError", "Replacement index out of range");
  };
  const field = (name: string): Value => {
    const first = /^[^.[]*/.exec(name)?.[0] ?? "";
    let value = argument(first);
    for (const [, attribute, key] of name.slice(first.length).matchAll(/\.([^.[]+)|\[([^\]]+)\]/g)) {
      if (attribute !== undefined) value = member(value, attribute, "attribute");
      else value = member(value, /^\d+$/.test(key ?? "") ? BigInt(key ?? "") : key, "item");
    }
    return value;
  };
  const expand = (source: string): string =>
    paid(source).replace(
      /\{\{|\}\}|\{([^{}!:]*)(?:!([rsa]))?(?::((?:[^{}]|\{[^{}]*\})*))?\}|[{}]/g,
      (all, name?: string, conversion?: string, spec = "") => {
        spend(1);
        if (all === "{{" || all === "}}") return all[0] ?? "";
        if (name === undefined) return fail("ValueError", "a single brace in a format string");
        const value = field(name);
        const shown = conversion === undefined ? value : conversion === "s" ? write(value) : represent(value);
        return withFormat(shown, spec.includes("{") ? expand(spec) : spec);
      },
    );
  return paid(expand(pattern));
}

function withFormat(value: Value, spec: string): string {
  if (spec === "") return write(value);
  const found = /^(?:([\s\S])?([<>=^]))?([-+ ])?(#)?(0)?(\d+)?([,_])?(?:\.(\d+))?([a-zA-Z%])?$/u.exec(spec);
  if (found === null) return fail("ValueError", "Invalid format specifier");
  if (!isNumber(value) && typeof value !== "string" && !(value instanceof Markup)) {
    return fail("TypeError", `unsupported format string passed to ${typeName(value)}.__format__`);
  }
  const [, fill, align, sign = "-", alternate, zero, width = "0", grouping = "", precision, type = ""] = found;
  return formatted(value, {
    fill: fill ?? (zero ? "0" : " "),
    align: align ?? (zero && isNumber(value) ? "=" : ""),
    sign,
    alternate: alternate !== undefined,
    width: Number(width),
    grouping,
    precision: precision === undefined ? undefined : Number(precision),
    type,
  });
}

// JSON.

export interface JsonOptions {
  ascii: boolean;
  indent: string | undefined;
  separators: readonly [item: string, key: string];
  sortKeys: boolean;
}

/** Python's `json.dumps`. */
export function toJson(value: Value, options: JsonOptions, depth = 0): string {
  spend(1);
  const { indent, separators, sortKeys } = options;
  if (value === null) return "null";
  if (typeof value === "boolean") return value ? "true" : "false";
  if (typeof value === "string") return jsonText(value, options.ascii);
  if (value instanceof Markup) return jsonText(value.text, options.ascii);
  if (typeof value === "number") return writeFloat(value, "Infinity", "NaN");
  if (typeof value === "bigint") return represent(value);
  const inner = (item: Value) => toJson(item, options, depth + 1);
  const around = (open: string, parts: readonly string[], close: string) => {
    if (parts.length === 0) return open + close;
    const line = indent === undefined ? "" : `\n${indent.repeat(depth + 1)}`;
    const last = indent === undefined ? "" : `\n${indent.repeat(depth)}`;
    return paid(open + line + parts.join(separators[0] + line) + last + close);
  };
  const items = sequence(value);
  if (items) return around("[", items.map(inner), "]");
  if (value instanceof Dict) {
    const pairs = sortKeys ? sorted(value.pairs(), ([key]) => key) : value.pairs();
    const parts = pairs.map(([key, item]) => jsonText(jsonKey(key), options.ascii) + separators[1] + inner(item));
    return around("{", parts, "}");
  }
  return fail("TypeError", `Object of type ${typeName(value)} is not JSON serializable`);
}

function jsonKey(key: Value): string {
  if (typeof key === "string") return key;
  if (key === null || isNumber(key))
    return toJson(key, { ascii: false, indent: undefined, separators: ["", ""], sortKeys: false });
  return fail("TypeError", `keys must be str, int, float, bool or None, not ${typeName(key)}`);
}

const jsonEscapes: Record<string, string> = {
  '"': '\\"',
  "\\": "\\\\",
  "\n": "\\n",
  "\r": "\\r",
  "\t": "\\t",
  "\f": "\\f",
  "\b": "\\b",
};

function jsonText(value: string, ascii: boolean): string {
  const pattern = ascii ? /["\\]|[^ -~]/g : /["\\]|(?![ -\uffff])[\s\S]/g;
  const hex = (unit: string) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`;
  return paid(`"${paid(value).replace(pattern, (unit) => jsonEscapes[unit] ?? hex(unit))}"`);
}

/** The indentation of `tojson` or `indent`: a number of blanks or a text. */
export function indentation(value: Value): string {
  if (typeof value === "string") return value;
  const count = whole(value);
  spend(Math.max(0, count) / 16);
  if (count > 10_000) fail("OverflowError", `an indentation of ${count}`);
  return " ".repeat(Math.max(0, count));
}

/**
 * Python's `json.loads`: the order of keys, and integers of any size, are kept.
 *
 * @throws SyntaxError if it is not JSON
 */
export function fromJson(source: string): Value {
  JSON.parse(source);
  const pattern = /\s*(?:("(?:[^"\\]|\\.)*")|(-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)|([[\]{},:]|true|false|null))/y;
  let token = pattern.exec(source);
  const take = () => {
    const taken = token;
    token = pattern.exec(source);
    return taken;
  };
  const read = (): Value => {
    spend(1);
    const [, string, number, mark] = take() ?? [];
    if (string !== undefined) return JSON.parse(string);
    if (number !== undefined) return /[.eE]/.test(number) ? Number(number) : BigInt(number);
    if (mark === "true" || mark === "false") return mark === "true";
    if (mark === "null") return null;
    const end = mark === "[" ? "]" : "}";
    const pairs: [Value, Value][] = [];
    while (token?.[3] !== end) {
      if (token?.[3] === ",") take();
      const key = end === "}" ? read() : null;
      if (end === "}") take();
      pairs.push([key, read()]);
    }
    take();
    return end === "}" ? Dict.from(pairs) : pairs.map(([, value]) => value);
  };
  return read();
}
