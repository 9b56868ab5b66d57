/**
 * Renders chat templates as jinja2 does in transformers, with a limit of work. Knows nothing about messages.
 * docs/decisions/templates.md says why Hone has its own interpreter.
 */

import { applyFilter, applyTest, filters, tests } from "./filters.ts";
import { checkAttribute, globalsAt } from "./functions.ts";
import { arithmetic, member, signed, slice } from "./members.ts";
import {
  type Arguments,
  type Expression,
  parseTemplate,
  type Signature,
  type Statement,
  type Target,
} from "./parser.ts";
import {
  type CallArguments,
  Callable,
  compare,
  contains,
  Dict,
  equals,
  fail,
  Generator,
  isTrue,
  iterate,
  lengthOf,
  listOf,
  Namespace,
  paid,
  represent,
  Special,
  spend,
  Tuple,
  toValue,
  typeName,
  Undefined,
  type Value,
  withWork,
  write,
} from "./values.ts";

export interface CompiledJinja {
  /**
   * @param variables plain data, or what `fromJson` returns, which keeps the order of keys and the kinds of numbers
   * @param work limit of the rendering, in evaluated expressions
   * @throws Error if the template raises one, or works beyond the limit
   */
  render(variables: Readonly<Record<string, unknown>> | Dict, work: number, now?: Date): string;
}

/** @throws Error with the line if the template cannot be parsed */
export function compileJinja(source: string): CompiledJinja {
  const body = parseTemplate(source, { filters, tests });
  return {
    render: (variables, work, now = new Date()) =>
      withWork(work, () => {
        const given = toValue(variables) as Dict;
        const scope = new Scope(new Scope(undefined, globalsAt(now)), new Map(given.pairs() as [string, Value][]));
        const parts: string[] = [];
        run(body, { scope: new Scope(scope), parts, depth: 0 });
        return parts.join("");
      }),
  };
}

/** The variables of a block. Those of blocks around it can be read, but not changed. */
class Scope {
  private readonly own: Map<string, Value>;
  private readonly outer: Scope | undefined;
  constructor(outer?: Scope, own: ReadonlyMap<string, Value> = new Map()) {
    this.outer = outer;
    this.own = new Map(own);
  }

  get(name: string): Value {
    for (let scope: Scope | undefined = this; scope; scope = scope.outer) {
      const value = scope.own.get(name);
      if (value !== undefined) return value;
    }
    return new Undefined(`'${name}' is undefined`);
  }

  set(name: string, value: Value): void {
    this.own.set(name, value);
  }
}

interface Frame {
  scope: Scope;
  /** What was written. */
  parts: string[];
  /** Number of running macros. */
  depth: number;
  /** The text of a filter's or variable's block. */
  blockText?: string;
}

type Leave = "break" | "continue" | undefined;

// Statements.

function run(body: readonly Statement[], frame: Frame): Leave {
  for (const statement of body) {
    const leave = runOne(statement, frame);
    if (leave) return leave;
  }
  return undefined;
}

function runOne(statement: Statement, frame: Frame): Leave {
  spend(1);
  switch (statement.type) {
    case "text":
      frame.parts.push(paid(statement.text));
      return undefined;
    case "output":
      frame.parts.push(write(evaluate(statement.expression, frame)));
      return undefined;
    case "if": {
      const branch = statement.branches.find(({ test }) => isTrue(evaluate(test, frame)));
      return run(branch?.body ?? statement.otherwise, frame);
    }
    case "for":
      return loop(statement, frame, evaluate(statement.iterable, frame), 0);
    case "set":
      assign(statement.target, evaluate(statement.value, frame), frame);
      return undefined;
    case "set-block": {
      const blockText = captured(statement.body, inner(frame));
      assign(statement.target, evaluate(statement.filter, { ...frame, blockText }), frame);
      return undefined;
    }
    case "filter-block": {
      const blockText = captured(statement.body, inner(frame));
      frame.parts.push(write(evaluate(statement.filter, { ...frame, blockText })));
      return undefined;
    }
    case "macro":
      frame.scope.set(statement.name, macro(statement.name, statement.signature, frame));
      return undefined;
    case "call-block": {
      const args = evaluateArguments(statement.call.args, frame);
      args.named.set("caller", macro(null, statement.signature, frame));
      frame.parts.push(write(call(evaluate(statement.call.callee, frame), args)));
      return undefined;
    }
    case "with": {
      const within = inner(frame);
      const values = statement.values.map((value) => evaluate(value, frame));
      for (const [index, target] of statement.targets.entries()) assign(target, values[index], within);
      return run(statement.body, within);
    }
    case "scope":
      return run(statement.body, inner(frame));
    default:
      return statement.type;
  }
}

