/** What an episode's line in a run folder must have: everything that the viewer reads. */
import { z } from "zod";
import { isShallow, jsonNumber, name } from "./json-lines.ts";

const notNumbers = new Set<unknown>(["NaN", "Infinity", "-Infinity"]);
const mostToken = 2 ** 31 - 1;

/** Checked by hand, because an episode may have a million tokens. */
const arrayOf = (isValid: (value: unknown) => boolean, what: string) =>
  z.custom<readonly number[]>((value) => Array.isArray(value) && value.every(isValid), { message: `expected ${what}` });

const isInteger = (value: unknown) =>
  Number.isInteger(value) && (value as number) >= -mostToken && (value as number) <= mostToken;
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
    stopReason: z.enum(["stop", "length", "aborted"]),
    cutOffBy: z.string().optional(),
    text: z.string(),
    messages: z.array(message),
    tools: z.array(tool).optional(),
    reply: reply.optional(),
    starts: z.string().optional(),
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

export const episodeSchema = z.looseObject({
  id: z.string(),
  taskId: name,
  rollout: count,
  row: shallow.optional(),
  trajectories: z.array(trajectory),
  termination: name,
  correct: z.boolean().nullish(),
  metrics: z.record(z.string(), z.unknown()),
  explanation: z.string().optional(),
  failure: failed.extend({ stack: z.string().optional() }).optional(),
  retries: count,
  retriedAfter: z.array(failed).optional(),
  seconds: z.number(),
});
