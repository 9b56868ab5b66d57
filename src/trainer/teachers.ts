/** Teachers in training: opens them, asks them about a batch, and turns what they say into advantages or a loss. */
import {
  type DivergenceDefinition,
  divergences,
  type EstimatorLoss,
  estimatorLoss,
  overlap,
  type TeacherAdvantageOptions,
  type TokensLoss,
  teacherKl,
  tokensLoss,
} from "../algorithms/distillation.ts";
import type { Loss, LossValue, OutputGradient } from "../algorithms/types.ts";
import type { Engine, ForwardBackwardResult, Learner, Teacher, TokenRows } from "../backends/engine.ts";
import {
  actsOnAdvantages,
  comparesLikely,
  divergenceIn,
  estimatorIn,
  learnerTeacher,
  openServerTeacher,
  type TeacherSpec,
  teachersIn,
} from "../backends/teachers.ts";
import { RunError, UserError } from "../base/errors.ts";
import { concatenate } from "../base/values.ts";
import { type NoVision, renderWithImages, type Vision } from "../chat/images.ts";
import type { ChatMessage } from "../chat/messages.ts";
import type { Chat } from "../chat/types.ts";
import type { Config } from "../config/schema.ts";
import type { Dataset } from "../data/dataset.ts";
import type { Media } from "../images/images.ts";
import { countsOf, offsetsOf, type SequenceOrigin, trainedPositions } from "../trajectories/batch.ts";
import type { Sequence, Step, TokenOutputs, TrainingBatch, TrajectoryGroup } from "../trajectories/types.ts";

// What teachers say of a batch's tokens. A teacher reads the policy's own tokens, after the policy's prompt or one of
// its own.

/** The prompt after which a teacher scores a reply. */
export type TeacherPrompt<Row> = (
  row: Row,
  messages: readonly ChatMessage[],
) => readonly ChatMessage[] | Promise<readonly ChatMessage[]>;

interface NamedTeacher {
  name: string;
  teacher: Teacher;
}

/** The opened teachers of a run. */
export interface Teaching {
  /** The teacher of a task's replies. */
  teacherOf(taskId: string): NamedTeacher;
  /** The prompt of the teacher in place of a step's own; undefined: the same prompt. */
  promptOf: ((taskId: string, step: Step) => Promise<Pick<Sequence, "tokens" | "media">>) | undefined;
  /** The longest sequence in tokens, for teachers that do not limit it. */
  maxLength: number;
  /** The number of most likely tokens that the loss compares; 0: it reads only the sampled tokens. */
  count: number;
}

/** `[N]` over the trained tokens of the batch as it was made. */
export interface TeacherScores {
  /** The teacher's log-probability of each sampled token; NaN: unknown, because the sequence is too long for the teacher. */
  logprobs: Float32Array;
  /** The teacher's most likely tokens, `count` for each; -1: unknown. */
  likely: TokenRows | undefined;
  /** `[S]` the teacher's name. */
  teachers: readonly string[];
  /** Number of requests to the teachers' servers that were repeated. */
  retries: number;
}

/** Sequences whose likely tokens are recorded for people to look at, although the loss does not read them. */
const shownSequences = 8;

/** A part of a batch's sequence as its teacher reads it. */
interface Question extends NamedTeacher {
  sequence: Sequence;
  /** The first of its tokens in the batch. */
  from: number;
  /** Also ask for the most likely tokens. */
  likely: boolean;
}