const inner = (frame: Frame): Frame => ({ ...frame, scope: new Scope(frame.scope) });

/** What a block writes, instead of writing it. */
function captured(body: readonly Statement[], frame: Frame): string {
  const parts: string[] = [];
  run(body, { ...frame, parts });
  return paid(parts.join(""));
}

function assign(target: Target, value: Value, frame: Frame): void {
  if (target.type === "name") frame.scope.set(target.name, value);
  else if (target.type === "member") {
    const object = frame.scope.get(target.name);
    if (!(object instanceof Namespace)) fail("TemplateRuntimeError", "cannot assign attribute on non-namespace object");
    (object as Namespace).attributes.set(checkAttribute(target.attribute), value);
  } else {
    const items = listOf(value);
    const { length } = target.items;
    if (items.length !== length) fail("ValueError", `${length} names for ${items.length} values`);
    for (const [index, one] of target.items.entries()) assign(one, items[index], frame);
  }
}

/** Python's limit of nested calls is about this number of macros. */
const deepest = 250;

function macro(name: string | null, { parameters, body, reads }: Signature, defined: Frame): Callable {
  const names = parameters.map((parameter) => parameter.name);
  const invoke = ({ positional, named: given }: CallArguments): Value => {
    const depth = defined.depth + running + 1;
    if (depth > deepest) fail("RecursionError", "macros call each other without end");
    const frame = { scope: new Scope(defined.scope), parts: [], depth: defined.depth };
    const named = new Map(given);
    for (const [index, parameter] of parameters.entries()) {
      let value = positional[index];
      if (index >= positional.length && named.has(parameter.name)) {
        value = named.get(parameter.name);
        named.delete(parameter.name);
      }
      if (value === undefined) {
        value = parameter.default
          ? evaluate(parameter.default, frame)
          : new Undefined(`parameter '${parameter.name}' was not provided`);
      }
      frame.scope.set(parameter.name, value);
    }
    if (reads.has("caller") && !names.includes("caller")) {
      frame.scope.set("caller", named.get("caller") ?? new Undefined("No caller defined"));
      named.delete("caller");
    }
    if (reads.has("kwargs") && !names.includes("kwargs")) frame.scope.set("kwargs", Dict.from(named));
    else if (named.size > 0) fail("TypeError", `macro '${name}' takes no keyword argument '${[...named.keys()][0]}'`);
    if (reads.has("varargs") && !names.includes("varargs")) {
      frame.scope.set("varargs", new Tuple(positional.slice(names.length)));
    } else if (positional.length > names.length) {
      fail("TypeError", `macro '${name}' takes not more than ${names.length} argument(s)`);
    }
    running++;
    try {
      return captured(body, frame);
    } finally {
      running--;
    }
  };
  const attributes = new Map<string, Value>([
    ["name", name],
    ["arguments", new Tuple(names)],
    ["catch_kwargs", reads.has("kwargs")],
    ["catch_varargs", reads.has("varargs")],
    ["caller", reads.has("caller")],
  ]);
  return new Callable(`<Macro ${name === null ? "anonymous" : represent(name)}>`, invoke, attributes);
}

/** Number of macros that run at this moment. */
let running = 0;

// Loops.

type For = Extract<Statement, { type: "for" }>;

const unknown = Symbol();

/** The variable `loop`. It looks one item ahead, as jinja2 does. */
class Loop extends Special {
  index0 = -1;
  private values: Iterator<Value>;
  private ahead: Value | typeof unknown = unknown;
  private before: Value | typeof unknown = unknown;
  private current: Value | typeof unknown = unknown;
  private changedTo: Value | undefined;
  private size: number | undefined;
  private readonly source: Value;
  private readonly depth0: number;
  readonly call: ((args: CallArguments) => Value) | undefined;

