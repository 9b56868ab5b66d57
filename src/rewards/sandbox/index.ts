export { describeIsolation } from "./describe-isolation.ts";
export { openSandbox, type SandboxOptions } from "./open-sandbox.ts";
export type { Isolation, Sandbox, SandboxLimits, SandboxProgram, SandboxResult } from "./types.ts";
