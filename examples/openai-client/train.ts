/** An agent that uses only the official openai client. Its second turn corrects the first. */
import { defineExperiment, firstInteger, gatewayBaseURL, generated, randomInteger } from "hone-rl";
import OpenAI from "openai";

const pairs = (name: string, size: number) =>
  generated(name, size, (_index, random) => ({
    left: randomInteger(random, 10, 99),
    right: randomInteger(random, 10, 99),
  }));

const client = new OpenAI({ baseURL: gatewayBaseURL(), apiKey: "any" });

async function ask(messages: OpenAI.ChatCompletionMessageParam[]): Promise<string> {
  const { choices } = await client.chat.completions.create({ model: "policy", messages });
  return choices[0]?.message.content ?? "";
}

export default defineExperiment({
  train: pairs("pairs", 4096),
  validation: pairs("pairs-validation", 32),
  workflow: async ({ row: { left, right } }) => {
    const question = { role: "user", content: `Which number is larger, ${left} or ${right}?` } as const;
    const draft = await ask([question]);
    const review = { role: "user", content: "Check it, then answer with the number alone." } as const;
    const final = await ask([question, { role: "assistant", content: draft }, review]);
    return firstInteger(final, Math.max(left, right));
  },
  config: {
    rllm: {
      trainer: { experiment_name: "openai-client", total_batches: 20, test_freq: 10, save_freq: 10 },
    },
    training: { learning_rate: 3e-4 },
    data: { train_batch_size: 8, val_batch_size: 32, max_response_length: 16 },
  },
});