  constructor(source: Value, values: Iterator<Value>, depth0: number, recurse: ((items: Value) => Value) | undefined) {
    super();
    this.source = source;
    this.values = values;
    this.depth0 = depth0;
    this.call = recurse && (({ positional }) => recurse(positional[0]));
  }

  private take(): Value | typeof unknown {
    const next = this.values.next();
    return next.done ? unknown : next.value;
  }

  private peek(): Value | typeof unknown {
    if (this.ahead === unknown) this.ahead = this.take();
    return this.ahead;
  }

  next(): Value | typeof unknown {
    const value = this.peek();
    this.ahead = unknown;
    if (value === unknown) return unknown;
    this.index0++;
    this.before = this.current;
    this.current = value;
    return value;
  }

  private length(): number {
    if (this.size === undefined) {
      if (this.source instanceof Generator) {
        const rest: Value[] = [];
        for (let value = this.take(); value !== unknown; value = this.take()) rest.push(value);
        this.values = rest[Symbol.iterator]();
        this.size = rest.length + this.index0 + 1 + (this.ahead === unknown ? 0 : 1);
      } else this.size = lengthOf(this.source);
    }
    return this.size;
  }

  attribute(name: string): Value | undefined {
    switch (name) {
      case "index":
        return BigInt(this.index0 + 1);
      case "index0":
        return BigInt(this.index0);
      case "revindex":
        return BigInt(this.length() - this.index0);
      case "revindex0":
        return BigInt(this.length() - this.index0 - 1);
      case "length":
        return BigInt(this.length());
      case "first":
        return this.index0 === 0;
      case "last":
        return this.peek() === unknown;
      case "depth":
        return BigInt(this.depth0 + 1);
      case "depth0":
        return BigInt(this.depth0);
      case "previtem":
        return this.before === unknown ? new Undefined("there is no previous item") : this.before;
      case "nextitem": {
        const next = this.peek();
        return next === unknown ? new Undefined("there is no next item") : next;
      }
      case "cycle":
        return new Callable(name, ({ positional }) => {
          if (positional.length === 0) fail("TypeError", "no items for cycling given");
          return positional[this.index0 % positional.length];
        });
      case "changed":
        return new Callable(name, ({ positional }) => {
          const changed = this.changedTo === undefined || !equals(this.changedTo, positional);
          if (changed) this.changedTo = positional;
          return changed;
        });
      default:
        return undefined;
    }
  }

  written(): string {
    return `<LoopContext ${this.index0 + 1}/${this.length()}>`;
  }
}

function loop(statement: For, frame: Frame, source: Value, depth: number): Leave {
  const { target, test, body, otherwise, recursive } = statement;
  const chosen = test === undefined ? source : new Generator("t_1", chooseItems(source, target, test, frame));
  const recurse = recursive
    ? (items: Value): Value => {
        if (depth > deepest) fail("RecursionError", "a loop calls itself without end");
        const parts: string[] = [];
        loop(statement, { ...frame, parts }, items, depth + 1);
        return paid(parts.join(""));
      }
    : undefined;
  const state = new Loop(chosen, iterate(chosen), depth, recurse);
  // As in jinja2, the else branch also follows a loop whose rounds all ended early.
  let completed = false;
  for (let value = state.next(); value !== unknown; value = state.next()) {
    const within = inner(frame);
    within.scope.set("loop", state);
    assign(target, value, within);
    const leave = run(body, within);
    completed ||= leave === undefined;
    if (leave === "break") break;
  }
  return completed ? undefined : run(otherwise, inner(frame));
}

function* chooseItems(source: Value, target: Target, test: Expression, frame: Frame): IterableIterator<Value> {
  for (const value of iterate(source)) {
    const within = inner(frame);
    assign(target, value, within);
    if (isTrue(evaluate(test, within))) yield value;
  }
}

// Expressions.

