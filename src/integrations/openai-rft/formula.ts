/** The formula of a `multi` grader: `0.8 * answer + 0.2 * min(style, 1)`. Evaluates to NaN or infinity as arithmetic does. */
import { UserError } from "../../errors.ts";

type Values = ReadonlyMap<string, number>;
type Node = (values: Values) => number;

const functions: Readonly<Record<string, { arity: number; apply: (...values: number[]) => number }>> = {
  min: { arity: -1, apply: Math.min },
  max: { arity: -1, apply: Math.max },
  abs: { arity: 1, apply: Math.abs },
  floor: { arity: 1, apply: Math.floor },
  ceil: { arity: 1, apply: Math.ceil },
  exp: { arity: 1, apply: Math.exp },
  sqrt: { arity: 1, apply: Math.sqrt },
  log: { arity: 1, apply: Math.log },
};

const deepest = 100;
/** Of its pieces. A sum of many is as many calls deep. */
const longest = 1000;

/**
 * @param names of the graders
 * @throws UserError with the position of what cannot be read
 */
export function parseFormula(formula: string, names: readonly string[]): Node {
  const wrong = names.find((name, index) => /^\d/.test(name) || names.indexOf(name) !== index);
  if (wrong !== undefined)
    throw new UserError(`the graders need names of their own that start with a letter, not ${JSON.stringify(wrong)}`);
  const tokens = [
    ...formula.matchAll(
      /\s*(\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|[\p{L}_][\p{L}\p{M}\p{N}_]*|\*\*|\S)/guy,
    ),
  ];
  if (tokens.length > longest)
    throw new UserError(
      `calculate_output has ${tokens.length} numbers, names and operators; at most ${longest} are read`,
    );
  let at = 0;
  let depth = 0;
  const next = () => tokens[at]?.[1];
  const fail = (expected: string): never => {
    const found =
      next() === undefined
        ? "its end"
        : `"${next()}" at ${tokens[at]!.index + tokens[at]![0].length - next()!.length + 1}`;
    throw new UserError(`calculate_output ${JSON.stringify(formula)}: expected ${expected}, found ${found}`, {
      hint: `the graders are ${names.join(", ")}; functions: ${Object.keys(functions).join(", ")}; operators: + - * / ^`,
    });
  };
  const take = (token: string) => (next() === token ? at++ : fail(`"${token}"`));

  function sum(): Node {
    if (++depth > deepest) fail("less nesting");
    let left = product();
    while (next() === "+" || next() === "-") {
      const [operator, first] = [tokens[at++]![1], left];
      const second = product();
      left = operator === "+" ? (values) => first(values) + second(values) : (values) => first(values) - second(values);
    }
    depth--;
    return left;
  }
  function product(): Node {
    let left = signed();
    while (next() === "*" || next() === "/") {
      const [operator, first] = [tokens[at++]![1], left];
      const second = signed();
      left = operator === "*" ? (values) => first(values) * second(values) : (values) => first(values) / second(values);
    }
    return left;
  }
  /** `-2 ^ 2` is -4, and `2 ^ -1` is 0.5. */
  function signed(): Node {
    if (++depth > deepest) fail("less nesting");
    const sign = next() === "-" || next() === "+" ? tokens[at++]![1] : undefined;
    const inner = sign === undefined ? power() : signed();
    depth--;
    return sign === "-" ? (values) => -inner(values) : inner;
  }
  function power(): Node {
    const base = operand();
    if (next() !== "^") return base;
    at++;
    const exponent = signed();
    return (values) => base(values) ** exponent(values);
  }
  function operand(): Node {
    const token = next();
    if (token === undefined) return fail("a value");
    if (token === "(") {
      at++;
      const inner = sum();
      take(")");
      return inner;
    }
    if (/^[\d.]/.test(token)) {
      at++;
      const value = Number(token);
      return Number.isNaN(value) ? fail("a number") : () => value;
    }
    if (names.includes(token) && tokens[at + 1]?.[1] !== "(") {
      at++;
      return (values) => values.get(token)!;
    }
    const called = Object.hasOwn(functions, token) ? functions[token] : undefined;
    if (called === undefined) return fail("a grader, a number or a function");
    at++;
    take("(");
    const given = [sum()];
    while (next() === ",") {
      at++;
      given.push(sum());
    }
    if (called.arity >= 0 && given.length !== called.arity) fail(`${called.arity} value for ${token}`);
    take(")");
    return (values) => called.apply(...given.map((value) => value(values)));
  }

  const node = sum();
  if (at < tokens.length) fail("an operator");
  return node;
}
