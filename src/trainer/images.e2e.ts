/** Agents that send pictures with the AI SDK and with openai's client, trained through the gateway on a tiny vision model. */
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText } from "ai";
import OpenAI from "openai";
import { beforeAll, expect, test } from "vitest";
import { makeTinyVisionModel } from "../base/python.fixture.ts";
import { generated } from "../data/dataset.ts";
import { mediaFolder, memoryStore } from "../images/images.ts";
import { dataUrl, png } from "../images/pictures.fixture.ts";
import { temporaryFolder } from "../temporary-folder.fixture.ts";
import { readEpisode } from "../tracking/episodes.ts";
import { train } from "./train.ts";

const root = temporaryFolder("trained-images");

beforeAll(async () => {
  await makeTinyVisionModel(root);
});

const red = png(20, 28, [250, 10, 10]);
const blue = png(44, 17, [10, 10, 250]);
const hashes = [red, blue].map((bytes) => memoryStore().add(bytes).hash);

interface Gateway {
  baseURL: string;
  apiKey: string;
}

async function askByAiSdk({ baseURL, apiKey }: Gateway): Promise<string> {
  const policy = createOpenAICompatible({ name: "hone", baseURL, apiKey })("policy");
  const content = [
    { type: "file" as const, data: new Uint8Array(red), mediaType: "image/png" },
    { type: "text" as const, text: "What color?" },
  ];
  return (await generateText({ model: policy, messages: [{ role: "user", content }], maxRetries: 0 })).text;
}

/** Its second turn shows a second picture. */
async function askByOpenai({ baseURL, apiKey }: Gateway): Promise<string> {
  const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
  const show = (bytes: Uint8Array, text: string): OpenAI.ChatCompletionMessageParam => ({
    role: "user",
    content: [
      { type: "image_url", image_url: { url: dataUrl(bytes) } },
      { type: "text", text },
    ],
  });
  const ask = async (...messages: OpenAI.ChatCompletionMessageParam[]) =>
    (await client.chat.completions.create({ model: "policy", messages })).choices[0]!.message;
  const question = show(red, "What color?");
  const draft = await ask(question);
  return (await ask(question, draft, show(blue, "And now?"))).content ?? "";
}

const share = (reply: string) => [...reply].filter((letter) => letter >= "a" && letter <= "m").length / 8;

async function trained(backend: "local" | "tinker") {
  const folder = join(root, backend);
  const { history } = await train({
    train: generated("pictures", 64, (index) => ({ index })),
    workflow: async ({ row: { index } }, { gateway }) =>
      share(await (index % 2 === 0 ? askByAiSdk(gateway) : askByOpenai(gateway))),
    config: {
      model: { name: join(root, "smolvlm"), lora_rank: 4, train_unembed: false },
      rllm: {
        backend,
        rollout: { n: 4 },
        trainer: { total_batches: 2, logger: [], save_freq: 0, test_freq: 0, run_dir: folder },
      },
      local: { dtype: "float32", device: "cpu", threads: 1 },
      training: { learning_rate: 0.01 },
      data: { train_batch_size: 4, max_response_length: 8 },
    },
  });
  expect(readdirSync(join(folder, mediaFolder)).sort()).toEqual(hashes.map((hash) => `${hash}.png`).sort());
  return { folder, metrics: history.map(({ metrics }) => metrics) };
}

test("agents that send pictures are trained, with the same rewards through Tinker's protocol", async () => {
  const local = await trained("local");
  for (const metrics of local.metrics) {
    expect(metrics).toMatchObject({ "batch/failed_episodes": 0, "gateway/calls_ok": expect.any(Number) });
    expect(metrics["actor/grad_norm"]).toBeGreaterThan(0);
    expect(metrics["rollout/logprob_diff_mean"]).toBeLessThan(1e-4);
  }
  const episodes = join(local.folder, "episodes");
  const lines = readdirSync(episodes).flatMap((file) => readFileSync(join(episodes, file), "utf8").trim().split("\n"));
  const seen = lines.map((line) =>
    readEpisode(line)
      .trajectories[0]!.steps.at(-1)!
      .media?.map(({ hash }) => hash),
  );
  expect(seen).toHaveLength(2 * 4 * 4);
  expect(new Set(seen.map((own) => own?.join()))).toEqual(new Set([hashes[0], hashes.join()]));
  const tinker = await trained("tinker");
  for (const name of ["reward/mean", "actor/grad_norm"]) {
    const values = (metrics: typeof local.metrics) => metrics.map((step) => step[name]!);
    for (const [index, value] of values(tinker.metrics).entries())
      expect(value).toBeCloseTo(values(local.metrics)[index]!, 4);
  }
});
