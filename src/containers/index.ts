/**
 * `hone-rl/containers`: Docker or podman as a sandbox for workflows and graders.
 * @module
 */
export {
  type Container,
  type ContainerContext,
  type ContainerOptions,
  container,
  type ExecOptions,
  type Executed,
  type OpenContainer,
} from "./container.ts";
export { type ContainerSandbox, type ContainerSandboxOptions, containerSandbox } from "./container-sandbox.ts";
export type { WarmCounts } from "./warm-queue.ts";