export async function askTeachers(
  { teacherOf, promptOf, maxLength, count }: Teaching,
  batch: TrainingBatch,
  origins: readonly SequenceOrigin[],
  groups: readonly TrajectoryGroup[],
): Promise<TeacherScores> {
  const size = batch.advantages.length;
  const width = Math.max(1, count);
  const logprobs = new Float32Array(size).fill(Number.NaN);
  const likely = {
    tokens: new Int32Array(size * width).fill(-1),
    logprobs: new Float32Array(size * width),
    count: width,
  };
  const questions: Question[] = [];
  const teachers: string[] = [];
  for (const [index, sequence] of batch.sequences.entries()) {
    const { taskId } = groups[batch.groups[index]!]!;
    const named = teacherOf(taskId);
    teachers.push(named.name);
    let from = batch.offsets[index]!;
    const about = { ...named, likely: count > 0 || index < shownSequences };
    if (promptOf === undefined) {
      questions.push({ ...about, sequence, from });
      continue;
    }
    const { trajectory, steps } = origins[index]!;
    for (const { step, tokens } of steps) {
      const own = trajectory.steps[step]!;
      questions.push({ ...about, sequence: afterPrompt(await promptOf(taskId, own), own.tokens), from });
      from += tokens;
    }
  }
  const asked = questions.filter(({ sequence, teacher }) => sequence.tokens.length <= (teacher.maxLength ?? maxLength));
  let isKnown = false;
  const asking = new Set(asked.map((question) => question.teacher));
  const retriesBefore = retriesOf(asking);
  for (const teacher of asking) {
    const own = asked.filter((question) => question.teacher === teacher);
    const scores = await teacher.logprobs(own.map(({ sequence }) => sequence));
    const wrong = scores.find((score) => !Number.isFinite(score));
    if (wrong !== undefined)
      throw new RunError(`the teacher ${own[0]!.name} returned ${wrong} as the log-probability of a token`);
    spread(own, scores, logprobs, 1);
    const shown = own.filter((question) => question.likely);
    if (!teacher.mostLikely || shown.length === 0) continue;
    const found = await teacher.mostLikely(
      shown.map(({ sequence }) => sequence),
      width,
    );
    spread(shown, found.tokens, likely.tokens, width);
    spread(shown, found.logprobs, likely.logprobs, width);
    isKnown = true;
  }
  const retries = retriesOf(asking) - retriesBefore;
  return { logprobs, likely: isKnown ? likely : undefined, teachers, retries };
}

const retriesOf = (teachers: Iterable<Teacher>) =>
  Array.from(teachers).reduce((sum, { retries = 0 }) => sum + retries, 0);

function afterPrompt(
  { tokens: prompt, media }: { tokens: Int32Array; media?: readonly Media[] },
  reply: Int32Array,
): Sequence {
  const tokens = concatenate(Int32Array, [prompt, reply]);
  const trained = new Uint8Array(tokens.length - 1).fill(1, prompt.length - 1);
  return media && media.length > 0 ? { tokens, trained, media } : { tokens, trained };
}

/** Writes the values of the questions' tokens, `width` each, to their places in the batch. */
function spread<Values extends Float32Array | Int32Array>(
  questions: readonly Question[],
  values: Values,
  whole: Values,
  width: number,
): void {
  let next = 0;
  for (const { sequence, from } of questions) {
    const count = width * sequence.trained.reduce((sum, flag) => sum + flag, 0);
    whole.set(values.subarray(next, next + count), from * width);
    next += count;
  }
}

/** The share of the compared tokens that are also among the policy's most likely ones, in the first sequences of a batch. */
export async function overlapRatio(learner: Learner, batch: TrainingBatch, { likely }: TeacherScores): Promise<number> {
  const { tokens, count } = likely!;
  const sequences = batch.sequences.slice(0, shownSequences);
  const own = await learner.mostLikely!(sequences, count);
  let common = 0;
  for (let at = 0; at < own.tokens.length; at += count) {
    common += overlap(own.tokens.subarray(at, at + count), tokens.subarray(at, at + count));
  }
  return common / own.tokens.length;
}

