/** Reads LaTeX and plain notation: first tokens, then expressions as functions of their variables. */

import * as rational from "./rational.ts";
import {
  absolute,
  add,
  binomial,
  decimal,
  decimalOf,
  divide,
  factorial,
  floor,
  imaginaryUnit,
  multiply,
  negate,
  power,
  real,
  spend,
  subtract,
  undefinedValue,
  type Value,
} from "./rational.ts";

interface Token {
  /** `name`: a variable, constant or function. `word`, `command`: text and LaTeX that expressions do not contain. */
  kind: "number" | "name" | "sign" | "word" | "command";
  text: string;
}

/** Commands and characters with the same meaning as a sign. */
const signs = new Map([
  ...Object.entries({ "\\cdot": "*", "\\times": "*", "\\ast": "*", "×": "*", "·": "*", "⋅": "*", "**": "^" }),
  ...Object.entries({ "\\div": "/", "÷": "/", "−": "-", "–": "-", "\\pm": "±", "\\mp": "∓", "\\%": "%" }),
  ...Object.entries({ "\\le": "<=", "\\leq": "<=", "≤": "<=", "\\ge": ">=", "\\geq": ">=", "≥": ">=" }),
  ...Object.entries({ "\\ne": "≠", "\\neq": "≠", "\\lt": "<", "\\gt": ">", "\\in": "∈", "\\to": "→" }),
  ...Object.entries({ "\\cup": "∪", "\\cap": "∩", "\\mid": "|", "\\vert": "|" }),
  ...Object.entries({
    "\\lvert": "|",
    "\\rvert": "|",
    "\\lVert": "\\|",
    "\\rVert": "\\|",
    "\\leqslant": "<=",
    "\\geqslant": ">=",
  }),
  ...Object.entries({ "\\langle": "(", "\\rangle": ")", "\\colon": ":", "∕": "/", "⁄": "/", "∗": "*" }),
  ...Object.entries({ "\\lbrace": "\\{", "\\rbrace": "\\}", "\\{": "\\{", "\\}": "\\}", "\\|": "\\|" }),
]);

const functions = new Set(
  "sqrt sin cos tan cot sec csc arcsin arccos arctan arcsinh arccosh arctanh sinh cosh tanh log ln exp cis abs binom frac surd".split(
    " ",
  ),
);
const greek =
  "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron rho sigma tau upsilon phi chi psi omega " +
  "varepsilon vartheta varrho varsigma varphi Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega ell hbar";
const variables = new Set(greek.split(" "));
const synonyms = new Map(
  Object.entries({ dfrac: "frac", tfrac: "frac", cfrac: "frac", dbinom: "binom", tbinom: "binom", "√": "surd" }).concat(
    Object.entries({ π: "pi", "∞": "infty", inf: "infty", infinity: "infty", oo: "infty", lg: "log" }),
    Object.entries({ asin: "arcsin", acos: "arccos", atan: "arctan", asinh: "arcsinh", acosh: "arccosh" }),
    Object.entries({ atanh: "arctanh", arsinh: "arcsinh", arcosh: "arccosh", artanh: "arctanh" }),
  ),
);
const constants = new Set(["pi", "infty"]);

/** Whether a name is a function. Other adjacent letters are a product. */
const isFunction = (name: string) => functions.has(name);

const piece = /\s+|\\[a-zA-Z]+|\\[^a-zA-Z]|\d+(?:\.\d+)?(?:[eE][+-]?\d+(?![\d.]))?|\.\d+|[a-zA-Z]+|<=|>=|\*\*|[^\s]/gu;

/** A run of at least this many letters is a word; fewer letters are a product of variables. */
const shortestWord = 4;

const tokenize = (text: string): Token[] => [...text.matchAll(piece)].flatMap(([written]) => toTokens(written));

function toTokens(written: string): Token[] {
  if (/^\s/.test(written) || /^\\\s/.test(written)) return [];
  if (/^\.?\d/.test(written)) return [{ kind: "number", text: written }];
  const sign = signs.get(written);
  if (sign !== undefined) return [{ kind: "sign", text: sign }];
  const letters = written.replace("\\", "");
  const name = synonyms.get(letters) ?? letters;
  // The argument of a plain "sqrt 23" is the whole number, since it has no braces.
  if (written === "sqrt") return [{ kind: "name", text: "surd" }];
  if (functions.has(name) || constants.has(name)) return [{ kind: "name", text: name }];
  if (written.startsWith("\\")) return [{ kind: variables.has(name) ? "name" : "command", text: name }];
  if (!/^[a-zA-Z]/.test(written)) return [{ kind: "sign", text: written }];
  const called = /^(sin|cos|tan|cot|sec|csc|ln|log)([xy])$/.exec(letters);
  if (called) return called.slice(1).map((text) => ({ kind: "name", text }));
  if (letters.length >= shortestWord) return [{ kind: "word", text: letters.toLowerCase() }];
  return [...letters].map((text) => ({ kind: "name", text }));
}

