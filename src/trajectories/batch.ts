/** Training batches: from trajectories to sequences of tokens, and the operations on them. */
import { append, concatenate, permutation, spread, valuesAt } from "../base/values.ts";
import type { SequenceStart } from "../chat/conversation.ts";
import {
  type BatchTotals,
  joinRouting,
  type Sequence,
  type Step,
  type TerminationReason,
  type TrainingBatch,
  type Trajectory,
  type TrajectoryGroup,
} from "./types.ts";

// Operations on training batches: denominators, selections of sequences and tokens, minibatches.

/** `[S + 1]` running totals of `counts`, from 0: sequence `s` owns `[offsets[s], offsets[s + 1])`. */
export function offsetsOf(counts: readonly number[]): Int32Array {
  const offsets = new Int32Array(counts.length + 1);
  counts.forEach((count, index) => {
    offsets[index + 1] = offsets[index]! + count;
  });
  return offsets;
}

/** `[S]` number of trained tokens of each sequence. */
export const countsOf = (offsets: Int32Array): Int32Array =>
  offsets.subarray(1).map((end, sequence) => end - offsets[sequence]!);

/** `[S]` the part of `values` that each sequence owns. The parts share its memory. */
export function rowsOf<Values extends Float32Array | Float64Array | Uint8Array>(
  values: Values,
  offsets: Int32Array,
): Values[] {
  return Array.from(offsets.subarray(1), (end, sequence) => values.subarray(offsets[sequence], end) as Values);
}

/** The positions whose next token is trained, in ascending order. */
export const trainedPositions = (trained: Uint8Array): number[] =>
  [...trained.keys()].filter((position) => trained[position] !== 0);

/** `[N]` the tokens whose log-probabilities are the outputs of a sequence that has no other targets. */
export const trainedTokens = ({ tokens, trained }: Sequence): Int32Array =>
  Int32Array.from(trainedPositions(trained), (position) => tokens[position + 1]!);

/** Denominators of the sequences with these offsets. */
export function totalsOf(offsets: Int32Array): BatchTotals {
  const totals: BatchTotals = { tokens: 0, sequences: 0, longest: 0 };
  for (const trained of countsOf(offsets)) {
    totals.tokens += trained;
    if (trained > 0) totals.sequences++;
    totals.longest = Math.max(totals.longest, trained);
  }
  return totals;
}

/**
 * The batch of the chosen sequences, in the given order. Its `totals` stay those of the whole batch, so a loss over the
 * selection is that part of the loss over the batch. `asWhole` makes it a batch of its own.
 */
export function selectSequences(batch: TrainingBatch, indices: ArrayLike<number>): TrainingBatch {
  const { offsets } = batch;
  const gather = (values: Float32Array) =>
    concatenate(
      Float32Array,
      Array.from(indices, (index) => values.subarray(offsets[index], offsets[index + 1])),
    );
  const selected: TrainingBatch = {
    sequences: valuesAt(batch.sequences, indices),
    offsets: offsetsOf(valuesAt(countsOf(offsets), indices)),
    advantages: gather(batch.advantages),
    samplerLogprobs: gather(batch.samplerLogprobs),
    ...optionalArrays(batch, gather),
    groups: Int32Array.from(valuesAt(batch.groups, indices)),
    roles: valuesAt(batch.roles, indices),
    totals: batch.totals,
  };
  if (batch.processed) selected.processed = true;
  return selected;
}

/**
 * The batch without some of its trained tokens, which stay in their sequences as context. The denominators count the
 * tokens that are left.
 *
 * @param keep `[N]` 1: the token is still trained
 */
export function keepTokens(batch: TrainingBatch, keep: Uint8Array): TrainingBatch {
  if (keep.every((kept) => kept === 1)) return batch;
  const gather = (values: Float32Array) => values.filter((_, token) => keep[token] === 1);
  let token = 0;
  const sequences = batch.sequences.map((sequence) => ({
    ...sequence,
    trained: sequence.trained.map((flag) => (flag === 1 ? keep[token++]! : 0)),
  }));
  const counts = sequences.map(({ trained }) => trained.reduce((sum, flag) => sum + flag, 0));
  const offsets = offsetsOf(counts);
  return {
    ...batch,
    sequences,
    offsets,
    advantages: gather(batch.advantages),
    samplerLogprobs: gather(batch.samplerLogprobs),
    ...optionalArrays(batch, gather),
    totals: totalsOf(offsets),
  };
}

const optionalNames = ["oldLogprobs", "referenceLogprobs", "rolloutWeights", "returns", "oldValues", "scores"] as const;

/** Applies `gather` to the arrays over tokens that not every batch has. */
function optionalArrays(batch: TrainingBatch, gather: (values: Float32Array) => Float32Array): Partial<TrainingBatch> {
  return Object.fromEntries(
    optionalNames.flatMap((name) => (batch[name] === undefined ? [] : [[name, gather(batch[name])]])),
  );
}

