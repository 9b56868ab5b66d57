export { type Container, type ContainerOptions, container, type ExecOptions, type Executed } from "./container.ts";
