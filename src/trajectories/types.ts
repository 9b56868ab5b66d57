/**
 * What a rollout records, from single model calls up to groups that are compared with each other.
 * Training uses the tokens. Text is only kept for people and graders, and is never encoded again.
 */
import { z } from "zod";
import { UserError } from "../base/errors.ts";
import type { SequenceStart } from "../chat/conversation.ts";
import type { ChatMessage, ParsedReply, ToolDefinition } from "../chat/messages.ts";
import type { Media } from "../images/images.ts";

/** Why an episode ended. `error` and `timeout` are failures, with a `failure` that says whose it was. */
export const terminationReasons = [
  "env_done",
  "max_turns_exceeded",
  "max_prompt_length_exceeded",
  "max_response_length_exceeded",
  "timeout",
  "error",
  "unknown",
] as const;

export type TerminationReason = (typeof terminationReasons)[number];

/** Where it failed. */
export type FailureBoundary = "engine" | "set_up" | "workflow" | "environment" | "reward" | "timeout";

/**
 * Whose failure it was:
 * - `model`: the agent could not use the model's reply (cut off, malformed, not the requested JSON)
 * - `agent`: the user's own code failed, or called the model in a way that is not allowed
 * - `reward`: the reward failed, or did not return a reward
 * - `infrastructure`: the engine, the network or another server did not answer
 */
export const failureKinds = ["model", "agent", "reward", "infrastructure"] as const;

export type FailureKind = (typeof failureKinds)[number];

export interface Failure {
  kind: FailureKind;
  boundary: FailureBoundary;
  message: string;
  stack?: string;
}

/**
 * What limits a reply: `max_tokens` of the model call itself, `data.max_response_length`, `training.max_length`, or the
 * model's own context window.
 */
export const lengthLimits = ["call", "max_response_length", "max_length", "context_window"] as const;

export type LengthLimit = (typeof lengthLimits)[number];

/** Roles of calls that are not the agent's own; see `GatewayAccess.separateSideCalls`. They may have no reward. */
export const sideRoles = { side: "side", subagent: "subagent" } as const;

export const isSideRole = (role: string) => Object.values<string>(sideRoles).includes(role);

/** What happened in a rollout's container, for people to read. */
export interface Trial {
  /** Commands that the workflow ran; those of an agent are tool calls of its conversation. */
  commands?: readonly { command: string; exitCode: number; output: string }[];
  /** How the container's files differ from its image. */
  files?: readonly { path: string; change: "added" | "changed" | "deleted" }[];
  /** What the verifier wrote. */
  verifier?: string;
}

/** One model call: the exact prompt tokens, the sampled tokens, and their log-probabilities. */
export interface Step {
  /** `[P]` token ids of the prompt as the model saw it. */
  promptTokens: Int32Array;
  /** The images within the prompt, in order. */
  media?: readonly Media[];
  /** `[T]` sampled token ids, including the stop token if one was sampled. */
  tokens: Int32Array;
  /** `[T]` log-probability of each sampled token under the sampler (nats). */
  logprobs: Float32Array;
  /** The log-probabilities are of the distribution after temperature and filters, not of the model's own. */
  processed?: true;
  /** The tokens are those of a dataset's row: nothing sampled them, and their log-probabilities are NaN. */
  given?: true;
  /** Version of the policy that sampled the last of these tokens; -1 for a model that is not trained. */
  policyVersion: number;
  /** `[T]` version of the policy of each token, if new weights were published while they were sampled. */
  tokenVersions?: Int32Array;
  /** The experts that computed prompt and reply, without those that an earlier step of its sequence has. */
  routing?: readonly RoutingPart[];
  stopReason: "stop" | "length" | "aborted";
  /** The limit that cut the reply off, if `stopReason` is "length". */
  cutOffBy?: LengthLimit;
  /** The reply decoded, special tokens dropped. */
  text: string;
  /** The messages the prompt was rendered from, for people to read. */
  messages: readonly ChatMessage[];
  tools?: readonly ToolDefinition[];
  /** The parsed reply. */
  reply?: ParsedReply;
  /** Why the prompt does not continue an earlier step of its trajectory; absent if it does, or if unknown. */
  starts?: SequenceStart;
  /** How many control tokens in the texts that the prompt adds became ordinary tokens; absent if none. */
  textMarks?: number;
  /** Reward of this step alone, if the workflow gives one. */
  reward: number | null;
  /** The advantage that the workflow gives itself, for the step or for each token. */
  advantage?: number | readonly number[];
}

