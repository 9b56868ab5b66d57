/** What users implement: how a task becomes model calls and what the outcome is worth. */
import type { ChatMessage } from "../trajectories/types.ts";

/** One row of a dataset. */
export interface Task<Row = unknown> {
  /** Stable across runs and resumes: `"{dataset}/{index}"` unless the row has an `id`. */
  id: string;
  row: Row;
  /** Where the row came from, for messages: `"train.jsonl:17"`. */
  origin: string;
}

export interface CallParams {
  maxTokens?: number;
  temperature?: number;
  topP?: number;
  topK?: number;
  minP?: number;
  stop?: readonly string[];
}

export interface Reply {
  text: string;
  stopReason: "stop" | "length" | "aborted";
  tokens: Int32Array;
  logprobs: Float32Array;
}

/** The model as a workflow sees it. Every call is recorded as a step of the named agent's trajectory. */
export interface ModelClient {
  chat(messages: readonly ChatMessage[], params?: CallParams): Promise<Reply>;
  /** The same model recorded under another role, e.g. `model.as("judge")`. */
  as(role: string): ModelClient;
}

/** A graded outcome. `reward: null` means unknown (never trained on); `correct` drives pass@k. */
export interface Outcome {
  reward: number | null;
  correct?: boolean;
  /** Why, for people who look at episodes. */
  explanation?: string;
  metrics?: Record<string, number>;
  /** Rewards of single roles where they differ from `reward`. */
  rewards?: Record<string, number | null>;
}

export interface WorkflowContext {
  model: ModelClient;
  /** Aborted when the rollout's time is up or the run stops. */
  signal: AbortSignal;
  rollout: number;
  purpose: "train" | "validate";
  /**
   * Names what the rollout does from here on, e.g. "prompt", "search", "reward": shown while it waits, and told if it
   * fails. What fails while the stage is "reward" is recorded as a failure of the reward.
   */
  stage(name: string): void;
}

/** A plain async function is a whole workflow: call the model as often as needed, return what it was worth. */
export type Workflow<Row> = (task: Task<Row>, context: WorkflowContext) => Promise<Outcome | number> | Outcome | number;