/** @param batch whose `samplerLogprobs` are the policy's own */
export function teacherMetrics(
  { logprobs, teachers, retries }: TeacherScores,
  { samplerLogprobs, offsets }: TrainingBatch,
): Record<string, number> {
  const metrics: Record<string, number> = {};
  if (logprobs.length === 0) return metrics;
  metrics["distillation/teacher_kl"] = teacherKl(samplerLogprobs, logprobs);
  metrics["distillation/tokens_without_teacher"] = logprobs.filter(Number.isNaN).length;
  metrics["distillation/teacher_retries"] = retries;
  const names = [...new Set(teachers)];
  if (names.length < 2) return metrics;
  const nameOf = Array.from(countsOf(offsets)).flatMap((count, sequence) =>
    Array<string>(count).fill(teachers[sequence]!),
  );
  for (const name of names) {
    const own = (values: Float32Array) => values.filter((_, token) => nameOf[token] === name);
    metrics[`distillation/teacher_kl/${name}`] = teacherKl(own(samplerLogprobs), own(logprobs));
  }
  return metrics;
}

// Adds a loss against a teacher to a policy loss. The learner is asked for the log-probabilities of further tokens.

export interface TeacherTerm {
  loss: EstimatorLoss | TokensLoss;
  coefficient: number;
}

/** A trained token: the tokens that are compared there, besides its own output. */
interface Place {
  /** The teacher's log-probability of the sampled token. */
  teacher: number;
  tokens: Int32Array;
  /** The teacher's, of those tokens. */
  logprobs: Float64Array;
}

/**
 * A learner whose gradients are those of the given loss plus the weighted loss against the teacher. Its results have the
 * outputs of the sampled tokens alone.
 *
 * @param part the batch that losses are built for; `part.scores` are the places of its tokens in `scores`
 * @param weightOf the weight of each trained token of a sequence, by its index in `part`
 */
export function learnFromTeacher(
  learner: Learner,
  part: TrainingBatch,
  scores: TeacherScores,
  term: TeacherTerm,
  weightOf: (sequence: number) => number,
): Learner {
  const indexOf = new Map(part.sequences.map((sequence, index) => [sequence, index]));

  function prepare(sequences: readonly Sequence[], loss: Loss) {
    const indices = sequences.map((sequence) => indexOf.get(sequence)!);
    const places = indices.map((index) => placesOf(part, index, scores, term.loss));
    const whole: Loss = {
      name: `${loss.name} and ${term.loss.kind === "estimator" ? term.loss.estimator : term.loss.divergence} to the teacher`,
      outputs: loss.outputs,
      ...(loss.coupled ? { coupled: true } : {}),
      evaluate(outputs, chosen) {
        const own = Array.from(chosen, (index) => places[index]!);
        const weights = Array.from(chosen, (index) => weightOf(indices[index]!));
        return withTeacher(loss.evaluate(sampledOnly(outputs, own), chosen), outputs, own, weights, term);
      },
    };
    const wide = sequences.map((sequence, index) => withTargets(sequence, places[index]!));
    const narrow = (result: ForwardBackwardResult) => ({ ...result, outputs: sampledOnly(result.outputs, places) });
    return { wide, whole, narrow };
  }

  return {
    ...learner,
    async forwardBackward(sequences, loss) {
      const { wide, whole, narrow } = prepare(sequences, loss);
      return narrow(await learner.forwardBackward(wide, whole));
    },
    ...(learner.trainStep
      ? {
          async trainStep(sequences, loss, adam) {
            const { wide, whole, narrow } = prepare(sequences, loss);
            const { result, step } = await learner.trainStep!(wide, whole, adam);
            return { result: narrow(result), step };
          },
        }
      : {}),
  };
}

function placesOf(part: TrainingBatch, index: number, scores: TeacherScores, loss: TeacherTerm["loss"]): Place[] {
  const { tokens, trained } = part.sequences[index]!;
  const [from = 0] = part.offsets.subarray(index, index + 1);
  return trainedPositions(trained).map((position, offset) => {
    const row = part.scores![from + offset]!;
    const teacher = scores.logprobs[row]!;
    const nothing = { teacher, tokens: new Int32Array(0), logprobs: new Float64Array(0) };
    if (loss.kind === "estimator" || Number.isNaN(teacher)) return nothing;
    return { teacher, ...supportOf(loss, scores, row, { token: tokens[position + 1]!, logprob: teacher }) };
  });
}