/** Whether two texts have the same tokens, ignoring white space and braces around a single index or exponent. */
export function sameTokens(left: string, right: string): boolean {
  const [a, b] = [withoutIndexBraces(tokenize(left)), withoutIndexBraces(tokenize(right))];
  return (
    a.length === b.length && a.every(({ kind, text }, index) => b[index]?.kind === kind && b[index]?.text === text)
  );
}

function withoutIndexBraces(tokens: readonly Token[]): Token[] {
  const isSign = (at: number, text: string) => tokens[at]?.kind === "sign" && tokens[at].text === text;
  const opens = (at: number) => isSign(at, "{") && isSign(at + 2, "}") && (isSign(at - 1, "_") || isSign(at - 1, "^"));
  return tokens.filter((_, at) => !opens(at) && !opens(at - 2) && !(at === 0 && isSign(at, "+")));
}

// Parses LaTeX and plain notation into a function of the variables' values.

export interface Expression {
  variables: ReadonlySet<string>;
  /** Undefined values (a root of a negative number, a division by zero) are NaN. */
  evaluate(variables: ReadonlyMap<string, Value>): Value;
}

type Evaluate = Expression["evaluate"];

/** Longer expressions are not parsed, and longer answers are compared as text. */
export const maxCharacters = 2000;
/** Deeper expressions are not parsed. */
const maxDepth = 200;

/** @returns undefined if the text is not an expression */
export function parseExpression(text: string): Expression | undefined {
  if (text.length > maxCharacters) return undefined;
  spend(text.length);
  const tokens = tokenize(text);
  if (tokens.length === 0) return undefined;
  try {
    const parser = new Parser(tokens);
    const evaluate = parser.sum();
    return parser.atEnd ? { variables: parser.variables, evaluate } : undefined;
  } catch (error) {
    if (error instanceof NoExpression) return undefined;
    throw error;
  }
}

class NoExpression extends Error {}

/** The commands around a number that is rounded down or up. */
const roundings = new Map([
  ["lfloor", "rfloor"],
  ["lceil", "rceil"],
]);

const closing = new Map([
  ["(", ")"],
  ["[", "]"],
  ["{", "}"],
  ["\\{", "\\}"],
]);

const onNumbers = new Map<string, (value: number) => number>([
  ["sin", Math.sin],
  ["cos", Math.cos],
  ["tan", Math.tan],
  ["cot", (x) => 1 / Math.tan(x)],
  ["sec", (x) => 1 / Math.cos(x)],
  ["csc", (x) => 1 / Math.sin(x)],
  ["arcsin", Math.asin],
  ["arccos", Math.acos],
  ["arctan", Math.atan],
  ["arcsinh", Math.asinh],
  ["arccosh", Math.acosh],
  ["arctanh", Math.atanh],
  ["sinh", Math.sinh],
  ["cosh", Math.cosh],
  ["tanh", Math.tanh],
  ["ln", Math.log],
  ["log", Math.log10],
]);

class Parser {
  readonly variables = new Set<string>();
  readonly #tokens: Token[];
  #at = 0;
  #depth = 0;

  constructor(tokens: Token[]) {
    this.#tokens = tokens;
  }

  get atEnd(): boolean {
    return this.#at === this.#tokens.length;
  }

