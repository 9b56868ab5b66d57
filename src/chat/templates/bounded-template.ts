/** Renders chat templates with limits: a template that loops or grows without bound throws. */
import { Interpreter, type Template } from "@huggingface/jinja";

/** Limit of evaluated expressions per rendering, plus a limit per message. Real templates need about 200 per message. */
const evaluations = { any: 200_000, eachMessage: 20_000 };
const longestText = 64_000_000;
const longestList = 1_000_000;
const longestRange = 10_000;

/** The expressions that loops iterate over. */
const iterables = new WeakSet<object>();
let left = Number.POSITIVE_INFINITY;

// The library creates its interpreters itself. Rendering is synchronous, so one counter is enough.
const { evaluate } = Interpreter.prototype;
Interpreter.prototype.evaluate = function (
  this: Interpreter,
  statement: Parameters<typeof evaluate>[0],
  environment: Parameters<typeof evaluate>[1],
): ReturnType<typeof evaluate> {
  left--;
  const result = evaluate.call(this, statement, environment);
  const value: unknown = result.value;
  if (typeof value === "string" && value.length > longestText) {
    throw new Error(`it creates a text of ${value.length} characters`);
  }
  if (Array.isArray(value) && value.length > longestList) throw new Error(`it creates a list of ${value.length} items`);
  if (Array.isArray(value) && statement !== undefined && iterables.has(statement)) left -= value.length;
  if (left < 0) throw new Error("its loops run over far more than the messages");
  return result;
};

const boundedRange = "bounded_range";

interface AstNode {
  type?: string;
  value?: unknown;
  computed?: boolean;
  /** Only of a loop. With a condition it is a node whose `lhs` is the list. */
  iterable?: AstNode;
  lhs?: AstNode;
}

/** @param parsed changed in place: the library's `range` creates the whole list before its length can be checked */
export function boundLoops(parsed: unknown): void {
  if (typeof parsed !== "object" || parsed === null) return;
  const node = parsed as AstNode;
  if (node.type === "For" && node.iterable) iterables.add(node.iterable);
  if (node.type === "For" && node.iterable?.lhs) iterables.add(node.iterable.lhs);
  if (node.type === "Identifier" && node.value === "range") node.value = boundedRange;
  for (const [name, child] of Object.entries(node)) {
    // The `range` of `message.range` is a key, not the function.
    if (name !== "property" || node.computed) boundLoops(child);
  }
}

/** @throws Error if the template throws, or loops or grows beyond the limits */
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
  if (!(length <= longestRange)) throw new Error(`it creates a list of ${length} items`);
  return Array.from({ length }, (_, index) => start + index * step);
}
