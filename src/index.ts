/** What scripts import. */
export { type SingleTurnOptions, singleTurn } from "./agents/single-turn.ts";
export type { CallParams, ModelClient, Outcome, Reply, Task, Workflow, WorkflowContext } from "./agents/types.ts";
export type { Config, ConfigInput } from "./config/schema.ts";
export { columns } from "./data/columns.ts";
export { fromRows } from "./data/from-rows.ts";
export { generated } from "./data/generated.ts";
export { openDataset } from "./data/open-dataset.ts";
export type { Dataset, FileRow } from "./data/types.ts";
export { RunError, UserError } from "./errors.ts";
export * from "./rewards/index.ts";
export { defineExperiment, type Experiment } from "./trainer/experiment.ts";
export { type RunSummary, type TrainOptions, train } from "./trainer/train.ts";
export type { ChatMessage, Episode, Step, Trajectory } from "./trajectories/types.ts";
