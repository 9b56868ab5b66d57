/** The local engine's sampler and learner: the interfaces of ../engine.ts spoken over the worker's protocol. */
import { resolve } from "node:path";
import type { Learner, LearnerSpec, Policy, Published, Sampler, WeightGroup } from "../engine.ts";
import { requireFitting } from "../learner-spec.ts";
import { requireOwn } from "../published.ts";
import type { Connection } from "./channel/connection.ts";
import { readNumber } from "./channel/frames.ts";
import { sample } from "./sample.ts";
import { forward, forwardBackward, tokensAtEach } from "./training/forward-backward.ts";

/** Joining waits for the inference server's processes, broadcasting for all weights. */
const groupSeconds = 300;

/** @throws UserError when the model cannot carry this adapter */
export async function createPolicy(connection: Connection, spec: LearnerSpec): Promise<Policy> {
  const created = await connection.request("create_policy", { ...spec }).answer;
  const policy = created.header.policy as number;
  const call = (op: string, fields: Record<string, unknown> = {}) =>
    connection.request(op, { ...fields, policy }).answer;
  const published = (version: unknown): Published => ({
    kind: "engine",
    version: readNumber(version),
    id: String(policy),
  });
  let version = 0;

  const sampler: Sampler = {
    get version() {
      return version;
    },
    logprobs: "raw",
    sample: (requests, options = {}) => sample(connection, policy, requests, options),
    // The worker samples from what was published last; nothing is copied.
    async load(weights) {
      requireOwn(weights, String(policy));
      version = weights.version;
    },
    async close() {},
  };
  const learner: Learner = {
    async forward(sequences, outputs) {
      requireFitting(spec, outputs);
      return forward(connection, policy, sequences, outputs);
    },
    mostLikely: (sequences, count) => tokensAtEach(connection, "most_likely", { policy, count }, sequences),
    draws: (sequences, options) => tokensAtEach(connection, "draws", { policy, ...options }, sequences),
    async forwardBackward(sequences, loss) {
      requireFitting(spec, loss.outputs);
      return forwardBackward(connection, policy, sequences, loss);
    },
    async optimStep(adam) {
      const { header } = await call("optim_step", {
        learning_rate: adam.learningRate,
        beta1: adam.beta1,
        beta2: adam.beta2,
        eps: adam.eps,
        weight_decay: adam.weightDecay,
        max_grad_norm: adam.maxGradNorm,
      });
      return {
        gradNorm: readNumber(header.grad_norm),
        applied: header.applied === true,
        lostToRounding: readNumber(header.lost_to_rounding),
      };
    },
    async publish() {
      return published((await call("publish")).header.version);
    },
    async zeroGrad() {
      await call("zero_grad");
    },
    async saveState(dir, { optimizer } = { optimizer: true }) {
      await call("save_state", { dir: resolve(dir), optimizer });
    },
    async loadState(dir, { optimizer }) {
      return published((await call("load_state", { dir: resolve(dir), optimizer })).header.version);
    },
    async export(dir, as) {
      await call("export", { dir: resolve(dir), as });
    },
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
    async close() {
      await call("close_policy");
    },
  };
  return { sampler, learner };
}
