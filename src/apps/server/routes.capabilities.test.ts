// Slow: whole runs.

import { join } from "node:path";
import { afterEach, describe, expect, test } from "vitest";
import {
  linearLoss,
  lora,
  madeUpSequences,
  madeUpTokens,
  madeUpWeights,
  numTrained,
} from "../../../conformance/tools.ts";
import { plainParams } from "../../backends/engine-parts.ts";
import { documentedCapabilities } from "../../backends/tinker/handshake.ts";
import { temporaryFolder } from "../../temporary-folder.fixture.ts";
import { type OpenedTinker, openTinker } from "./tinker-engine.fixture.ts";

const root = temporaryFolder("capabilities");
let opened: OpenedTinker;
let folders = 0;
const open = async (said: Pick<Parameters<typeof openTinker>[0], "plain" | "states">) => {
  opened = await openTinker({ stateFolder: join(root, String(folders++)), ...said });
  return opened.engine;
};
afterEach(() => opened.close());

/** Which of the additions to the protocol a client uses, by what it asks and what happens. */
async function used(): Promise<string[]> {
  const { engine, requests } = opened;
  const { sampleLogprobs, images } = engine.capabilities;
  const refused = await engine.createPolicy({ adapter: lora() }).then(
    () => false,
    (error: Error) => /Tinker's scale is 32/.test(error.message),
  );
  const tinkerScale = { kind: "lora", rank: 4, alpha: 32, targets: ["attn"], seed: 1 } as const;
  const { sampler, learner } = await engine.createPolicy({ adapter: tinkerScale });
  const sequences = madeUpSequences(engine);
  await learner.forwardBackward(sequences, linearLoss(sequences, madeUpWeights(numTrained(sequences), 1)));
  const kept = await learner.zeroGrad().then(
    () => false,
    (error: Error) => /cannot discard/.test(error.message),
  );
  const params = { ...plainParams, temperature: 0.5, maxTokens: 2, seed: 1 };
  const processed: unknown[] = [];
  for await (const sample of sampler.sample([{ prompt: madeUpTokens(engine, 1, 3), params }]))
    processed.push(sample.processed);
  expect(sampler.logprobs).toBe(sampleLogprobs);
  expect(processed).toEqual([sampleLogprobs === "raw" ? undefined : true]);
  expect(requests.includes("POST zero_grad")).toBe(!kept);
  expect(requests.includes("POST asample")).toBe(!requests.includes("POST asample_many"));
  const found = {
    adapterAlpha: !refused,
    exactLogprobs: sampleLogprobs === "raw",
    sampleMany: requests.includes("POST asample_many"),
    zeroGrad: !kept,
    imageTokens: images,
  };
  return Object.entries(found).flatMap(([name, isUsed]) => (isUsed ? name : []));
}

describe("the client uses what the service states", () => {
  test("an ordinary service states nothing: only the documented protocol", async () => {
    await open({ plain: true });
    expect(await used()).toEqual([]);
  });

  test("Hone's own service states everything", async () => {
    await open({});
    expect(await used()).toEqual(["adapterAlpha", "exactLogprobs", "sampleMany", "zeroGrad", "imageTokens"]);
  });

  test("Hone 0.1.0 describes only its models: everything except images", async () => {
    await open({ states: null });
    expect(await used()).toEqual(["adapterAlpha", "exactLogprobs", "sampleMany", "zeroGrad"]);
  });

  test.each(["adapterAlpha", "exactLogprobs", "sampleMany", "zeroGrad", "imageTokens"])("%s alone", async (name) => {
    await open({ states: { ...documentedCapabilities, [name]: true, ofALaterVersion: true } });
    expect(await used()).toEqual([name]);
  });

  test.each([
    ["lossMasks", 1],
    ["exactLogprobs", 2],
  ])("with %s, dro takes %i passes", async (name, passes) => {
    const engine = await open({ states: { adapterAlpha: true, [name]: true } });
    const sequences = madeUpSequences(engine);
    const linear = linearLoss(sequences, madeUpWeights(numTrained(sequences), 1));
    const zeros = new Float32Array(numTrained(sequences));
    const dro = {
      ...linear,
      hosted: () => ({
        tinker: { name: "dro", config: { beta: 0.1 }, needsMask: true as const },
        inputs: { logprobs: zeros, advantages: zeros },
      }),
    };
    await (await engine.createLearner({ adapter: lora() })).forwardBackward(sequences, dro);
    expect((await engine.stats())["tinker/named_losses"]).toBe(passes === 1 ? 1 : 0);
    expect(opened.requests.filter((request) => request === "POST forward_backward")).toHaveLength(passes);
  });
});

test("a statement that cannot be read is an error, not an ordinary service", async () => {
  await open({});
  await expect(open({ states: { exactLogprobs: "yes" } })).rejects.toThrow(
    /not a Tinker service that Hone can read: get_server_capabilities:.*exactLogprobs/s,
  );
});
