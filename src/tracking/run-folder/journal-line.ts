/** A line of events.jsonl, checked where it is read: a run folder may be damaged, or of another version. */
import { z } from "zod";
import { own } from "../../own.ts";
import { isShallow, jsonNumber, name, parseLine } from "./json-lines.ts";

const step = z.int().nonnegative();
const count = z.int().nonnegative();
const seconds = z.number();
const failure = z.object({ kind: name, boundary: name, message: z.string() });
/** Each rollout becomes a row of the viewer's index. */
const mostQueued = 100_000;

const queuedTask = z.object({ task: name, first: count, count: z.int().nonnegative().max(mostQueued) });
const queuedTasks = z
  .array(queuedTask)
  .refine((tasks) => tasks.reduce((sum, { count }) => sum + count, 0) <= mostQueued, {
    message: `more than ${mostQueued} rollouts`,
  });

const rollout = z.object({ step, purpose: z.enum(["train", "validate"]), task: name, rollout: count, attempt: count });
const callEnd = { call: count, queued: z.number().nonnegative().optional() };
const answer = {
  prompt: count,
  tokens: count,
  tools: z.array(z.string()).optional(),
  versions: z.tuple([z.int(), z.int()]),
};

/** What each kind of event has. Other kinds, e.g. of a later version, are passed on unchanged. */
const kinds = {
  "run-start": z.object({ totalSteps: jsonNumber.nullable(), step, text: z.array(z.string()) }),
  "setup-status": z.object({ text: z.string() }),
  "rollouts-queued": rollout.pick({ step: true, purpose: true }).extend({ tasks: queuedTasks }),
  rollout: z.discriminatedUnion("state", [
    rollout.extend({ state: z.literal("start") }),
    rollout.extend({ state: z.literal("stage"), stage: name }),
    rollout.extend({ state: z.literal("call"), call: count, role: name }),
    rollout.extend({ state: z.literal("answer"), ...callEnd, ...answer }),
    rollout.extend({ state: z.literal("unanswered"), ...callEnd, message: z.string() }),
    rollout.extend({ state: z.literal("retry"), failure }),
    rollout.extend({
      state: z.literal("end"),
      termination: name,
      reward: jsonNumber.nullable(),
      failure: failure.optional(),
    }),
  ]),
  "update-progress": z.object({ step, done: count, total: count }),
  "phase-end": z.object({ step, name, seconds }),
  weights: z.object({ step, version: z.int() }),
  "step-end": z.object({ step, total: jsonNumber.nullable(), epoch: jsonNumber, seconds }),
  "validation-start": z.object({ step }),
  "validation-end": z.object({ step, seconds }),
  "checkpoint-saved": z.object({ step, path: z.string(), bytes: z.number(), seconds }),
  "checkpoint-removed": z.object({ path: z.string() }),
  warning: z.object({ text: z.string() }),
  health: z.object({ text: z.string() }),
  "run-end": z.object({
    reason: z.enum(["done", "stopped", "failed"]),
    text: z.string().optional(),
    report: z.array(z.string()).optional(),
  }),
};

type Kinds = typeof kinds;
/** An event of a known kind. */
export type JournalEvent = { [Kind in keyof Kinds]: { kind: Kind } & z.output<Kinds[Kind]> }[keyof Kinds];
export type RolloutEvent = Extract<JournalEvent, { kind: "rollout" }>;

/** The latest time that a date can have. */
const mostMilliseconds = 8.64e15;

const lineSchema = z
  .looseObject({
    seq: z.int().positive(),
    time: z.number().nonnegative().max(mostMilliseconds),
    kind: name,
  })
  .refine(isShallow, { message: "it is nested too deeply" });

export type JournalLine = z.output<typeof lineSchema>;

/** The line as it is. @throws Error with a clause about what is wrong */
export const readJournalLine = (text: string): JournalLine => parseLine(lineSchema, text);

/** The event of a line; undefined for an unknown kind. @throws Error with a clause about what is wrong */
export function eventOf(line: JournalLine): JournalEvent | undefined {
  const schema = own<z.ZodType>(kinds, line.kind);
  if (schema === undefined) return undefined;
  return { ...(parseLine(schema, line) as object), kind: line.kind } as JournalEvent;
}
