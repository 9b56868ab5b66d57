export { type Container, type ContainerOptions, container, type Executed, type ExecOptions } from "./container.ts";
