/** A learner whose tensors are in a worker: the interface of ../engine.ts spoken over the worker's protocol. */
import { resolve } from "node:path";
import type { MediaStore } from "../../images/media-store.ts";
import type { AdapterSpec, Learner, LearnerSpec, Published } from "../engine.ts";
import { requireFitting } from "../learner-spec.ts";
import type { Connection } from "./connection.ts";
import { forward, forwardBackward } from "./forward-backward.ts";
import { type Frame, readNumber } from "./frames.ts";
import { withMedia } from "./media.ts";
import { type FindNativeLoss, nativeForwardBackward } from "./native-loss.ts";
import { trainedOffsets } from "./ragged.ts";
import { type SendBatch, sendWithCall } from "./send-batch.ts";

export interface WorkerLearner {
  /** The worker's number for these weights. */
  policy: number;
  learner: Learner;
  /** A request about this policy. */
  call(op: string, fields?: Record<string, unknown>): Promise<Frame>;
}

export interface WorkerLearnerOptions {
  /** Finds losses that the worker computes itself. */
  native?: FindNativeLoss;
  /** Default: each call sends its sequences. */
  send?: SendBatch;
}

/**
 * @param store has the images of sequences
 * @throws UserError when the model does not support this adapter
 */
export async function createWorkerLearner(
  connection: Connection,
  store: MediaStore,
  spec: LearnerSpec,
  { native, send = sendWithCall }: WorkerLearnerOptions = {},
): Promise<WorkerLearner> {
  const fields = { ...spec, adapter: adapterFields(spec.adapter) };
  const created = await connection.request("create_policy", fields).answer;
  const policy = created.header.policy as number;
  const call = (op: string, fields: Record<string, unknown> = {}) =>
    connection.request(op, { ...fields, policy }).answer;
  const published = ({ header }: Frame): Published => ({
    kind: "engine",
    version: readNumber(header.version),
    id: String(policy),
  });

  const learner: Learner = {
    async forward(sequences, outputs) {
      requireFitting(spec, outputs);
      return withMedia(connection, store, () => forward(connection, policy, send, sequences, outputs));
    },
    async forwardBackward(sequences, loss) {
      requireFitting(spec, loss.outputs);
      const found = native?.(loss, trainedOffsets(sequences));
      return withMedia(connection, store, () =>
        found
          ? nativeForwardBackward(connection, policy, send, sequences, loss, found)
          : forwardBackward(connection, policy, send, sequences, loss),
      );
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
      const { grad_norm: gradNorm, applied, lost_to_rounding: lost } = header;
      const step = { gradNorm: readNumber(gradNorm), applied: applied === true };
      return lost === undefined ? step : { ...step, lostToRounding: readNumber(lost) };
    },
    publish: async () => published(await call("publish")),
    async zeroGrad() {
      await call("zero_grad");
    },
    async saveState(dir, { optimizer } = { optimizer: true }) {
      await call("save_state", { dir: resolve(dir), optimizer });
    },
    loadState: async (dir, { optimizer }) => published(await call("load_state", { dir: resolve(dir), optimizer })),
    async export(dir, as) {
      await call("export", { dir: resolve(dir), as });
    },
    async close() {
      await call("close_policy");
    },
  };
  return { policy, learner, call };
}

/** An adapter in the words of the worker. */
export function adapterFields(spec: AdapterSpec) {
  const { trainVision: train_vision, ...adapter } = { trainVision: undefined, ...spec };
  return { ...adapter, train_vision };
}