/** The steps of one agent within an episode, e.g. the solver's or the judge's. */
export interface Trajectory {
  /** The agent's role; trajectories are compared within a role. */
  name: string;
  /** Distinguishes several trajectories of one role within an episode. */
  instance?: number;
  steps: Step[];
  /** `null`: unknown (the rollout failed or the grader does not know). Never replaced by 0. */
  reward: number | null;
  /** If reward models score: the terms of the weighted sum `reward`, by the model's name; `own` is the workflow's reward. */
  scores?: Readonly<Record<string, number>>;
}

/** Everything one rollout (one attempt at one task) recorded. */
export interface Episode {
  /** `"{task id}:{rollout index}"`. */
  id: string;
  taskId: string;
  rollout: number;
  /** The task's row as JSON, for people to read. */
  row?: unknown;
  trajectories: Trajectory[];
  termination: TerminationReason;
  /** Whether the task was solved; null if that is not defined. Determines pass@1 and pass@n. */
  correct: boolean | null;
  /** Metrics of the workflow or the reward, averaged into `batch/{name}`. */
  metrics: Record<string, number>;
  /** Why the reward is what it is, in the grader's words. */
  explanation?: string;
  trial?: Trial;
  /**
   * Set when the rollout failed. Its rewards are unknown, unless the model had answered and `rllm.workflow.on_agent_error`
   * gives such rollouts a reward.
   */
  failure?: Failure;
  /** Failed attempts before this one. */
  retries: number;
  /** How each of those failed. */
  retriedAfter?: readonly Omit<Failure, "stack">[];
  /** Wall-clock seconds. */
  seconds: number;
}

/** Trajectories that are compared with each other: the same task and the same role. */
export interface TrajectoryGroup {
  /** `"{task id}:{role}"`. */
  id: string;
  taskId: string;
  role: string;
  members: { episode: Episode; trajectory: Trajectory; reward: number }[];
  /** Reward of the greedy reply to the same task, if the estimator compares with it. */
  baseline?: number;
}

/** A token sequence as an engine takes it. */
export interface Sequence {
  /** `[L]` token ids. */
  tokens: Int32Array;
  /** The images within the tokens, in order. */
  media?: readonly Media[];
  /** The experts that training repeats, if the sampler has told them. */
  routing?: Routing;
  /** `[L-1]` 0/1; `trained[i]` = 1: the log-probability of `tokens[i + 1]` is an output and enters the loss. */
  trained: Uint8Array;
  /**
   * `[N]` the token of each output, in order, if outputs are of other tokens than the sequence's own next ones.
   * `trained[i]` is then the number of outputs at position `i`. For engines whose `outputs` include "targets".
   */
  targets?: Int32Array;
}

/**
 * Per-token outputs of some sequences, ragged over the trained positions only:
 * sequence `s` owns `[offsets[s], offsets[s + 1])` of each array, in the order of its trained positions.
 */
export interface TokenOutputs {
  /** `[S + 1]` */
  offsets: Int32Array;
  /** `[N]` log-probability of each trained token (nats, temperature 1); `[0]` of a critic. */
  logprobs: Float32Array;
  /** `[N]` entropy of the distribution each trained token was drawn from (nats), if requested. */
  entropy?: Float32Array;
  /** `[N]` sum of the squared probabilities of all tokens at each trained position, if requested. */
  concentration?: Float32Array;
  /** `[N]` of a critic: the value of the state before each trained token, if requested. */
  values?: Float32Array;
}

/** Sequences with what a loss needs for each trained token; ragged like `TokenOutputs`. */
export interface TrainingBatch {
  sequences: Sequence[];
  /** `[S + 1]` offsets of each sequence's trained tokens in the arrays below. */
  offsets: Int32Array;
  /** `[N]` advantage of each trained token. */
  advantages: Float32Array;
  /** `[N]` log-probability under the sampler. */
  samplerLogprobs: Float32Array;
  /** Some of those are of the distribution after temperature and filters, not of the model's own. */
  processed?: true;
  /** `[N]` log-probability under the policy that ratios start from; absent: the current policy's own, detached. */
  oldLogprobs?: Float32Array;
  /** `[N]` log-probability under the reference policy, for a KL term. */
  referenceLogprobs?: Float32Array;
  /** `[N]` what the critic should predict at each trained token, and what it predicted for the advantages. */
  returns?: Float32Array;
  oldValues?: Float32Array;
  /** `[N]` importance weight of each token's policy loss, with off-policy correction. */
  rolloutWeights?: Float32Array;
  /** `[N]` place of each token in what teachers say of the batch as it was made. */
  scores?: Float32Array;
  /** `[S]` index of the group each sequence belongs to. */
  groups: Int32Array;
  /** `[S]` the role of each sequence's trajectory. */
  roles: string[];
  /** Denominators: of this batch, or of the whole minibatch that these sequences were selected from. */
  totals: BatchTotals;
}

