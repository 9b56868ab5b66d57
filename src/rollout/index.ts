export type { AttemptIdentity, OpenedGateway, RolloutGateway } from "./gateway-door.ts";
export { parseOnAgentError } from "./on-agent-error.ts";
export { rolloutSeed } from "./rollout-seed.ts";
export { type RunRolloutsOptions, runRollouts } from "./run-rollouts.ts";
export { createSampleQueue, type SampleQueue } from "./sample-queue.ts";
export {
  type CallIdentity,
  createSamplingClient,
  type SamplingClient,
  type SamplingClientOptions,
  type WaitingRollout,
} from "./sampling-client.ts";
