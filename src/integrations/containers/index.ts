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
  type WarmCounts,
} from "./container.ts";
export { type ContainerSandbox, type ContainerSandboxOptions, containerSandbox } from "./sandbox.ts";