export interface BatchTotals {
  /** Trained tokens. */
  tokens: number;
  /** Sequences with at least one trained token. */
  sequences: number;
  /** The most trained tokens of any sequence. */
  longest: number;
  /** Tokens of the policy term, if it uses only each sequence's tokens of largest entropy. */
  highEntropyTokens?: number;
}

// The end of an episode's own conversation: a title may have been asked for after it.

/** @returns the last step of the last trajectory, of side calls only if there are no others */
export function lastStep<Step>(trajectories: readonly { name: string; steps: readonly Step[] }[]): Step | undefined {
  const own = trajectories.filter(({ name, steps }) => !isSideRole(name) && steps.length > 0);
  return (own.length > 0 ? own : trajectories).flatMap(({ steps }) => steps).at(-1);
}

// The form of a trial: checked when a workflow returns it, and when it is read from a run folder.

export const trials = z.strictObject({
  commands: z.array(z.strictObject({ command: z.string(), exitCode: z.number(), output: z.string() })).optional(),
  files: z.array(z.strictObject({ path: z.string(), change: z.enum(["added", "changed", "deleted"]) })).optional(),
  verifier: z.string().optional(),
});

/**
 * The oldest version of the policy that sampled any token of the episodes; undefined if the policy sampled none of them.
 * Models that are not trained do not count.
 */
export function oldestVersion(episodes: readonly Episode[]): number | undefined {
  const steps = episodes.flatMap(({ trajectories }) => trajectories.flatMap((trajectory) => trajectory.steps));
  const versions = steps.filter(({ policyVersion }) => policyVersion >= 0).map(oldestOf);
  return versions.length === 0 ? undefined : versions.reduce((oldest, version) => Math.min(oldest, version));
}

const oldestOf = ({ policyVersion, tokenVersions }: Step): number =>
  tokenVersions === undefined
    ? policyVersion
    : tokenVersions.reduce((oldest, one) => Math.min(oldest, one), policyVersion);

// The experts of a mixture that sampled a sequence, for training to repeat (`router_replay=R3`).

/** The experts of a reply and of the prompt before it, as vLLM sends them: half as long as arrays of numbers would be. */
export interface RoutingPart {
  /** Position of its first token in the sequence. */
  first: number;
  /** NumPy's .npy format in base64: whole numbers `[tokens][layers][experts of a token]`. */
  npy: string;
}

export interface Routing {
  /** `[L-1][layers][experts of a token]`; -1: unknown. The last token of a sequence is not computed. */
  experts: Int16Array;
  layers: number;
  expertsOfToken: number;
}

/**
 * The experts of a sequence. Of several parts, the first that has a token counts: it sampled the next one.
 *
 * @param tokens of the sequence
 */
export function joinRouting(parts: readonly RoutingPart[], tokens: number): Routing | undefined {
  const read = parts.map(({ first, npy }) => ({ first, ...readNpy(npy) }));
  const [one] = read;
  if (one === undefined) return undefined;
  const [, layers = 0, expertsOfToken = 0] = one.shape;
  const width = layers * expertsOfToken;
  const experts = new Int16Array((tokens - 1) * width).fill(-1);
  for (const { first, shape, values } of read.reverse()) {
    if (shape[1] !== layers || shape[2] !== expertsOfToken || first * width + values.length > experts.length) {
      throw new Error(`the inference server sent experts ${shape} from token ${first} of ${tokens}`);
    }
    experts.set(values, first * width);
  }
  return { experts, layers, expertsOfToken };
}

const arrays = { "|u1": Uint8Array, "<u2": Uint16Array, "<i4": Int32Array } as const;

/** @throws UserError for a file that vLLM does not send */
function readNpy(base64: string): { shape: number[]; values: Uint8Array | Uint16Array | Int32Array } {
  const bytes = Buffer.from(base64, "base64");
  const end = 10 + (bytes.length < 10 ? 0 : bytes.readUInt16LE(8));
  const header = bytes.toString("latin1", 10, end);
  const type = /'descr': '([^']*)'/.exec(header)?.[1] as keyof typeof arrays;
  const shape = /'shape': \(([^)]*)\)/.exec(header)?.[1]?.split(",").map(Number);
  const Values = Object.hasOwn(arrays, type) ? arrays[type] : undefined;
  const size = shape?.length === 3 && Values ? shape.reduce((a, b) => a * b) * Values.BYTES_PER_ELEMENT : undefined;
  if (!Values || !shape || size !== bytes.length - end || header.includes("'fortran_order': True")) {
    throw new UserError(`the inference server sent experts in an unknown form: ${header.trim().slice(0, 200)}`);
  }
  // Copied so that the array starts at an aligned address.
  return { shape, values: new Values(Uint8Array.from(bytes.subarray(end)).buffer) };
}
