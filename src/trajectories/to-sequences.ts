/** Turns the steps of one trajectory into token sequences to train on. Masks come only from sampled spans. */
import type { SequenceStart } from "../chat/conversations/conversation.ts";
import { concatenate } from "../concatenate.ts";
import { joinRouting } from "./routing.ts";
import type { Sequence, Step, Trajectory } from "./types.ts";

export interface SampledSequence extends Sequence {
  /** `[N]` log-probability under the sampler of each trained token, in order. */
  samplerLogprobs: Float32Array;
  processed?: true;
  /** A step has no prompt, or not one finite log-probability per token, so the sequence cannot be trained on. */
  malformed: boolean;
  /** The trained steps of the trajectory, by number, and how many tokens of each. */
  steps: readonly { step: number; tokens: number }[];
  /** Its last reply was cut off by a length limit. */
  truncated: boolean;
}

interface NumberedStep extends Step {
  number: number;
}

/** Steps that each continue the previous one. */
interface StepRun {
  steps: NumberedStep[];
  last: NumberedStep;
}

/** Why a sequence other than a trajectory's first begins; `unexplained` if the recorder does not know. */
export type SequenceCause = SequenceStart | "unexplained";

export const sequenceCauses: readonly SequenceCause[] = [
  "new_conversation",
  "compacted",
  "branched",
  "history_rewritten",
  "tools_changed",
  "options_changed",
  "reasoning_dropped",
  "not_continuable",
  "raw_prompt",
  "unexplained",
];

const onPurpose: ReadonlySet<SequenceCause> = new Set(["new_conversation", "compacted", "branched", "raw_prompt"]);

/** Conversations that begin or branch on purpose are not breaks, nor are prompts that are not conversations. */
export const isBreak = (cause: SequenceCause) => !onPurpose.has(cause);

/** Breaks that `rllm.filter_token_mismatch` drops. */
export const isMismatch = (cause: SequenceCause) => isBreak(cause) && cause !== "reasoning_dropped";

/**
 * A step continues an earlier sequence if its prompt begins with all tokens of that sequence (the longest one, if there are
 * several). Any other step starts a new sequence. Tokens of a model that is not trained (`policyVersion < 0`) are context.
 *
 * @returns the sequences in the order in which they began, and why each but the first did
 *
 * @example
 * // prompts/replies ab|c, abcd|ef, xy|z -> tokens "abcdef" (c, e, f trained) and "xyz" (z trained)
 */
export function toSequences(trajectory: Trajectory): { sequences: SampledSequence[]; causes: SequenceCause[] } {
  const runs: StepRun[] = [];
  const causes: SequenceCause[] = [];
  for (const [number, step] of trajectory.steps.entries()) {
    const last = { ...step, number };
    const run = longestContinued(step, runs);
    if (run !== undefined) {
      run.steps.push(last);
      run.last = last;
    } else {
      if (runs.length > 0) causes.push(step.starts ?? "unexplained");
      runs.push({ steps: [last], last });
    }
  }
  return { sequences: runs.map(mergeSteps), causes };
}

function longestContinued(step: Step, runs: readonly StepRun[]): StepRun | undefined {
  const length = ({ last }: StepRun) => last.promptTokens.length + last.tokens.length;
  return runs
    .filter(({ last }) => continues(step, last))
    .reduce<StepRun | undefined>((best, run) => (best && length(best) >= length(run) ? best : run), undefined);
}

/** Whether a prompt begins with everything that the model had seen and said in a step. Equal images have equal hashes. */
export function continues(
  { promptTokens: prompt, media = [] }: Pick<Step, "promptTokens" | "media">,
  previous: Step,
): boolean {
  const seen = previous.promptTokens.length;
  const end = seen + previous.tokens.length;
  const seenMedia = previous.media ?? [];
  return (
    prompt.length >= end &&
    previous.promptTokens.every((token, index) => token === prompt[index]) &&
    previous.tokens.every((token, index) => token === prompt[seen + index]) &&
    seenMedia.every(({ at, hash }, index) => media[index]?.at === at && media[index].hash === hash) &&
    media.slice(seenMedia.length).every(({ at }) => at >= end)
  );
}

/** Each step's prompt contains all steps before it, so the last step has all tokens. The mask covers all steps. */
function mergeSteps({ steps, last }: StepRun): SampledSequence {
  const malformed = !steps.every(isSound);
  const sampled = malformed ? [] : steps.filter(({ policyVersion }) => policyVersion >= 0);
  const tokens = concatenate(Int32Array, [last.promptTokens, last.tokens]);
  const trained = new Uint8Array(Math.max(0, tokens.length - 1));
  for (const step of sampled) {
    const first = step.promptTokens.length - 1;
    trained.fill(1, first, first + step.tokens.length);
  }
  const logprobs = sampled.map((step) => step.logprobs);
  const sequence: SampledSequence = {
    tokens,
    trained,
    samplerLogprobs: concatenate(Float32Array, logprobs),
    malformed,
    steps: sampled.map((step) => ({ step: step.number, tokens: step.tokens.length })),
    truncated: last.stopReason === "length",
  };
  if (last.media) sequence.media = last.media;
  const routing = joinRouting(
    steps.flatMap((step) => step.routing ?? []),
    tokens.length,
  );
  if (routing) sequence.routing = routing;
  if (sampled.some((step) => step.processed)) sequence.processed = true;
  return sequence;
}

function isSound({ promptTokens, tokens, logprobs, policyVersion, given }: Step): boolean {
  if (promptTokens.length === 0) return false;
  return given === true || policyVersion < 0 || (logprobs.length === tokens.length && logprobs.every(Number.isFinite));
}
