export { parseOnAgentError } from "./on-agent-error.ts";
export { runRollouts } from "./run-rollouts.ts";
export { rolloutSeed } from "./session/rollout-seed.ts";
export { createSampleQueue, type SampleQueue } from "./session/sample-queue.ts";
export {
  createSamplingClient,
  type SamplingClient,
} from "./session/sampling-client.ts";
