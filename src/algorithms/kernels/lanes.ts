/**
 * Formulas over many tokens at once. They read as if they were of one token, `ratio.times(advantage)`, but what comes of
 * them is an expression, from which `kernel.ts` makes code that computes two or four tokens at a time.
 */

export type Operation =
  | (
      | "plus"
      | "minus"
      | "times"
      | "over"
      | "atMost"
      | "atLeast"
      | "negated"
      | "abs"
      | "nearest"
      | "exp"
      | "expm1"
      | "powerOfTwo"
    )
  | ("above" | "below" | "equals" | "and" | "andNot" | "or" | "choose");

/** A node of an expression. One that is used twice is computed once. */
export type Node =
  | { readonly kind: "constant"; readonly value: number }
  /** The same for all tokens; its value comes with each call. */
  | { readonly kind: "setting"; readonly name: string }
  /** Of each token, in the array of this name. */
  | { readonly kind: "input"; readonly name: string }
  | { readonly kind: "operation"; readonly operation: Operation; readonly operands: readonly Node[] };

/** A figure of each token. */
export class Lanes {
  readonly node: Node;
  constructor(node: Node) {
    this.node = node;
  }
  plus(other: Figure): Lanes {
    return apply("plus", this, other);
  }
  minus(other: Figure): Lanes {
    return apply("minus", this, other);
  }
  times(other: Figure): Lanes {
    return apply("times", this, other);
  }
  over(other: Figure): Lanes {
    return apply("over", this, other);
  }
  negated(): Lanes {
    return apply("negated", this);
  }
  abs(): Lanes {
    return apply("abs", this);
  }
  /** 1, -1, or 0. */
  sign(): Lanes {
    return this.above(0).choose(1, this.below(0).choose(-1, 0));
  }
  exp(): Lanes {
    return apply("exp", this);
  }
  /** `e^this - 1`, exact also near 0. */
  expm1(): Lanes {
    return apply("expm1", this);
  }
  /** To the nearest integer, from halves to the even one. */
  nearest(): Lanes {
    return apply("nearest", this);
  }
  /** `2^this` of an integer that is an exponent of the precision's normal numbers. */
  powerOfTwo(): Lanes {
    return apply("powerOfTwo", this);
  }
  above(other: Figure): Condition {
    return new Condition(apply("above", this, other).node);
  }
  below(other: Figure): Condition {
    return new Condition(apply("below", this, other).node);
  }
  equals(other: Figure): Condition {
    return new Condition(apply("equals", this, other).node);
  }
  /** What is no number stays none. */
  clamp(low: Figure, high: Figure): Lanes {
    return apply("atLeast", apply("atMost", this, high), low);
  }
}

/** Whether something holds, of each token. */
export class Condition {
  readonly node: Node;
  constructor(node: Node) {
    this.node = node;
  }
  and(other: Condition): Condition {
    return new Condition(operation("and", this.node, other.node));
  }
  or(other: Condition): Condition {
    return new Condition(operation("or", this.node, other.node));
  }
  /** Both are computed; what is not chosen may be anything, also no number. */
  choose(then: Figure, otherwise: Figure): Lanes {
    // What is not a bit of 0 is one instruction instead of three.
    if (otherwise === 0) return new Lanes(operation("and", nodeOf(then), this.node));
    if (then === 0) return new Lanes(operation("andNot", nodeOf(otherwise), this.node));
    return new Lanes(operation("choose", nodeOf(then), nodeOf(otherwise), this.node));
  }
}

type Figure = Lanes | number;

export const input = (name: string): Lanes => new Lanes({ kind: "input", name });
export const constant = (value: number): Lanes => new Lanes({ kind: "constant", value });
export const setting = (name: string): Lanes => new Lanes({ kind: "setting", name });

const apply = (name: Operation, ...operands: Figure[]) => new Lanes(operation(name, ...operands.map(nodeOf)));
const operation = (name: Operation, ...operands: Node[]): Node => ({ kind: "operation", operation: name, operands });
const nodeOf = (figure: Figure): Node =>
  typeof figure === "number" ? { kind: "constant", value: figure } : figure.node;