/** The same sequences as a batch of its own: the denominators count only them. */
export function asWhole(batch: TrainingBatch): TrainingBatch {
  return { ...batch, totals: totalsOf(batch.offsets) };
}

/**
 * Splits a batch into at most `numMinibatches` minibatches of nearly the same number of sequences, none empty, each with
 * denominators of its own. Groups stay whole, so that their prompts are computed once. If there are fewer groups than
 * minibatches, the largest groups are halved. The same seed gives the same split.
 */
export function splitBatch(batch: TrainingBatch, numMinibatches: number, seed: number): TrainingBatch[] {
  if (batch.sequences.length === 0) return [];
  const units = unitsOf(batch, numMinibatches);
  const shares: number[][] = Array.from({ length: Math.min(numMinibatches, units.length) }, () => []);
  // Largest first keeps the shares even; the shuffle before the stable sort decides among equals.
  const order = valuesAt(units, permutation(units.length, seed));
  for (const unit of order.sort((a, b) => b.length - a.length)) {
    const smallest = shares.reduce((least, share) => (share.length < least.length ? share : least));
    smallest.push(...unit);
  }
  return shares.map((share) =>
    asWhole(
      selectSequences(
        batch,
        share.sort((a, b) => a - b),
      ),
    ),
  );
}

/** The sequences that stay together: those of each group, or halves of groups if there are too few. */
function unitsOf(batch: TrainingBatch, wanted: number): number[][] {
  const byGroup = new Map<number, number[]>();
  for (const [sequence, group] of batch.groups.entries()) append(byGroup, group, sequence);
  const units = [...byGroup.values()];
  while (units.length < wanted) {
    const largest = units.reduce((most, unit) => (unit.length > most.length ? unit : most));
    if (largest.length === 1) break;
    units.push(largest.splice(Math.ceil(largest.length / 2)));
  }
  return units;
}

// Turns the steps of one trajectory into token sequences to train on. Masks come only from sampled spans.

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
const isBreak = (cause: SequenceCause) => !onPurpose.has(cause);

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

// Turns groups and their advantages into a training batch: ragged arrays over trained tokens.

/** The advantage of a whole trajectory, or of each of its steps: one number, or one for each token of the step. */
export type MemberAdvantage = number | readonly StepAdvantage[];
export type StepAdvantage = number | ArrayLike<number>;

/** Where a sequence of a batch comes from: the trained steps of a trajectory. */
export interface SequenceOrigin {
  trajectory: Trajectory;
  steps: SampledSequence["steps"];
}

/** Which sequences of the compared trajectories are not trained on. Their rewards still count. */
export interface SequenceFilters {
  /** Longest sequence in tokens, prompt and replies together. */
  maxLength: number;
  /** Drop sequences whose last reply was cut off (`mask_truncated_samples`). */
  truncated?: boolean;
  /** Drop trajectories that ran into a limit: length, turns or time (`overlong_filter`). */
  overlong?: boolean;
  /**
   * Drop trajectories whose history was not kept as it was sampled; else each of their sequences is trained on.
   * Thinking that the template removes by design (`reasoning_dropped`) does not count.
   */
  filterTokenMismatch?: boolean;
}

/** The metric that counts each cause. */
const dropMetrics = {
  malformed: "batch/dropped_malformed_sequences",
  tooLong: "batch/dropped_sequences/max_length",
  nothingSampled: "batch/dropped_sequences/nothing_sampled",
  truncated: "batch/dropped_sequences/truncated",
  overlong: "batch/dropped_sequences/overlong",
  tokenMismatch: "batch/dropped_sequences/token_mismatch",
  advantage: "batch/dropped_sequences/advantage_mismatch",
} as const;

type DropCause = keyof typeof dropMetrics;

interface Row {
  sequence: SampledSequence;
  trajectory: Trajectory;
  group: number;
  role: string;
  /** `[N]` */
  advantages: Float32Array;
}

/**
 * @param advantages `[groups][members]`
 * @returns the batch, where each of its sequences comes from, and `batch/*`: breaks, sequences dropped by cause, lengths
 */
