/** Episodes as the run folder keeps them: read and checked, and written for tools that read rLLM's episode logger. */
import { createHash } from "node:crypto";
import { join } from "node:path";
import { z } from "zod";
import { makeFolder, writeWhole } from "../base/files.ts";
import { sortedJson } from "../base/values.ts";
import { type Episode, type Step, type Trajectory, trials } from "../trajectories/types.ts";
import { isShallow, jsonNumber, name, numbersOf, parseLine, readNumber, type TokenValues } from "./json-lines.ts";

// Reads an episode from the JSON that `toJson` writes, and checks everything that the viewer reads.

/**
 * `advantage`: one of the trajectory, or for each step one, or one per token. `training`: what the update computed for the
 * tokens of each step; null for what it did not train on, absent in older runs.
 */
export type StoredTrajectory = Trajectory & {
  advantage?: number | readonly (number | readonly number[])[];
  training?: readonly (TokenValues | null)[] | null;
};
export type StoredEpisode = Omit<Episode, "trajectories"> & { trajectories: StoredTrajectory[] };

type ParsedStep = z.output<typeof episodeSchema>["trajectories"][number]["steps"][number];

/**
 * @returns the episode with its typed arrays and its numbers that JSON does not have
 * @throws Error with a clause about what is wrong, when the text is not an episode
 */
export function readEpisode(json: string): StoredEpisode {
  const episode = parseLine(episodeSchema, json);
  const trajectories = episode.trajectories.map((trajectory) => {
    const { advantage } = trajectory;
    const read = { ...trajectory, steps: trajectory.steps.map(readStep) };
    if (typeof advantage === "object") read.advantage = advantage.map(readAdvantage);
    return read;
  });
  return { ...episode, trajectories, metrics: numbersOf(episode.metrics) } as StoredEpisode;
}

const readAdvantage = <Value extends number | readonly number[]>(value: Value) =>
  (typeof value === "object" ? value.map(readNumber) : value) as Value;

function readStep({ tokenVersions, advantage, ...parsed }: ParsedStep): Step {
  const step = {
    ...parsed,
    promptTokens: Int32Array.from(parsed.promptTokens),
    tokens: Int32Array.from(parsed.tokens),
    logprobs: Float32Array.from(parsed.logprobs, readNumber),
  } as Step;
  if (tokenVersions !== undefined) step.tokenVersions = Int32Array.from(tokenVersions);
  if (advantage !== undefined) step.advantage = readAdvantage(advantage);
  return step;
}

/** The advantage of each token of a step; undefined if unknown. */
export function tokenAdvantages(
  { advantage }: StoredTrajectory,
  step: number,
  tokens: number,
): readonly number[] | undefined {
  const own = typeof advantage === "object" ? advantage[step] : advantage;
  return typeof own === "number" ? new Array<number>(tokens).fill(own) : (own ?? undefined);
}

const notNumbers = new Set<unknown>(["NaN", "Infinity", "-Infinity"]);
const maxToken = 2 ** 31 - 1;

/** Checked by hand, because an episode may have a million tokens. */
const arrayOf = (isValid: (value: unknown) => boolean, what: string) =>
  z.custom<readonly number[]>((value) => Array.isArray(value) && value.every(isValid), { message: `expected ${what}` });

const isInteger = (value: unknown) =>
  Number.isInteger(value) && (value as number) >= -maxToken && (value as number) <= maxToken;
const integers = arrayOf(isInteger, "a list of 32-bit integers");
const numbers = arrayOf((value) => typeof value === "number" || notNumbers.has(value), "a list of numbers");

const tooDeep = { message: "it is nested too deeply" };
const shallow = z.unknown().refine(isShallow, tooDeep);
const values = z.union([z.number(), z.string()]).nullish();
const count = z.int().nonnegative();

const image = z.looseObject({
  hash: z.string().regex(/^[0-9a-f]{64}$/, { message: "not the hash of an image" }),
  type: z.enum(["image/png", "image/jpeg"]),
  width: count,
  height: count,
});
/** Only stored images are shown as images. */
const otherImage = z.unknown().refine((value) => typeof value !== "object" || value === null || !("hash" in value));
const part = z.discriminatedUnion("type", [
  z.looseObject({ type: z.literal("text"), text: z.string() }),
  z.looseObject({ type: z.literal("image"), image: z.union([image, otherImage]) }),
]);
const toolCall = z.looseObject({
  id: z.string(),
  name: z.string(),
  arguments: z.record(z.string(), z.unknown()).refine(isShallow, tooDeep),
  argumentsText: z.string().optional(),
});
const message = z.looseObject({
  role: z.enum(["system", "user", "assistant", "tool"]),
  content: z.union([z.string(), z.array(part)]),
  reasoning: z.string().nullish(),
  toolCalls: z.array(toolCall).nullish(),
  toolCallId: z.string().optional(),
  name: z.string().optional(),
});
const tool = z.looseObject({ name: z.string(), description: z.string().optional(), parameters: shallow.optional() });
const problem = z.looseObject({
  kind: z.enum(["malformed_tool_call", "unclosed_tool_call", "unclosed_thinking"]),
  message: z.string(),
  text: z.string(),
});
const reply = z.looseObject({
  content: z.string(),
  reasoning: z.string().nullish(),
  toolCalls: z.array(toolCall),
  problems: z.array(problem),
});

