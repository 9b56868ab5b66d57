/** A chat template whose rendering ends: one that loops or grows without bound throws instead of exhausting memory. */
import { Interpreter, type Template } from "@huggingface/jinja";

/** Evaluated expressions of one rendering, for any messages and for each message. Real templates need about 200 each. */
const evaluations = { any: 200_000, eachMessage: 20_000 };
const longestText = 64_000_000;
const longestList = 1_000_000;
const longestRange = 10_000;

/** What loops run over. */
const iterables = new WeakSet<object>();
let left = Number.POSITIVE_INFINITY;

// Rendering is synchronous and the library makes its interpreters itself: one count serves all.
const { evaluate } = Interpreter.prototype;
Interpreter.prototype.evaluate = function (
  this: Interpreter,
  ...[statement, environment]: Parameters<typeof evaluate>
): ReturnType<typeof evaluate> {
  left--;
  const result = evaluate.call(this, statement, environment);
  const value: unknown = result.value;
  if (typeof value === "string" && value.length > longestText) {
    throw new Error(`it makes a text of ${value.length} characters`);
  }
  if (Array.isArray(value) && value.length > longestList) throw new Error(`it makes a list of ${value.length} items`);
  if (Array.isArray(value) && statement !== undefined && iterables.has(statement)) left -= value.length;
  if (left < 0) throw new Error("it does not end: it loops over far more than the messages");
  return result;
};

const boundedRange = "bounded_range";

interface AstNode {
  type?: string;
  value?: unknown;
  computed?: boolean;
  /** Of a loop; filtered by a condition it has a `lhs`. */
  iterable?: AstNode;
  lhs?: AstNode;
}

/** @param parsed changed in place: the library's `range` makes lists of any length before its caller can count them */
export function boundLoops(parsed: unknown): void {
  if (typeof parsed !== "object" || parsed === null) return;
  const node = parsed as AstNode;
  for (const over of node.type === "For" ? [node.iterable, node.iterable?.lhs] : []) if (over) iterables.add(over);
  if (node.type === "Identifier" && node.value === "range") node.value = boundedRange;
  for (const [name, child] of Object.entries(node)) {
    // `message.range` is a key and stays.
    if (name !== "property" || node.computed) boundLoops(child);
  }
}

/** @throws Error when the template loops or grows without bound, or throws */
export function renderBounded(template: Template, variables: Record<string, unknown>, messages: number): string {
  left = evaluations.any + evaluations.eachMessage * messages;
  try {
    return template.render({ ...variables, [boundedRange]: range });
  } finally {
    left = Number.POSITIVE_INFINITY;
  }
}

function range(first: number, second?: number, step = 1): number[] {
  const [start, stop] = second === undefined ? [0, first] : [first, second];
  if (step === 0) throw new Error("range() step must not be zero");
  const length = Math.max(0, Math.ceil((stop - start) / step));
  if (!(length <= longestRange)) throw new Error(`it makes a list of ${length} items`);
  return Array.from({ length }, (_, index) => start + index * step);
}