/** The tokens that a divergence compares at one place, without doubles. */
function supportOf(
  { divergence, ...options }: TokensLoss,
  { likely }: TeacherScores,
  row: number,
  sampled: { token: number; logprob: number },
): Pick<Place, "tokens" | "logprobs"> {
  const { support }: DivergenceDefinition = divergences[divergence];
  const kind = support?.(options) ?? "most likely";
  const own = { tokens: Int32Array.of(sampled.token), logprobs: Float64Array.of(sampled.logprob) };
  if (kind === "sampled") return own;
  const { count } = likely!;
  const tokens = likely!.tokens.subarray(row * count, (row + 1) * count);
  const logprobs = Float64Array.from(likely!.logprobs.subarray(row * count, (row + 1) * count));
  if (kind === "most likely" || tokens.includes(sampled.token)) return { tokens, logprobs };
  return {
    tokens: Int32Array.of(...tokens, sampled.token),
    logprobs: Float64Array.of(...logprobs, sampled.logprob),
  };
}

/** At each trained position, the sampled token and then the compared ones. */
function withTargets(sequence: Sequence, places: readonly Place[]): Sequence {
  if (places.every(({ tokens }) => tokens.length === 0)) return sequence;
  const { tokens, trained } = sequence;
  const targets: number[] = [];
  let next = 0;
  const counts = trained.map((flag, position) => {
    if (flag === 0) return 0;
    const place = places[next++]!;
    targets.push(tokens[position + 1]!, ...place.tokens);
    return 1 + place.tokens.length;
  });
  return { ...sequence, trained: counts, targets: Int32Array.from(targets) };
}

/** The index of each sampled token in outputs that also have the compared tokens. */
function sampledPlaces(sequences: readonly (readonly Place[])[]): Int32Array {
  let next = 0;
  return Int32Array.from(
    sequences.flat().map(({ tokens }) => {
      const own = next;
      next += 1 + tokens.length;
      return own;
    }),
  );
}

function sampledOnly(outputs: TokenOutputs, sequences: readonly (readonly Place[])[]): TokenOutputs {
  const at = sampledPlaces(sequences);
  const pick = (values: Float32Array) => {
    const own = values.slice(0, at.length);
    at.forEach((place, token) => {
      own[token] = values[place]!;
    });
    return own;
  };
  return {
    offsets: offsetsOf(sequences.map(({ length }) => length)),
    logprobs: pick(outputs.logprobs),
    ...(outputs.entropy ? { entropy: pick(outputs.entropy) } : {}),
  };
}

function withTeacher(
  policy: LossValue,
  outputs: TokenOutputs,
  sequences: readonly (readonly Place[])[],
  weights: readonly number[],
  { loss, coefficient }: TeacherTerm,
): LossValue {
  const at = sampledPlaces(sequences);
  const gradient: OutputGradient = { logprobs: spreadOver(outputs.logprobs, at, policy.gradient.logprobs) };
  if (policy.gradient.entropy) gradient.entropy = spreadOver(outputs.logprobs, at, policy.gradient.entropy);
  const sums = { loss: 0, value: 0, student: 0, teacher: 0 };
  let token = 0;
  for (const [index, places] of sequences.entries()) {
    const weight = coefficient * weights[index]!;
    for (const place of places) {
      const first = at[token++]!;
      if (loss.kind === "estimator") {
        const { value, slope } = estimatorLoss(outputs.logprobs[first]!, place.teacher, loss);
        sums.loss += weight * value;
        sums.value += value;
        gradient.logprobs[first]! += weight * slope;
        continue;
      }
      if (place.tokens.length === 0) continue;
      const student = Float64Array.from(outputs.logprobs.subarray(first + 1, first + 1 + place.tokens.length));
      const { value, slopes } = tokensLoss({ student, teacher: place.logprobs }, loss);
      sums.loss += weight * value;
      sums.value += value;
      sums.student += massOf(student);
      sums.teacher += massOf(place.logprobs);
      slopes.forEach((slope, k) => {
        gradient.logprobs[first + 1 + k]! += weight * slope;
      });
    }
  }
  const mean = (sum: number) => ({ sum, count: at.length });
  const metrics = { ...policy.metrics };
  if (at.length > 0) {
    metrics["distillation/loss"] = mean(sums.value);
    if (loss.kind === "tokens") {
      metrics["distillation/student_mass"] = mean(sums.student);
      metrics["distillation/teacher_mass"] = mean(sums.teacher);
    }
  }
  return { loss: policy.loss + sums.loss, gradient, metrics };
}

