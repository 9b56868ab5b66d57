import type { AddressInfo } from "node:net";
import { defineExperiment, externalAgent, firstInteger, generated, randomInteger } from "hone-rl";
import { startAgent } from "./agent.ts";

export interface Row {
  left: number;
  right: number;
}

const numbers = (name: string, size: number) =>
  generated(
    name,
    size,
    (_index, random): Row => ({ left: randomInteger(random, 10, 99), right: randomInteger(random, 10, 99) }),
  );

/** Started here for the first run. For an agent that runs elsewhere, set AGENT_URL. */
const own = process.env.AGENT_URL === undefined ? await startAgent(0) : undefined;
own?.unref();
const url = process.env.AGENT_URL ?? `http://127.0.0.1:${(own!.address() as AddressInfo).port}`;

export const workflow = externalAgent<Row>({
  url,
  reward: ({ left, right }, result) => firstInteger((result as { answer: string }).answer, Math.max(left, right)),
});

export default defineExperiment({
  train: numbers("train", 4096),
  validation: numbers("validation", 32),
  workflow,
  close: () => void own?.close(),
  config: {
    rllm: { trainer: { experiment_name: "{{name}}", total_batches: 40, test_freq: 10 } },
    training: { learning_rate: 3e-4 },
    data: { train_batch_size: 16, val_batch_size: 32, max_prompt_length: 128, max_response_length: 8 },
  },
});
