/** What teachers say of a batch's tokens. A teacher reads the policy's own tokens, after the policy's prompt or one of its own. */

import { teacherKl } from "../../algorithms/distillation/teacher-advantages.ts";
import { overlap } from "../../algorithms/divergences/divergences.ts";
import type { Learner, Teacher, TokenRows } from "../../backends/engine.ts";
import { concatenate } from "../../concatenate.ts";
import { RunError } from "../../errors.ts";
import type { Media } from "../../images/types.ts";
import { countsOf } from "../../trajectories/batch.ts";
import type { SequenceSource } from "../../trajectories/to-batch.ts";
import type { Sequence, Step, TrainingBatch, TrajectoryGroup } from "../../trajectories/types.ts";

export interface NamedTeacher {
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
  sources: readonly SequenceSource[],
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
    const { trajectory, steps } = sources[index]!;
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
