/** Supervised fine-tuning: a model learns given replies, for example before reinforcement learning. */
import { existsSync } from "node:fs";
import { learningRate } from "../algorithms/schedules/learning-rate.ts";
import type { Loss } from "../algorithms/types.ts";
import type { AdapterSpec } from "../backends/engine.ts";
import { openLocalEngine } from "../backends/local/engine.ts";
import { loadChat } from "../chat/chat.ts";
import { textOf } from "../chat/images/content.ts";
import { renderWithImages } from "../chat/images/prepare-images.ts";
import type { ChatMessage } from "../chat/messages.ts";
import type { Dataset } from "../data/types.ts";
import { UserError } from "../errors.ts";
import { visionOf } from "../rollout/vision.ts";
import type { Sequence } from "../trajectories/types.ts";

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

    const toSequence = async (index: number): Promise<Sequence> => {
      const { row, origin } = data.task(index);
      const last = row.at(-1);
      if (last?.role !== "assistant") throw new UserError(`${origin}: the last message is not the assistant's`);
      const prompt = await renderWithImages(chat, vision, row.slice(0, -1));
      const reply = chat.encode(textOf(last.content) + (chat.turnEnd ?? ""));
      const tokens = Int32Array.from([...prompt.tokens, ...reply]);
      const trained = new Uint8Array(tokens.length - 1).fill(1, prompt.tokens.length - 1);
      return { tokens, trained, media: prompt.media };
    };

    for (let step = 1; step <= steps; step++) {
      const first = (step - 1) * batchSize;
      const count = Math.min(batchSize, data.size - first);
      const batch = await Promise.all(Array.from({ length: count }, (_, index) => toSequence(first + index)));
      const { loss } = await learner.forwardBackward(batch, crossEntropy(batch));
      const rate = learningRate(step, steps, { schedule: "constant", warmupRatio: 0.1, base: options.learningRate });
      await learner.optimStep({ ...adam, learningRate: rate });
      if (onStep?.({ step, steps, loss }) === false) break;
    }
    await learner.export(folder, "merged");
  } finally {
    await engine.close();
  }
}

const adam = { beta1: 0.9, beta2: 0.95, eps: 1e-8, weightDecay: 0, maxGradNorm: 1 };

function adapterOf({ loraRank: rank = 32, trainVision }: FineTuneOptions): AdapterSpec {
  const vision = trainVision ? ({ trainVision: true } as const) : {};
  if (rank === 0) return { kind: "full", ...vision };
  return { kind: "lora", rank, alpha: rank, targets: ["attn", "mlp"], seed: 0, ...vision };
}

/** The mean over all trained tokens of the batch. */
function crossEntropy(batch: readonly Sequence[]): Loss {
  const count = batch.reduce((sum, { trained }) => sum + trained.reduce((ones, one) => ones + one, 0), 0);
  return {
    name: "cross_entropy",
    outputs: {},
    evaluate: ({ logprobs }) => ({
      loss: logprobs.reduce((sum, logprob) => sum - logprob / count, 0),
      gradient: { logprobs: new Float32Array(logprobs.length).fill(-1 / count) },
      metrics: {},
    }),
  };
}
