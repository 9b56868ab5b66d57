/** Servers that get their weights from elsewhere: running requests end, wait, and continue with the new weights. */
import { afterEach, beforeEach, expect, test } from "vitest";
import { madeUpSequences, madeUpWeights, numTrained, params, sampleOne, step } from "../../../conformance/tools.ts";
import { tabularEngine } from "../../testing/tabular-engine.ts";
import type { Engine, Policy, Published, Sample, Sampler } from "../engine.ts";
import { servedEngine } from "./fake-policy-server.fixture.ts";
import { fakeServer } from "./fake-server.fixture.ts";

const tabular = tabularEngine({ alphabet: "abcdefghijklmnopqrstuvwxyz" });
const prompt = Int32Array.of(3, 4, 5);

let server: Awaited<ReturnType<typeof fakeServer>>;
let engine: Engine;
/** What the server samples from, and what its weights are to become. */
let own: Policy;
let latest: Published | undefined;
/** Replies stop after three tokens until they are ended. */
let holds = false;
let begun: () => void;
let ends: (() => void)[];
let calls: string[];

beforeEach(async () => {
  [latest, holds, ends, calls] = [undefined, false, [], []];
  const behind = (): Sampler => ({
    ...own.sampler,
    async *sample([request], options) {
      if (!holds) {
        yield* own.sampler.sample([request!], options);
        return;
      }
      const three = { ...request!, params: { ...request!.params, maxTokens: 3 } };
      for await (const sample of own.sampler.sample([three], options)) {
        await new Promise<void>((resolve) => {
          ends.push(resolve);
          begun();
        });
        yield { ...sample, stopReason: "aborted" };
      }
    },
  });
  const answers: Record<string, object> = {
    "/v1/models": { data: [{ id: "base", max_model_len: 512 }] },
    "/tokenize": { tokens: [1, 2] },
  };
  const control = async (path: string) => (answers[path] ? { text: JSON.stringify(answers[path]) } : undefined);
  server = await fakeServer("vllm", behind, control, { generates: true });
  const source = {
    name: "somebody",
    async endRequests() {
      calls.push("end");
      // The first call comes before the request has arrived.
      if (calls.filter((call) => call === "end").length > 1) for (const end of ends.splice(0)) end();
    },
    sleep: async () => void calls.push("sleep"),
    async update(version: number) {
      calls.push(`update ${version}`);
      holds = false;
      if (latest) await own.sampler.load(latest);
    },
  };
  const learning = {
    ...tabular,
    async createPolicy(spec: Parameters<Engine["createPolicy"]>[0]) {
      own = await tabular.createPolicy(spec);
      const publish = async () => {
        latest = await own.learner.publish();
        return latest;
      };
      return { learner: { ...own.learner, publish } };
    },
  };
  engine = servedEngine(learning, { urls: [server.url], folder: "unused", encode: () => [1, 2], source });
});
afterEach(async () => {
  await engine.close();
  server.close();
});

async function trainStep({ learner, sampler }: Policy): Promise<void> {
  const sequences = madeUpSequences(engine);
  await step(learner, sequences, madeUpWeights(numTrained(sequences), 1));
  await sampler.load(await learner.publish());
}

test("a reply continues with weights that arrive in its middle, each token with its version", async () => {
  const policy = await engine.createPolicy({ adapter: { kind: "full" } });
  expect(policy.sampler.servers).toMatch(/, which gets weights by somebody$/);
  holds = true;
  const isBegun = new Promise<void>((resolve) => {
    begun = resolve;
  });
  const request = { prompt, params: params({ maxTokens: 8, ignoreEos: true }) };
  const waiting = policy.sampler.sample([request])[Symbol.asyncIterator]().next();
  await isBegun;
  await trainStep(policy);
  const sample: Sample = (await waiting).value!;
  expect([...sample.tokenVersions!]).toEqual([0, 0, 0, 1, 1, 1, 1, 1]);
  expect(calls).toEqual(["update 0", "end", "end", "update 1"]);
});

test("without running requests the servers sleep and are updated at once", async () => {
  const policy = await engine.createPolicy({ adapter: { kind: "full" } });
  await policy.sampler.sleep?.();
  await trainStep(policy);
  expect((await sampleOne(policy, { prompt, params: params({ maxTokens: 4 }) })).policyVersion).toBe(1);
  expect(calls).toEqual(["update 0", "sleep", "update 1"]);
  expect(await engine.stats()).toMatchObject({ "rollout/servers": 1, "rollout/sync_probe_difference": 0 });
});

test("servers that did not get the weights twice stop the run", async () => {
  const policy = await engine.createPolicy({ adapter: { kind: "full" } });
  own.sampler.load = async () => {};
  await expect(trainStep(policy)).rejects.toMatchObject({ code: "sampler_mismatch" });
  expect(calls).toEqual(["update 0", "update 1", "update 1"]);
});

test("servers that missed an update get the weights again", async () => {
  const policy = await engine.createPolicy({ adapter: { kind: "full" } });
  const { load } = own.sampler;
  own.sampler.load = async () => {
    own.sampler.load = load;
  };
  await trainStep(policy);
  expect(calls).toEqual(["update 0", "update 1", "update 1"]);
  expect(await engine.stats()).toMatchObject({ "rollout/sync_repeated": 1, "rollout/sync_probe_difference": 0 });
});
