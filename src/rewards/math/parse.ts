/** Tokens into a function of the variables' values. Knows LaTeX's fractions, roots, powers and products without a sign. */
import { add, decimal, decimalOf, divide, multiply, negate, power, real, subtract, type Value } from "./rational.ts";
import { isFunction, type Token, tokenize } from "./tokens.ts";

export interface Expression {
  variables: ReadonlySet<string>;
  /** Undefined values (a root of a negative number, a division by zero) are NaN. */
  evaluate(variables: ReadonlyMap<string, Value>): Value;
}

type Evaluate = Expression["evaluate"];

/** Longer or deeper than any answer; what lies beyond is not looked into. */
const longest = 2000;
const deepest = 100;

/** @returns undefined when the text is no expression */
export function parseExpression(text: string): Expression | undefined {
  const tokens = text.length > longest ? undefined : tokenize(text);
  if (tokens === undefined || tokens.length === 0) return undefined;
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

const closing: Record<string, string> = { "(": ")", "[": "]", "{": "}", "\\{": "\\}" };

const onNumbers: Record<string, (value: number) => number> = {
  sin: Math.sin,
  cos: Math.cos,
  tan: Math.tan,
  cot: (x) => 1 / Math.tan(x),
  sec: (x) => 1 / Math.cos(x),
  csc: (x) => 1 / Math.sin(x),
  arcsin: Math.asin,
  arccos: Math.acos,
  arctan: Math.atan,
  sinh: Math.sinh,
  cosh: Math.cosh,
  tanh: Math.tanh,
  ln: Math.log,
  log: Math.log10,
  exp: Math.exp,
};

class Parser {
  readonly variables = new Set<string>();
  readonly #tokens: readonly Token[];
  #at = 0;
  #depth = 0;

  constructor(tokens: readonly Token[]) {
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

  sum(): Evaluate {
    if (++this.#depth > deepest) throw new NoExpression();
    let result = this.#product();
    for (;;) {
      const left = result;
      if (this.#take("+")) {
        const right = this.#product();
        result = (of) => add(left(of), right(of));
      } else if (this.#take("-")) {
        const right = this.#product();
        result = (of) => subtract(left(of), right(of));
      } else break;
    }
    this.#depth--;
    return result;
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
        const mixed = this.#mixedNumber();
        const right = this.#power();
        result = mixed ? (of) => add(left(of), right(of)) : (of) => multiply(left(of), right(of));
      } else return result;
    }
  }

  /** `3\frac{1}{2}`: a whole number right before a fraction of whole numbers is added, not multiplied. */
  #mixedNumber(): boolean {
    const [before, fraction] = [this.#tokens[this.#at - 1], this.#tokens[this.#at]];
    const alone = this.#tokens[this.#at - 2];
    return (
      before?.kind === "number" &&
      !before.text.includes(".") &&
      (alone === undefined || alone.kind === "sign") &&
      fraction?.kind === "name" &&
      fraction.text === "frac" &&
      this.#tokens
        .slice(this.#at + 1, this.#at + 7)
        .every((token) => token.kind === "number" || /[{}]/.test(token.text))
    );
  }

  #startsFactor(): boolean {
    const token = this.#tokens[this.#at];
    return token !== undefined && (token.kind !== "sign" || token.text in closing);
  }

  #signed(): Evaluate {
    if (this.#take("-")) {
      const value = this.#signed();
      return (of) => negate(value(of));
    }
    if (this.#take("+")) return this.#signed();
    return this.#power();
  }

  #power(): Evaluate {
    const base = this.#factorial();
    if (!this.#take("^")) return base;
    const exponent = this.#argument();
    return (of) => power(base(of), exponent(of));
  }

  #factorial(): Evaluate {
    let value = this.#atom();
    while (this.#take("!")) {
      const inner = value;
      value = (of) => factorial(inner(of));
    }
    return value;
  }

  /** What `^` and commands take: a braced group, a signed number, or a single digit or letter as LaTeX has it. */
  #argument(): Evaluate {
    if (this.#is("{") || this.#is("(")) return this.#atom();
    if (this.#take("-")) {
      const value = this.#argument();
      return (of) => negate(value(of));
    }
    return this.#atom();
  }

  #atom(): Evaluate {
    const token = this.#tokens[this.#at++];
    if (token === undefined) throw new NoExpression();
    if (token.kind === "number") {
      const value = decimal(token.text);
      return () => value;
    }
    if (token.kind === "name") return this.#named(token.text);
    if (token.text === "|") {
      const inside = this.sum();
      if (!this.#take("|")) throw new NoExpression();
      return (of) => absolute(inside(of));
    }
    const close = closing[token.text];
    if (close === undefined) throw new NoExpression();
    const inside = this.sum();
    if (!this.#take(close)) throw new NoExpression();
    return inside;
  }

  #named(name: string): Evaluate {
    if (name === "pi") return () => real(Math.PI);
    if (name === "e") return () => real(Math.E);
    if (name === "infty") throw new NoExpression();
    if (name === "frac") {
      const [top, bottom] = [this.#digitOrGroup(), this.#digitOrGroup()];
      return (of) => divide(top(of), bottom(of));
    }
    if (name === "binom") {
      const [n, k] = [this.#digitOrGroup(), this.#digitOrGroup()];
      return (of) => binomial(n(of), k(of));
    }
    if (name === "sqrt") return this.#root();
    if (name === "abs") {
      const value = this.#argument();
      return (of) => absolute(value(of));
    }
    const apply = onNumbers[name];
    if (apply) return this.#call(name, apply);
    if (isFunction(name)) throw new NoExpression();
    let variable = name;
    if (this.#take("_")) variable = `${name}_${this.#subscript()}`;
    this.variables.add(variable);
    return (of) => of.get(variable) ?? real(Number.NaN);
  }

  #subscript(): string {
    if (!this.#take("{")) return this.#tokens[this.#at++]?.text ?? "";
    let text = "";
    while (!this.atEnd && !this.#take("}")) text += this.#tokens[this.#at++]!.text;
    return text;
  }

  /** `\frac12` is one half: without braces an argument is one digit. */
  #digitOrGroup(): Evaluate {
    const token = this.#tokens[this.#at];
    if (token?.kind !== "number" || token.text.length === 1) return this.#argument();
    const [first, rest] = [token.text[0]!, token.text.slice(1)];
    (this.#tokens as Token[])[this.#at] = { kind: "number", text: rest };
    const value = decimal(first);
    return () => value;
  }

  #root(): Evaluate {
    let degree: Evaluate = () => decimalOf(2);
    if (this.#take("[")) {
      degree = this.sum();
      if (!this.#take("]")) throw new NoExpression();
    }
    const value = this.#digitOrGroup();
    return (of) => {
      const [inside, n] = [value(of), degree(of)];
      const odd = n.exact?.denominator === 1n && n.exact.numerator % 2n !== 0n;
      if (inside.approximate < 0 && odd) return negate(power(negate(inside), divide(decimalOf(1), n)));
      return power(inside, divide(decimalOf(1), n));
    };
  }

  #call(name: string, apply: (value: number) => number): Evaluate {
    let base: Evaluate | undefined;
    let exponent: Evaluate | undefined;
    if (name === "log" && this.#take("_")) base = this.#digitOrGroup();
    if (this.#take("^")) exponent = this.#argument();
    const argument = this.#is("(") || this.#is("{") ? this.#atom() : this.#power();
    return (of) => {
      const value = argument(of).approximate;
      const result = real(base ? Math.log(value) / Math.log(base(of).approximate) : apply(value));
      return exponent ? power(result, exponent(of)) : result;
    };
  }
}

const absolute = (value: Value) => (value.approximate < 0 ? negate(value) : value);

function factorial(value: Value): Value {
  const n = value.approximate;
  if (!Number.isInteger(n) || n < 0 || n > 170) return real(Number.NaN);
  let result = decimalOf(1);
  for (let factor = 2; factor <= n; factor++) result = multiply(result, decimalOf(factor));
  return result;
}

function binomial(n: Value, k: Value): Value {
  return divide(factorial(n), multiply(factorial(k), factorial(subtract(n, k))));
}
