/**
 * `hone-rl/harbor`: coding agents learn Harbor tasks in containers.
 * @module
 */
export { type AtifOptions, type AtifRow, type AtifTrajectory, atifRows, toAtif } from "./atif.ts";
export { type HarborOptions, harbor } from "./harbor.ts";
export { type HarborTask, type HarborTasksOptions, harborTasks } from "./tasks.ts";
