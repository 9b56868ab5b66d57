/** The local engine's sampler and learner. */
import type { MediaStore } from "../../images/media-store.ts";
import type { Connection } from "../channel/connection.ts";
import { tokensAtEach } from "../channel/forward-backward.ts";
import { createWorkerLearner } from "../channel/learner.ts";
import { withMedia } from "../channel/media.ts";
import type { Learner, LearnerSpec, Policy, Sampler, WeightGroup } from "../engine.ts";
import { requireOwn } from "../published.ts";
import { sample } from "./sample.ts";

/** Joining waits for the inference server's processes, broadcasting for all weights. */
const groupSeconds = 300;

/** @throws UserError when the model does not support this adapter */
export async function createPolicy(connection: Connection, store: MediaStore, spec: LearnerSpec): Promise<Policy> {
  const { policy, learner: common, call } = await createWorkerLearner(connection, store, spec);
  const again = <T>(run: () => Promise<T>) => withMedia(connection, store, run);
  let version = 0;

  const sampler: Sampler = {
    get version() {
      return version;
    },
    logprobs: "raw",
    sample: (requests, options = {}) => sample(connection, store, policy, requests, options),
    // The worker samples from what was published last; nothing is copied.
    async load(weights) {
      requireOwn(weights, String(policy));
      version = weights.version;
    },
    async close() {},
  };
  const learner: Learner = {
    ...common,
    mostLikely: (sequences, count) =>
      again(() => tokensAtEach(connection, "most_likely", { policy, count }, sequences)),
    draws: (sequences, options) => again(() => tokensAtEach(connection, "draws", { policy, ...options }, sequences)),
    async openGroup(size) {
      const { header } = await call("open_group", { backend: "nccl" });
      return {
        id: String(header.group),
        size,
        weights: header as unknown as WeightGroup["weights"],
        join: async () => void (await call("join_group", { size, timeout_seconds: groupSeconds })),
        send: async () => void (await call("broadcast", { timeout_seconds: groupSeconds })),
      };
    },
  };
  return { sampler, learner };
}
