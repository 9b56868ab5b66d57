export { type SingleTurnOptions, singleTurn } from "./single-turn.ts";
export type { CallParams, ModelClient, Outcome, Reply, Task, Workflow, WorkflowContext } from "./types.ts";