const step = z
  .looseObject({
    promptTokens: integers,
    tokens: integers,
    logprobs: numbers,
    policyVersion: z.int(),
    tokenVersions: integers.optional(),
    processed: z.literal(true).optional(),
    given: z.literal(true).optional(),
    stopReason: z.enum(["stop", "length", "aborted"]),
    cutOffBy: z.string().optional(),
    text: z.string(),
    messages: z.array(message),
    tools: z.array(tool).optional(),
    reply: reply.optional(),
    starts: z.string().optional(),
    textMarks: z.int().optional(),
    reward: jsonNumber.nullable(),
    advantage: z.union([jsonNumber, numbers]).optional(),
  })
  .refine(
    ({ tokens, logprobs, tokenVersions = tokens }) =>
      tokens.length === logprobs.length && tokens.length === tokenVersions.length,
    { message: "tokens, logprobs and tokenVersions differ in length" },
  );

const recorded = z.looseObject({
  mask: values,
  advantage: values,
  logprobs: values,
  ratio: values,
  clipped: values,
  entropy: values,
  reference: values,
});

const trajectory = z.looseObject({
  name,
  instance: z.int().optional(),
  steps: z.array(step),
  reward: jsonNumber.nullable(),
  scores: z.record(name, jsonNumber).optional(),
  advantage: z.union([jsonNumber, z.array(z.union([jsonNumber, numbers]))]).optional(),
  training: z.array(recorded.nullable()).nullish(),
});

const failed = z.looseObject({ kind: name, boundary: name, message: z.string() });

const episodeSchema = z.looseObject({
  id: z.string(),
  taskId: name,
  rollout: count,
  row: shallow.optional(),
  trajectories: z.array(trajectory),
  termination: name,
  correct: z.boolean().nullish(),
  metrics: z.record(z.string(), z.unknown()),
  explanation: z.string().optional(),
  trial: trials.optional(),
  failure: failed.extend({ stack: z.string().optional() }).optional(),
  retries: count,
  retriedAfter: z.array(failed).optional(),
  seconds: z.number(),
});

// Episodes as readable JSON files in the layout of rLLM's episode logger, for tools that read it. The run folder's own
// episodes have the tokens; these have the text.

interface LoggedStep {
  mode: "train" | "val";
  step: number;
  epoch: number;
}

/**
 * Writes `{directory}/episodes/{mode}_step_{step}_epoch_{epoch}/episode_hash{8}_id{id}.json` for each episode, and
 * batch_summary.json. Logging a step again replaces its files.
 *
 * @throws the file system's error, or RunError when the disk is full
 */
export function logEpisodes(
  directory: string,
  { mode, step, epoch }: LoggedStep,
  episodes: readonly Episode[],
): string {
  const folder = join(directory, "episodes", `${mode}_step_${step}_epoch_${epoch}`);
  makeFolder(folder);
  const write = (file: string, content: object) =>
    writeWhole(join(folder, file), [`${JSON.stringify(content, null, 2)}\n`]);
  const files = episodes.map((episode) => {
    const { row: task } = episode;
    const hash = createHash("sha256").update(sortedJson(task)).digest("hex").slice(0, 8);
    const file = `episode_hash${hash}_id${episode.id.replaceAll(/[:/\\]/g, "_")}.json`;
    write(file, { training_step: step, epoch, ...readable(episode), task, task_hash: hash });
    return file;
  });
  const count = Math.max(1, episodes.length);
  const correct = episodes.filter((episode) => episode.correct === true).length;
  const trajectories = episodes.reduce((sum, episode) => sum + episode.trajectories.length, 0);
  write("batch_summary.json", {
    training_step: step,
    epoch,
    mode,
    num_episodes: episodes.length,
    episode_files: files,
    summary_stats: {
      total_correct: correct,
      total_incorrect: episodes.length - correct,
      accuracy: correct / count,
      avg_trajectories_per_episode: trajectories / count,
    },
  });
  return folder;
}

/** JSON leaves out what is undefined. */
const readable = ({ id, trajectories, ...episode }: Episode) => ({
  episode_id: id,
  is_correct: episode.correct,
  termination_reason: episode.termination,
  failure: episode.failure,
  explanation: episode.explanation,
  metrics: episode.metrics,
  timing: { seconds: episode.seconds, retries: episode.retries },
  trajectories: trajectories.map(({ name, instance, reward, scores, steps }: Trajectory) => ({
    name,
    uid: `${id}:${name}${instance === undefined ? "" : `:${instance}`}`,
    reward,
    scores,
    num_steps: steps.length,
    steps: steps.map((step, index) => readableStep(step, index === steps.length - 1)),
  })),
});

const readableStep = ({ messages, reply, text, reward, tools }: Step, done: boolean) => ({
  observation: messages.at(-1)?.content ?? null,
  thought: reply?.reasoning ?? null,
  action: reply?.toolCalls?.length ? reply.toolCalls : (reply?.content ?? text),
  reward,
  done,
  model_response: text,
  chat_completions: messages,
  tools,
  problems: reply?.problems.length ? reply.problems : undefined,
});