export function toBatch(
  groups: readonly TrajectoryGroup[],
  advantages: readonly (readonly MemberAdvantage[])[],
  filters: SequenceFilters,
): { batch: TrainingBatch; origins: SequenceOrigin[]; metrics: Record<string, number> } {
  const rows: Row[] = [];
  const dropped = Object.fromEntries(Object.keys(dropMetrics).map((cause) => [cause, 0])) as Record<DropCause, number>;
  const stepCounts: number[] = [];
  const causes: SequenceCause[] = [];
  let textMarks = 0;
  let unreadableCalls = 0;
  let sequencesMade = 0;
  groups.forEach(({ members, role }, group) => {
    members.forEach(({ episode, trajectory }, member) => {
      const made = toSequences(trajectory);
      causes.push(...made.causes);
      for (const { textMarks: marks = 0, reply } of trajectory.steps) {
        textMarks += marks;
        unreadableCalls += reply?.problems.filter(({ kind }) => kind !== "unclosed_thinking").length ?? 0;
      }
      sequencesMade += made.sequences.length;
      stepCounts.push(trajectory.steps.length);
      for (const sequence of made.sequences) {
        const about = { termination: episode.termination, causes: made.causes };
        const own = tokenAdvantages(sequence, advantages[group]?.[member] ?? Number.NaN);
        const cause = dropCause(sequence, about, filters);
        if (cause !== null) dropped[cause]++;
        else if (own === null) dropped.advantage++;
        else rows.push({ sequence, trajectory, group, role, advantages: own });
      }
    });
  });
  const metrics: Record<string, number> = {
    ...causeMetrics(causes),
    ...(unreadableCalls > 0 ? { "batch/unreadable_tool_calls": unreadableCalls } : {}),
    ...(textMarks > 0 ? { "batch/control_tokens_in_text": textMarks } : {}),
    ...Object.fromEntries(Object.entries(dropMetrics).map(([cause, name]) => [name, dropped[cause as DropCause]])),
    "batch/num_sequences": rows.length,
    ...spread("batch/steps_per_traj", stepCounts),
    ...lengthMetrics(rows.map(({ sequence }) => sequence)),
  };
  const steps = stepCounts.reduce((sum, count) => sum + count, 0);
  if (sequencesMade > 0) metrics["batch/merge_compression_ratio"] = steps / sequencesMade;
  return {
    batch: packRows(rows),
    origins: rows.map(({ trajectory, sequence: { steps } }) => ({ trajectory, steps })),
    metrics,
  };
}

const limits: ReadonlySet<TerminationReason> = new Set([
  "max_prompt_length_exceeded",
  "max_response_length_exceeded",
  "max_turns_exceeded",
  "timeout",
]);

/** @param about how the episode ended, and why further sequences of the trajectory began */
function dropCause(
  sequence: SampledSequence,
  about: { termination: TerminationReason; causes: readonly SequenceCause[] },
  filters: SequenceFilters,
): DropCause | null {
  if (sequence.malformed) return "malformed";
  if (sequence.samplerLogprobs.length === 0) return "nothingSampled";
  if (sequence.tokens.length > filters.maxLength) return "tooLong";
  if (filters.truncated && sequence.truncated) return "truncated";
  if (filters.overlong && limits.has(about.termination)) return "overlong";
  return filters.filterTokenMismatch && about.causes.some(isMismatch) ? "tokenMismatch" : null;
}

/** All breaks, and how often each cause of a further sequence occurred. */
function causeMetrics(causes: readonly SequenceCause[]): Record<string, number> {
  const counts = sequenceCauses
    .map((cause) => [`batch/sequence_starts/${cause}`, causes.filter((one) => one === cause).length] as const)
    .filter(([, count]) => count > 0);
  return { "batch/sequence_breaks": causes.filter(isBreak).length, ...Object.fromEntries(counts) };
}

/** `[N]`, or null if a step does not have one advantage for each of its tokens. */
function tokenAdvantages({ steps, samplerLogprobs }: SampledSequence, given: MemberAdvantage): Float32Array | null {
  const values = new Float32Array(samplerLogprobs.length);
  if (typeof given === "number") return values.fill(given);
  let position = 0;
  for (const { step, tokens } of steps) {
    const own = given[step];
    if (typeof own === "number") values.fill(own, position, position + tokens);
    else if (own?.length === tokens) values.set(own, position);
    else return null;
    position += tokens;
  }
  return values.every(Number.isFinite) ? values : null;
}

function packRows(rows: readonly Row[]): TrainingBatch {
  const logprobs = rows.map(({ sequence }) => sequence.samplerLogprobs);
  const advantages = rows.map((row) => row.advantages);
  const offsets = offsetsOf(logprobs.map(({ length }) => length));
  const batch: TrainingBatch = {
    sequences: rows.map(({ sequence: { tokens, trained, media, routing } }) => ({
      tokens,
      trained,
      ...(media ? { media } : {}),
      ...(routing ? { routing } : {}),
    })),
    offsets,
    advantages: concatenate(Float32Array, advantages),
    samplerLogprobs: concatenate(Float32Array, logprobs),
    groups: Int32Array.from(rows, ({ group }) => group),
    roles: rows.map(({ role }) => role),
    totals: totalsOf(offsets),
  };
  if (rows.some(({ sequence }) => sequence.processed)) batch.processed = true;
  return batch;
}

/** A response reaches from the first sampled token to the end. Text of the environment in between lowers the ratio. */
function lengthMetrics(sequences: readonly SampledSequence[]): Record<string, number> {
  const length = ({ trained }: SampledSequence) => trained.length - trained.indexOf(1);
  const ratios = sequences.map((sequence) => sequence.samplerLogprobs.length / length(sequence));
  return {
    ...spread("batch/step_response_length", sequences.map(length)),
    ...spread("batch/action_token_ratio", ratios),
  };
}