const massOf = (logprobs: Float64Array) => logprobs.reduce((sum, logprob) => sum + Math.exp(logprob), 0);

/** The values of sampled tokens in the layout of all outputs, and 0 elsewhere. */
function spreadOver(layout: Float32Array, at: Int32Array, values: Float32Array): Float32Array {
  // Gradient checks evaluate losses in float64.
  const whole = new (layout.constructor as Float32ArrayConstructor)(layout.length);
  at.forEach((place, token) => {
    whole[place] = values[token]!;
  });
  return whole;
}

// Opens the teachers of a run, and checks that they can read what the policy reads.

interface Parts {
  engine: Engine;
  /** The policy's, which teaches itself if no teacher is named. */
  learner: Learner;
  /** The name of the policy's model. */
  policy: string;
  chat: Chat;
  vision: Vision | NoVision;
  experiment: { train: Dataset<unknown>; teacherPrompt?: TeacherPrompt<unknown> };
  warn: (text: string) => void;
  closeLater: (close: () => Promise<void>) => void;
}

/** @throws UserError when a teacher cannot be used, or a row names none of them */
export async function openTeachers(parts: Parts, options: TeachingOptions): Promise<Teaching> {
  const { engine, learner, experiment, chat, vision } = parts;
  const { teachers: specs, column, count, longest } = options;
  const teachers = new Map<string | null, NamedTeacher>();
  for (const spec of specs) teachers.set(spec.key, { name: spec.name, teacher: await openOne(parts, spec) });
  if (specs.length === 0) teachers.set(null, { name: "policy", teacher: learnerTeacher(learner) });
  for (const { name, teacher } of teachers.values()) requireUsable(name, teacher, { longest, count });
  requireFew(count, engine.model.vocabularySize);
  const [only] = teachers.values();

  const { train, teacherPrompt } = experiment;
  const rowOf = teacherPrompt || column !== undefined ? rowsById(train) : () => undefined;
  if (column !== undefined) requireKeys(train, column, [...teachers.keys()]);
  return {
    teacherOf: (taskId) => (column === undefined ? only! : teachers.get(keyOf(rowOf(taskId), column))!),
    promptOf:
      teacherPrompt &&
      (async (taskId: string, { messages, tools }: Step) => {
        const prompt = await teacherPrompt(rowOf(taskId), messages);
        const { tokens, media } = await renderWithImages(chat, vision, prompt, tools ? { tools } : {});
        return { tokens, media };
      }),
    maxLength: engine.model.maxLength,
    count,
  };
}

async function openOne({ engine, policy, chat, warn, closeLater }: Parts, spec: TeacherSpec): Promise<Teacher> {
  if (spec.kind === "model") {
    const other = spec.model === policy ? {} : { model: spec.model };
    const learner = await engine.createLearner({ adapter: { kind: "none" }, ...other });
    closeLater(() => learner.close());
    return learnerTeacher(learner);
  }
  const { url, model, apiKey, name } = spec;
  const setting = `distillation.teacher_models.${name}`;
  const key = typeof apiKey === "object" ? keyIn(apiKey.variable, setting) : apiKey;
  const encode = (text: string) => chat.encode(text);
  const policyModel = { model: engine.model, images: engine.images, encode };
  const { teacher, close } = await openServerTeacher({ url, model, apiKey: key, setting }, policyModel, warn);
  closeLater(close);
  return teacher;
}

function keyIn(variable: string, setting: string): string {
  const key = process.env[variable];
  if (key) return key;
  throw new UserError(`${setting}.api_key_env: the environment variable ${variable} is not set`, {
    hint: "set it, or remove api_key_env",
  });
}

