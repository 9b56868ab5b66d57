export { type HarborOptions, harbor } from "./harbor.ts";
export { type HarborTask, harborTasks } from "./harbor-tasks.ts";
