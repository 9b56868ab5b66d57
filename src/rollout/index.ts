export { parseOnAgentError } from "./on-agent-error.ts";
export { rolloutSeed } from "./rollout-seed.ts";
export { runRollouts } from "./run-rollouts.ts";
export { createSampleQueue, type SampleQueue } from "./sample-queue.ts";
export {
  createSamplingClient,
  type SamplingClient,
} from "./sampling-client.ts";