function evaluate(node: Expression, frame: Frame): Value {
  spend(1);
  switch (node.type) {
    case "constant":
      return node.value;
    case "name":
      return frame.scope.get(node.name);
    case "list":
      return node.items.map((item) => evaluate(item, frame));
    case "tuple":
      return new Tuple(node.items.map((item) => evaluate(item, frame)));
    case "dict":
      return Dict.from(node.pairs.map(([key, value]) => [evaluate(key, frame), evaluate(value, frame)] as const));
    case "attribute":
      return member(evaluate(node.object, frame), node.name, "attribute");
    case "item": {
      const object = evaluate(node.object, frame);
      if (node.key.type !== "slice") return member(object, evaluate(node.key, frame), "item");
      const [start, stop, step] = node.key.parts.map((part) => (part ? evaluate(part, frame) : null));
      return slice(object, start, stop, step);
    }
    case "call":
      return call(evaluate(node.callee, frame), evaluateArguments(node.args, frame));
    case "filter":
      return applyFilter(node.name, evaluate(node.input, frame), evaluateArguments(node.args, frame));
    case "test":
      return applyTest(node.name, evaluate(node.input, frame), evaluateArguments(node.args, frame));
    case "unary": {
      const operand = evaluate(node.operand, frame);
      return node.operator === "not" ? !isTrue(operand) : signed(node.operator, operand);
    }
    case "binary":
      return arithmetic(node.operator, evaluate(node.left, frame), evaluate(node.right, frame));
    case "and": {
      const left = evaluate(node.left, frame);
      return isTrue(left) ? evaluate(node.right, frame) : left;
    }
    case "or": {
      const left = evaluate(node.left, frame);
      return isTrue(left) ? left : evaluate(node.right, frame);
    }
    case "concat":
      return paid(node.parts.map((part) => write(evaluate(part, frame))).join(""));
    case "compare":
      return chain(node, frame);
    case "condition":
      if (isTrue(evaluate(node.test, frame))) return evaluate(node.then, frame);
      return node.otherwise
        ? evaluate(node.otherwise, frame)
        : new Undefined("the inline if-expression evaluated to false and no else section was defined.");
    case "block-text":
      return frame.blockText ?? "";
    default:
      return fail("TypeError", "a slice outside of a subscript");
  }
}

function chain({ first, rest }: Extract<Expression, { type: "compare" }>, frame: Frame): Value {
  let left = evaluate(first, frame);
  for (const { operator, operand } of rest) {
    const right = evaluate(operand, frame);
    if (!holds(operator, left, right)) return false;
    left = right;
  }
  return true;
}

function holds(operator: string, left: Value, right: Value): boolean {
  switch (operator) {
    case "==":
      return equals(left, right);
    case "!=":
      return !equals(left, right);
    case "in":
      return contains(right, left);
    case "not in":
      return !contains(right, left);
    case "<":
      return compare(left, right, operator) < 0;
    case "<=":
      return compare(left, right, operator) <= 0;
    case ">":
      return compare(left, right, operator) > 0;
    default:
      return compare(left, right, operator) >= 0;
  }
}

function evaluateArguments({ positional, named, rest, namedRest }: Arguments, frame: Frame): CallArguments {
  const values = positional.map((value) => evaluate(value, frame));
  const byName = new Map(named.map(([name, value]) => [name, evaluate(value, frame)]));
  if (rest) values.push(...listOf(evaluate(rest, frame)));
  if (namedRest) {
    const more = evaluate(namedRest, frame);
    if (!(more instanceof Dict)) fail("TypeError", `argument after ** must be a mapping, not ${typeName(more)}`);
    for (const [key, value] of (more as Dict).pairs()) byName.set(write(key), value);
  }
  return { positional: values, named: byName };
}

function call(callee: Value, args: CallArguments): Value {
  if (callee instanceof Undefined) return callee.fail();
  if (callee instanceof Callable) return callee.call(args);
  if (callee instanceof Loop) {
    return (
      callee.call?.(args) ?? fail("TypeError", "The loop must have the 'recursive' marker to be called recursively.")
    );
  }
  return fail("TypeError", `'${typeName(callee)}' object is not callable`);
}
