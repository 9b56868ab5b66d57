/** What the agents of this folder share: tasks, a price list, and the reward. */
import { defineExperiment, firstInteger, generated, randomInteger, type Workflow } from "hone-rl";
import { z } from "zod";

export const prices = { pen: 2, book: 12, lamp: 30 };
type Item = keyof typeof prices;

/** The input of the tool that looks up a price. */
export const priceInput = z.object({ item: z.enum(["pen", "book", "lamp"]) });
export const priceOf = ({ item }: { item: Item }) => prices[item];

export const instructions = "Look up the price with the tool, then answer with the total alone.";

export interface Order {
  item: Item;
  count: number;
}

const orders = (name: string, size: number) =>
  generated(name, size, (index, random): Order => {
    const items = ["pen", "book", "lamp"] as const;
    return { item: items[index % items.length]!, count: randomInteger(random, 1, 9) };
  });

export interface Answer {
  text: string;
  /** How many times the agent looked up a price. */
  lookups: number;
}

/** Half for looking up the price, half for the right total. */
export const reward = ({ item, count }: Order, { text, lookups }: Answer) => {
  const total = firstInteger(text, prices[item] * count);
  const reward = 0.5 * Math.min(lookups, 1) + 0.5 * total.reward!;
  return { ...total, reward, metrics: { lookups } };
};

type Context = Parameters<Workflow<Order>>[1];

/** An experiment that trains `agent`, which gets a customer's question and what a rollout knows. */
export const shop = (name: string, agent: (question: string, context: Context) => Promise<Answer>) =>
  defineExperiment<Order>({
    train: orders("train", 999),
    validation: orders("validation", 24),
    workflow: async ({ row }, context) =>
      reward(row, await agent(`How much do ${row.count} of the item ${row.item} cost?`, context)),
    config: {
      rllm: { trainer: { experiment_name: name, total_batches: 30, test_freq: 10 } },
      // The default model's own template does not support tools. Leave this out for a model that does.
      rollout_engine: { renderer_name: "hermes" },
      training: { learning_rate: 1e-4 },
      data: { train_batch_size: 4, val_batch_size: 24, max_prompt_length: 2048, max_response_length: 64 },
    },
  });
