/** A tiny vision model through the local engine: samples and log-probabilities depend on the images. */
import { execFileSync } from "node:child_process";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { loadChat } from "../../chat/chat.ts";
import { renderWithImages } from "../../chat/images/prepare-images.ts";
import { png } from "../../images/pictures.fixture.ts";
import { preparePython } from "../../python/prepare.ts";
import { visionOf } from "../../rollout/vision.ts";
import { temporaryFolder } from "../../temporary-folder.fixture.ts";
import type { Sequence } from "../../trajectories/types.ts";
import type { Engine } from "../engine.ts";
import { openLocalEngine } from "./engine.ts";

const folder = temporaryFolder("images");
let engine: Engine;

beforeAll(async () => {
  const { python } = await preparePython();
  const env = { ...process.env, PYTHONPATH: "worker:worker/tests" };
  execFileSync(python, ["worker/tests/make_tiny_vision_model.py", folder], { env, stdio: "ignore" });
  engine = await openLocalEngine({ model: join(folder, "smolvlm"), device: "cpu", dtype: "float32" });
});
afterAll(() => engine?.close());

const params = {
  maxTokens: 6,
  temperature: 1,
  topP: 1,
  topK: -1,
  minP: 0,
  stopIds: [],
  stopStrings: [],
  ignoreEos: true,
  seed: 1,
};

test("what is sampled beside an image has the log-probabilities that training computes", async () => {
  const vision = visionOf(engine);
  const chat = loadChat(engine.model.directory);
  const ask = (color: readonly [number, number, number], last = "?") =>
    renderWithImages(chat, vision, [
      {
        role: "user",
        content: [
          { type: "image", image: png(20, 28, color) },
          { type: "text", text: `What${last}` },
        ],
      },
    ]);
  const prompts = [await ask([255, 0, 0]), await ask([0, 0, 255]), await ask([255, 0, 0], "!")];
  expect(prompts[0]!.tokens).toEqual(prompts[1]!.tokens);
  const requests = [
    ...prompts.map(({ tokens, media }) => ({ prompt: tokens, media, params })),
    { prompt: chat.render([{ role: "user", content: "No image." }]), params },
  ];
  const { sampler, learner } = await engine.createPolicy({ adapter: { kind: "full" } });
  const sequences: Sequence[] = [];
  const sampled: Float32Array[] = [];
  for await (const { request, tokens, logprobs } of sampler.sample(requests)) {
    const { prompt, ...rest } = requests[request]!;
    const trained = new Uint8Array(prompt.length + tokens.length - 1).fill(1, prompt.length - 1);
    sequences[request] = { tokens: Int32Array.from([...prompt, ...tokens]), trained };
    if ("media" in rest) sequences[request].media = rest.media;
    sampled[request] = logprobs;
  }
  const forward = async (given: readonly Sequence[]) => [...(await learner.forward(given, {})).logprobs];
  const computed = await forward(sequences);
  for (const [index, value] of sampled.flatMap((own) => [...own]).entries())
    expect(computed[index]).toBeCloseTo(value, 4);
  const [red, blue] = sequences as [Sequence, Sequence];
  const swapped = await forward([{ ...red, media: blue.media! }]);
  expect(Math.max(...swapped.map((value, index) => Math.abs(value - computed[index]!)))).toBeGreaterThan(1e-3);
});