function requireUsable(name: string, teacher: Teacher, { longest, count }: Pick<TeachingOptions, "longest" | "count">) {
  const { maxLength } = teacher;
  if (maxLength !== undefined && maxLength < longest) {
    throw new UserError(
      `the teacher ${name} reads at most ${maxLength} tokens, but a prompt and its reply can have ${longest}`,
      { hint: "lower data.max_prompt_length, data.max_response_length or training.max_length" },
    );
  }
  if (count > 0 && !teacher.mostLikely) {
    throw new UserError(`the teacher ${name} does not return its most likely tokens`, {
      hint: "distillation.distillation_loss.loss_mode=k1 reads only the sampled tokens",
    });
  }
}

function requireFew(count: number, vocabularySize: number): void {
  if (count <= vocabularySize) return;
  throw new UserError(
    `distillation.distillation_loss.topk is ${count}, but the vocabulary has only ${vocabularySize} tokens`,
  );
}

/** Finds rows by the ids of their tasks, which episodes keep. */
function rowsById(train: Dataset<unknown>): (taskId: string) => unknown {
  let indices: Map<string, number> | undefined;
  return (taskId) => {
    indices ??= new Map(Array.from({ length: train.size }, (_, index) => [train.task(index).id, index]));
    return train.task(indices.get(taskId)!).row;
  };
}

function keyOf(row: unknown, column: string): string {
  const value = typeof row === "object" && row !== null ? (row as Record<string, unknown>)[column] : undefined;
  return String(value);
}

function requireKeys(train: Dataset<unknown>, column: string, known: readonly (string | null)[]): void {
  for (let index = 0; index < train.size; index++) {
    const { row, origin } = train.task(index);
    const key = keyOf(row, column);
    if (known.includes(key)) continue;
    throw new UserError(`${origin}: its ${column} is ${key}, which is not the key of a teacher`, {
      hint: `the keys in distillation.teacher_models are ${known.join(", ")}; distillation.teacher_key names the column`,
    });
  }
}

// `distillation` as options.

export interface TeachingOptions {
  /** Empty: the policy itself. */
  teachers: readonly TeacherSpec[];
  /** The column of a row that names its teacher; undefined for a single teacher. */
  column: string | undefined;
  /** Number of likely tokens that the loss compares. */
  count: number;
  /** The longest sequence in tokens that teachers must be able to read. */
  longest: number;
}

/** Undefined without a teacher. */
export function teachingOptions(config: Config): TeachingOptions | undefined {
  const { distillation, data, training, rllm } = config;
  if (!distillation.enabled || rllm.trainer.val_only) return undefined;
  const teachers = teachersIn(config);
  return {
    teachers,
    column: teachers.length > 1 ? distillation.teacher_key : undefined,
    count: comparesLikely(config) ? distillation.distillation_loss.topk : 0,
    longest: Math.min(training.max_length, data.max_prompt_length + data.max_response_length),
  };
}

/** How the difference from the teacher acts: on the advantages, or as a term of the loss. */
export function teacherTerms(config: Config): { advantages?: TeacherAdvantageOptions; loss?: TeacherTerm } {
  const { enabled, distillation_loss: keys } = config.distillation;
  if (!enabled) return {};
  const { distillation_loss_coef: coefficient, loss_max_clamp: maxLoss } = keys;
  const estimator = estimatorIn(config);
  if (actsOnAdvantages(config)) {
    const bounds = maxLoss === null ? undefined : { low: -maxLoss, high: maxLoss };
    return { advantages: { estimator, coefficient, discount: keys.kl_discount_factor, bounds } };
  }
  const divergence = divergenceIn(config);
  if (divergence === undefined) return { loss: { coefficient, loss: { kind: "estimator", estimator, maxLoss } } };
  const { beta, add_tail: tail, topk: count, log_prob_min_clamp: leastLogprob } = keys;
  return { loss: { coefficient, loss: { kind: "tokens", divergence, maxLoss, beta, tail, count, leastLogprob } } };
}
