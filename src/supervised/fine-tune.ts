/** Fine-tuning of a local model in one call, without a run folder: a model learns given replies, for example to be trained next. */
import { existsSync } from "node:fs";
import { likelihoodLoss } from "../algorithms/supervised.ts";
import type { AdapterSpec } from "../backends/engine.ts";
import { openLocalEngine } from "../backends/local/engine.ts";
import { UserError } from "../base/errors.ts";
import { loadChat } from "../chat/chat.ts";
import type { ChatMessage } from "../chat/messages.ts";
import type { Dataset } from "../data/dataset.ts";
import { visionOf } from "../rollout/session.ts";
import { learningRate } from "../trainer/optimizer-steps.ts";
import { type GivenRow, ofRow, rowSteps, toStepInput } from "./row-steps.ts";

export interface FineTuneOptions {
  /** An alias, a Hugging Face directory, a .gguf file or a hub id. */
  model: string;
  /** Where the trained model is written, in Hugging Face's format. It must not exist, and appears when it is complete. */
  folder: string;
  /** Conversations, each used once, in order. The last message is the assistant's, and only this reply is learned. */
  data: Dataset<readonly ChatMessage[]>;
  /** Conversations of one optimizer step. */
  batchSize: number;
  /** AdamW's learning rate, reached after a tenth of the steps. */
  learningRate: number;
  /** Rank and alpha of the LoRA adapters, which are merged into the written model; rank 0 trains all weights. Default 32. */
  loraRank?: number;
  /** Also train the vision part. */
  trainVision?: boolean;
  /** Threads of the tensor library; default: one for each core. */
  threads?: number;
  /** `loss`: the mean cross-entropy of the step's reply tokens, in nats. Return false to stop training early. */
  onStep?: (progress: { step: number; steps: number; loss: number }) => unknown;
}

/**
 * Trains a model on the local backend by cross-entropy and writes the result to a new folder.
 *
 * @throws UserError when the model, a conversation or the folder cannot be used; RunError when the engine fails
 */
export async function fineTune(options: FineTuneOptions): Promise<void> {
  const { data, batchSize, folder, onStep } = options;
  if (existsSync(folder)) throw new UserError(`${folder} already exists`, { hint: "name a new folder" });
  const steps = Math.ceil(data.size / batchSize);
  const engine = await openLocalEngine({ model: options.model, threads: options.threads ?? 0 });
  try {
    const chat = loadChat(engine.model.directory);
    const vision = visionOf(engine);
    const { learner } = await engine.createPolicy({ adapter: adapterOf(options) });

    const give = (index: number): Promise<GivenRow> => {
      const task = data.task(index);
      return ofRow(task, async () => {
        if (task.row.at(-1)?.role !== "assistant") throw new UserError("the last message is not the assistant's");
        const example = { kind: "chat", messages: task.row, tools: [] } as const;
        const steps = await rowSteps(example, { chat, vision }, "last_assistant_message");
        return { task, trajectories: [{ role: "row", steps }], cut: 0, dropped: 0 };
      });
    };

    for (let step = 1; step <= steps; step++) {
      const first = (step - 1) * batchSize;
      const count = Math.min(batchSize, data.size - first);
      const rows = await Promise.all(Array.from({ length: count }, (_, index) => give(first + index)));
      const { batch } = toStepInput(rows, 0, engine.model.maxLength);
      const { loss } = await learner.forwardBackward(batch.sequences, likelihoodLoss(batch, mean));
      const rate = learningRate(step, steps, { schedule: "constant", warmupRatio: 0.1, base: options.learningRate });
      await learner.optimStep({ ...adam, learningRate: rate });
      if (onStep?.({ step, steps, loss }) === false) break;
    }
    await learner.export(folder, "merged");
  } finally {
    await engine.close();
  }
}

const mean = { reduction: "token-mean", lossType: "nll" } as const;
const adam = { beta1: 0.9, beta2: 0.95, eps: 1e-8, weightDecay: 0, maxGradNorm: 1 };

function adapterOf({ loraRank: rank = 32, trainVision }: FineTuneOptions): AdapterSpec {
  const vision = trainVision ? ({ trainVision: true } as const) : {};
  if (rank === 0) return { kind: "full", ...vision };
  return { kind: "lora", rank, alpha: rank, targets: ["attn", "mlp"], seed: 0, ...vision };
}
