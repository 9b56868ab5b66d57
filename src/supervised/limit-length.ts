/** What happens to rows that are longer than the limit. */
import { UserError } from "../errors.ts";
import { continues } from "../trajectories/to-sequences.ts";
import type { Step } from "../trajectories/types.ts";

export interface LengthLimit {
  /** In tokens. */
  most: number;
  /** `right` cuts off the end, `left` the beginning. */
  truncation: "error" | "right" | "left" | "drop";
}

/** `steps` is empty if nothing is left to train on. */
export interface Limited {
  steps: Step[];
  change: "none" | "cut" | "dropped";
}

const lengthOf = ({ promptTokens, tokens }: Step) => promptTokens.length + tokens.length;

/** @throws UserError without the row's origin, if it is longer and `truncation` is "error" */
export function limitLength(steps: Step[], { most, truncation }: LengthLimit): Limited {
  const longest = Math.max(0, ...steps.map(lengthOf));
  if (longest <= most) return { steps, change: "none" };
  if (truncation === "error") {
    throw new UserError(`it has ${longest} tokens, but the limit is ${most}`, {
      hint: "raise data.max_length or training.max_length, or set data.truncation to right, left or drop",
    });
  }
  // Half an image means nothing.
  const hasImages = steps.some(({ media = [] }) => media.length > 0);
  if (truncation === "drop" || hasImages) return { steps: [], change: "dropped" };
  const cut = truncation === "right" ? steps.flatMap((step) => cutEnd(step, most)) : cutBeginnings(steps, most);
  return { steps: cut, change: cut.length === 0 ? "dropped" : "cut" };
}

function cutEnd(step: Step, most: number): Step[] {
  const room = most - step.promptTokens.length;
  return room < 1 ? [] : [keepTokens(step, 0, Math.min(room, step.tokens.length))];
}

/** The steps of one sequence lose the same tokens. */
function cutBeginnings(steps: readonly Step[], most: number): Step[] {
  const kept: Step[] = [];
  for (let from = 0; from < steps.length; ) {
    let end = from + 1;
    while (end < steps.length && continues(steps[end]!, steps[end - 1]!)) end++;
    const excess = Math.max(0, lengthOf(steps[end - 1]!) - most);
    for (const step of steps.slice(from, end)) kept.push(...cutBeginning(step, excess));
    from = end;
  }
  return kept;
}

function cutBeginning(step: Step, excess: number): Step[] {
  const { promptTokens, tokens } = step;
  if (excess < promptTokens.length) return [{ ...step, promptTokens: promptTokens.subarray(excess) }];
  // The first token that is left is not predicted.
  const first = excess - promptTokens.length;
  if (first + 1 >= tokens.length) return [];
  return [{ ...keepTokens(step, first + 1, tokens.length), promptTokens: tokens.subarray(first, first + 1) }];
}

const keepTokens = (step: Step, from: number, end: number): Step => ({
  ...step,
  tokens: step.tokens.subarray(from, end),
  logprobs: step.logprobs.subarray(from, end),
});
