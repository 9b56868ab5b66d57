/** The fields of the filter language, and their columns in the index. */
import { failureKinds, terminationReasons } from "../../trajectories/types.ts";

export interface Field {
  type: "number" | "text" | "boolean";
  about: string;
  /** Known values, for suggestions. */
  values?: string[] | undefined;
  /** A column of `trajectories`; `text` has its own table. */
  column: string;
  /** The value may be unknown: `reward=unknown`. */
  nullable?: true;
  /** Its column in `gradings`, which finds any part of it. */
  graded?: "explanation" | "message";
  /** A field of single trajectories. An episode matches if one of its trajectories does. */
  perTrajectory?: true;
}

const ofDetails = (column: string) => `SELECT ${column} FROM details WHERE details.episode = trajectories.episode`;
const ofFailure = (column: string) => `CASE WHEN failure IS NOT NULL THEN (${ofDetails(column)}) END`;

const boundaries = ["engine", "set_up", "workflow", "environment", "reward", "timeout"];

export const fields: Readonly<Record<string, Field>> = {
  step: { type: "number", column: "step", about: "training step, or the step before a validation" },
  kind: { type: "text", column: "kind", about: "train or validation", values: ["train", "validation"] },
  task: { type: "text", column: "task", about: "id of the task" },
  rollout: { type: "number", column: "rollout", about: "number of the rollout within its task" },
  id: { type: "text", column: "task || ':' || rollout", about: "id of the episode, task:rollout" },
  role: { type: "text", column: "role", perTrajectory: true, about: "role of a trajectory" },
  reward: { type: "number", column: "reward", nullable: true, perTrajectory: true, about: "reward of a trajectory" },
  advantage: {
    type: "number",
    column: "advantage",
    nullable: true,
    perTrajectory: true,
    about: "mean advantage of a trajectory's tokens",
  },
  correct: { type: "boolean", column: "correct", nullable: true, about: "whether the task was solved" },
  signal: {
    type: "boolean",
    column: "signal",
    nullable: true,
    perTrajectory: true,
    about: "whether the rewards of its group differ",
  },
  termination: { type: "text", column: "termination", about: "why the episode ended", values: [...terminationReasons] },
  failed: { type: "boolean", column: "failure IS NOT NULL", about: "whether the rollout failed" },
  failure: {
    type: "text",
    column: "failure",
    nullable: true,
    about: "whose failure it was",
    values: [...failureKinds],
  },
  boundary: { type: "text", column: "boundary", nullable: true, about: "where it failed", values: boundaries },
  message: {
    type: "text",
    column: ofFailure("message"),
    graded: "message",
    nullable: true,
    about: "message of the failure",
  },
  explanation: {
    type: "text",
    column: ofDetails("explanation"),
    graded: "explanation",
    nullable: true,
    about: "the grader's explanation",
  },
  tokens: { type: "number", column: "tokens", about: "sampled tokens of the episode" },
  turns: { type: "number", column: "turns", about: "model calls of the episode" },
  tools: { type: "number", column: "tools", about: "tool calls of the episode" },
  seconds: { type: "number", column: "seconds", about: "duration in seconds" },
  retries: { type: "number", column: "retries", about: "failed attempts before this one" },
  version: { type: "number", column: "version", nullable: true, about: "newest weights that sampled it" },
  text: { type: "text", column: "", about: "words in prompts, replies, thinking, explanation and task, with ~ only" },
};

/** What a person who writes a filter needs. */
export const filterFields = {
  fields: Object.entries(fields).map(([name, { type, about, values }]) => ({ name, type, about, values })),
  examples: [
    'reward<0.2 and role=judge and termination=timeout and text~"sorry"',
    "step>=10 and not (correct=true or reward=unknown)",
    'failed=true and message~"connection"',
  ],
};
