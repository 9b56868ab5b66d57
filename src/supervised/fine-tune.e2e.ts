import { existsSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { makeTinyModel } from "../base/python.fixture.ts";
import type { ChatMessage } from "../chat/messages.ts";
import { generated } from "../data/dataset.ts";
import { temporaryFolder } from "../temporary-folder.fixture.ts";
import { fineTune } from "./fine-tune.ts";

test("learns the replies, and ends when onStep returns false", async () => {
  const root = temporaryFolder("fine-tune");
  const model = join(root, "model");
  await makeTinyModel(model);
  const losses: number[] = [];
  const data = generated("greetings", 400, (): ChatMessage[] => [
    { role: "user", content: "hello" },
    { role: "assistant", content: "good day" },
  ]);
  const folder = join(root, "trained");
  const onStep = ({ loss }: { loss: number }) => losses.push(loss) < 5 || loss > losses[0]! / 2;
  await fineTune({ model, folder, data, batchSize: 4, learningRate: 1e-2, loraRank: 0, onStep });
  expect(losses.length).toBeLessThan(100);
  expect(losses.at(-1)).toBeLessThan(losses[0]! / 2);
  expect(existsSync(join(folder, "model.safetensors"))).toBe(true);
  await expect(fineTune({ model, folder, data, batchSize: 4, learningRate: 1e-2 })).rejects.toThrow("already exists");
});