  #is(text: string): boolean {
    const token = this.#tokens[this.#at];
    return token?.kind === "sign" && token.text === text;
  }

  #take(text: string): boolean {
    if (!this.#is(text)) return false;
    this.#at++;
    return true;
  }

  /** Limits every recursion, so that thousands of roots or signs do not overflow the stack. */
  #nested(parse: () => Evaluate): Evaluate {
    if (++this.#depth > maxDepth) throw new NoExpression();
    const result = parse();
    this.#depth--;
    return result;
  }

  sum(): Evaluate {
    return this.#nested(() => this.#sum());
  }

  #sum(): Evaluate {
    let result = this.#product();
    for (;;) {
      const left = result;
      if (this.#take("+")) {
        const right = this.#product();
        result = (of) => add(left(of), right(of));
      } else if (this.#take("-")) {
        const right = this.#product();
        result = (of) => subtract(left(of), right(of));
      } else return result;
    }
  }

  #product(): Evaluate {
    let result = this.#signed();
    for (;;) {
      const left = result;
      if (this.#take("*")) {
        const right = this.#signed();
        result = (of) => multiply(left(of), right(of));
      } else if (this.#take("/")) {
        const right = this.#signed();
        result = (of) => divide(left(of), right(of));
      } else if (this.#startsFactor()) {
        const right = this.#power();
        result = (of) => multiply(left(of), right(of));
      } else return result;
    }
  }

  /**
   * Whether the next token is a factor without a sign. A number is a factor only after a bracket: `1 0` and `x2` are not
   * products.
   */
  #startsFactor(): boolean {
    const token = this.#tokens[this.#at];
    if (token?.kind === "number") return /^[)}\]]$/.test(this.#tokens[this.#at - 1]?.text ?? "");
    if (token?.kind === "command") return roundings.has(token.text);
    return token?.kind === "name" || (token?.kind === "sign" && closing.has(token.text));
  }

  #signed(): Evaluate {
    if (this.#take("-")) return negated(this.#nested(() => this.#signed()));
    if (this.#take("+")) return this.#nested(() => this.#signed());
    return this.#power();
  }

  #power(): Evaluate {
    const base = this.#mixedNumber() ?? this.#postfix();
    if (!this.#take("^")) return base;
    const exponent = this.#argument();
    return (of) => power(base(of), exponent(of));
  }

  /** `3\frac{1}{2}` and `3 1/2`: a whole number before a fraction of whole numbers is added, not multiplied. */
  #mixedNumber(): Evaluate | undefined {
    const start = this.#at;
    const whole = this.#wholeNumber(start);
    if (whole === undefined) return undefined;
    let fraction: Evaluate | undefined;
    if (this.#tokens[start + 1]?.text === "frac") {
      this.#at += 2;
      fraction = this.#fraction();
      const parts = this.#tokens.slice(start + 2, this.#at);
      if (!parts.every(({ kind, text }) => kind === "number" || text === "{" || text === "}")) fraction = undefined;
    } else if (this.#tokens[start + 2]?.text === "/") {
      const [top, bottom] = [this.#wholeNumber(start + 1), this.#wholeNumber(start + 3)];
      if (top === undefined || bottom === undefined || top.approximate >= bottom.approximate) return undefined;
      this.#at += 4;
      fraction = () => divide(top, bottom);
    }
    if (fraction === undefined) {
      this.#at = start;
      return undefined;
    }
    // Ambiguous: the power may apply to the fraction or to the whole.
    if (this.#is("^") || this.#is("!") || this.#is("°")) throw new NoExpression();
    return (of) => add(whole, fraction(of));
  }

  #wholeNumber(at: number): Value | undefined {
    const token = this.#tokens[at];
    return token?.kind === "number" && /^\d+$/.test(token.text) ? decimal(token.text) : undefined;
  }

  #postfix(): Evaluate {
    let value = this.#atom();
    for (;;) {
      const inner = value;
      if (this.#take("!")) {
        // n!! is not (n!)!.
        if (this.#is("!")) throw new NoExpression();
        value = (of) => factorial(inner(of));
      } else if (this.#take("°")) value = (of) => multiply(inner(of), degreeInRadians);
      else return value;
    }
  }

  /** The argument of `^` and of commands: a braced group, a signed number, or a single digit or letter. */
  #argument(): Evaluate {
    if (this.#is("{") || this.#is("(")) return this.#atom();
    if (this.#take("-")) return negated(this.#nested(() => this.#argument()));
    return this.#atom();
  }

  #atom(): Evaluate {
    const token = this.#tokens[this.#at++];
    if (token === undefined) throw new NoExpression();
    if (token.kind === "number") {
      const value = decimal(token.text);
      return () => value;
    }
    if (token.kind === "name") return this.#nested(() => this.#named(token.text));
    if (token.text === "|") {
      const inside = this.sum();
      if (!this.#take("|")) throw new NoExpression();
      return (of) => absolute(inside(of));
    }
    const end = token.kind === "command" ? roundings.get(token.text) : undefined;
    if (end !== undefined) {
      const inside = this.sum();
      const last = this.#tokens[this.#at++];
      if (last?.kind !== "command" || last.text !== end) throw new NoExpression();
      return end === "rfloor" ? (of) => floor(inside(of)) : (of) => negate(floor(negate(inside(of))));
    }
    const close = closing.get(token.text);
    if (close === undefined) throw new NoExpression();
    const inside = this.sum();
    if (!this.#take(close)) throw new NoExpression();
    return inside;
  }

  #named(name: string): Evaluate {
    if (name === "pi") return () => real(Math.PI, 0);
    if (name === "e") return () => euler;
    if (name === "i" && !this.#is("_")) return () => imaginaryUnit;
    if (name === "infty") throw new NoExpression();
    if (name === "frac") return this.#fraction();
    if (name === "binom") {
      const [n, k] = [this.#digitOrGroup(), this.#digitOrGroup()];
      return (of) => binomial(n(of), k(of));
    }
    if (name === "sqrt" || name === "surd") return this.#root(name === "sqrt");
    if (name === "exp") {
      const exponent = this.#is("(") || this.#is("{") ? this.#atom() : this.#bareArgument();
      return (of) => power(euler, exponent(of));
    }
    if (name === "cis") {
      const angle = this.#is("(") || this.#is("{") ? this.#atom() : this.#bareArgument();
      return (of) => power(euler, multiply(imaginaryUnit, angle(of)));
    }
    if (name === "abs") {
      const value = this.#argument();
      return (of) => absolute(value(of));
    }
    const compute = onNumbers.get(name);
    if (compute) return this.#call(name, compute);
    if (isFunction(name)) throw new NoExpression();
    let variable = name;
    if (this.#take("_")) variable = `${name}_${this.#subscript()}`;
    this.variables.add(variable);
    return (of) => of.get(variable) ?? undefinedValue;
  }

  #subscript(): string {
    if (!this.#take("{")) return this.#tokens[this.#at++]?.text ?? "";
    let text = "";
    while (!this.atEnd && !this.#take("}")) text += ` ${this.#tokens[this.#at++]?.text}`;
    return text.trim();
  }

  /** `\frac12` is one half: without braces an argument is one digit. */
  #digitOrGroup(): Evaluate {
    const token = this.#tokens[this.#at];
    if (token?.kind === "number" && /^\d\d/.test(token.text)) {
      const digits = [token.text.slice(0, 1), token.text.slice(1)].map((text): Token => ({ kind: "number", text }));
      this.#tokens.splice(this.#at, 1, ...digits);
    }
    return this.#argument();
  }

  /** @param isLatex `\sqrt23` is the root of 2, times 3; a plain √23 is the root of 23 */
  #root(isLatex: boolean): Evaluate {
    let degree: Evaluate = () => two;
    if (this.#take("[")) {
      degree = this.sum();
      if (!this.#take("]")) throw new NoExpression();
    }
    const value = isLatex ? this.#digitOrGroup() : this.#argument();
    return (of) => {
      const [inside, n] = [value(of), degree(of)];
      const odd = n.exact?.denominator === 1n && n.exact.numerator % 2n !== 0n;
      if (inside.approximate < 0 && odd) return negate(power(negate(inside), divide(one, n)));
      // Negative values of variables are outside of the domain instead, so that sqrt(x) sqrt(y) is sqrt(xy).
      const isSquare = n.exact?.denominator === 1n && n.exact.numerator === 2n;
      if (isSquare && this.variables.size === 0 && !inside.imaginary && inside.approximate < -inside.error)
        return multiply(imaginaryUnit, power(negate(inside), divide(one, n)));
      return power(inside, divide(one, n));
    };
  }

  #call(name: string, compute: (value: number) => number): Evaluate {
    let base: Evaluate | undefined;
    let exponent: Evaluate | undefined;
    if (name === "log" && this.#take("_")) base = this.#digitOrGroup();
    const inverse = this.#inverse(name);
    if (!inverse && this.#take("^")) exponent = this.#argument();
    const argument = this.#is("(") || this.#is("{") ? this.#atom() : this.#bareArgument();
    return (of) => {
      const value = argument(of);
      const result = base
        ? divide(rational.apply(Math.log, value), rational.apply(Math.log, base(of)))
        : rational.apply(inverse ?? compute, value);
      return exponent ? power(result, exponent(of)) : result;
    };
  }

  /** `\sin^{-1}` is the arcsine. */
  #inverse(name: string): ((value: number) => number) | undefined {
    const texts = this.#tokens.slice(this.#at, this.#at + 5).map(({ text }) => text);
    const length = /^\^ { - 1 }/.test(texts.join(" ")) ? 5 : /^\^ - 1( |$)/.test(texts.join(" ")) ? 3 : 0;
    if (length === 0) return undefined;
    const inverse = onNumbers.get(`arc${name}`);
    if (inverse === undefined) throw new NoExpression();
    this.#at += length;
    return inverse;
  }

  /** `\sin 2x` is the sine of 2x; a sign, a bracket or another function ends the argument. */
  #bareArgument(): Evaluate {
    let result = this.#take("-") ? negated(this.#power()) : this.#power();
    for (;;) {
      const [left, next] = [result, this.#tokens[this.#at]];
      if (next?.kind !== "name" || onNumbers.has(next.text)) return result;
      const right = this.#power();
      result = (of) => multiply(left(of), right(of));
    }
  }

  #fraction(): Evaluate {
    const [top, bottom] = [this.#digitOrGroup(), this.#digitOrGroup()];
    return (of) => divide(top(of), bottom(of));
  }
}

const one = decimalOf(1);
const two = decimalOf(2);
const euler = real(Math.E, 0);
const degreeInRadians = real(Math.PI / 180, 0);
const negated =
  (value: Evaluate): Evaluate =>
  (of) =>
    negate(value(of));
