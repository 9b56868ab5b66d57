/** A policy of the local engine: the interface of ../engine.ts spoken over the worker's protocol. */
import { resolve } from "node:path";
import { requireFitting } from "../critic.ts";
import type { Policy, PolicySpec } from "../engine.ts";
import type { Connection } from "./connection.ts";
import { forward, forwardBackward, tokensAtEach } from "./forward-backward.ts";
import { readNumber } from "./frames.ts";
import { sample } from "./sample.ts";

/** @throws UserError when the model cannot carry this adapter */
export async function createPolicy(connection: Connection, spec: PolicySpec): Promise<Policy> {
  const created = await connection.request("create_policy", { ...spec }).answer;
  const policy = created.header.policy as number;
  const call = (op: string, fields: Record<string, unknown> = {}) =>
    connection.request(op, { ...fields, policy }).answer;
  let version = 0;

  return {
    get version() {
      return version;
    },
    sample: (requests, options = {}) => sample(connection, policy, requests, options),
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
      return { gradNorm: readNumber(header.grad_norm), applied: header.applied === true };
    },
    async publish() {
      version = readNumber((await call("publish")).header.version);
      return version;
    },
    async zeroGrad() {
      await call("zero_grad");
    },
    async saveState(dir, { optimizer } = { optimizer: true }) {
      await call("save_state", { dir: resolve(dir), optimizer });
    },
    async loadState(dir, { optimizer }) {
      version = readNumber((await call("load_state", { dir: resolve(dir), optimizer })).header.version);
    },
    async export(dir, as) {
      await call("export", { dir: resolve(dir), as });
    },
    async close() {
      await call("close_policy");
    },
  };
}
