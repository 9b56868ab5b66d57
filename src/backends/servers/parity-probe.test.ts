import { describe, expect, test } from "vitest";
import { uniforms } from "../../base/values.ts";
import type { Learner, Sampler } from "../engine.ts";
import { changeEvidence, parityProbe } from "./parity-probe.ts";

/** Log-probabilities that depend on the version, rounded in a way that differs between sides and versions. */
function side(seed: number, rounding: number, change: number) {
  return (version: number, tokens: Int32Array): Float32Array => {
    const [weights, rounded] = [uniforms(7), uniforms(1 + seed * 1000 + version)];
    return Float32Array.from({ length: tokens.length - 1 }, (_, index) => {
      const direction = weights() - 0.5;
      return -2 - (tokens[index]! % 3) / 4 + version * change * direction + (rounded() - 0.5) * rounding;
    });
  };
}

const follows = (version: number) => version;
const isStale = () => 0;

/**
 * @param applied the version that the server has
 * @param unknown number of tokens whose log-probabilities the server does not know
 * @param own the version that the trainer computes with
 */
async function checkVersions(
  versions: number,
  applied: (version: number) => number,
  rounding: number,
  change: number,
  unknown = 0,
  own = follows,
) {
  let version = 0;
  const [trainer, server] = [side(1, rounding, change), side(2, rounding, change)];
  const forward: Learner["forward"] = async ([sequence]) => ({
    logprobs: trainer(own(version), sequence!.tokens),
    entropy: new Float32Array(),
    offsets: Int32Array.of(0, sequence!.tokens.length - 1),
  });
  const sampler: Pick<Sampler, "logprobs" | "sample"> = {
    logprobs: "raw",
    async *sample([request]) {
      const { prompt, params } = request!;
      const tokens = Int32Array.from({ length: params.maxTokens }, (_, index) => (index * 5 + params.seed) % 11);
      const logprobs = server(applied(version), Int32Array.of(...prompt, ...tokens));
      const promptLogprobs = Float32Array.of(0, ...logprobs.slice(0, prompt.length - 1));
      promptLogprobs.fill(Number.NaN, 10, 10 + unknown);
      const reply = logprobs.slice(prompt.length - 1);
      yield { request: 0, tokens, logprobs: reply, stopReason: "length", policyVersion: version, promptLogprobs };
    },
  };
  const probe = parityProbe({ forward }, "URL", { prompt: Int32Array.from({ length: 250 }, (_, at) => at % 7) });
  for (; version <= versions; version++) await probe.check(sampler as Sampler, version);
}

test.each([
  ["rounding hides the change", follows, 0.02, 1e-3],
  ["rounding hides the change, and the update is not applied", isStale, 0.02, 1e-3],
  ["the change is large", follows, 0.02, 0.3],
  ["nothing is rounded", follows, 0, 1e-3],
])("%s: no error", async (_, applied, rounding, change) => {
  await checkVersions(1, applied, rounding, change);
});

test.each([
  ["with the first update, if it is large", 1, 0.02, 0.1],
  ["with the first update, if nothing is rounded", 1, 0, 1e-3],
  ["after some updates, if each is small", 60, 0.02, 2e-3],
])("an update that is not applied is found %s", async (_, versions, rounding, change) => {
  for (const unknown of [0, 100])
    await expect(checkVersions(versions, isStale, rounding, change, unknown)).rejects.toThrow(
      /does not sample with it/,
    );
});

test("a difference after an update is explained by the changes of both sides", async () => {
  await expect(checkVersions(1, isStale, 0, 0.3)).rejects.toThrow(
    /differ from the trainer's by 0\.0\d+ on average \(version 1, at most 0\.01\); scored as a prompt, the same tokens differ by 0\.0\d+; on a fixed sequence, the server's log-probabilities changed by 0\.0, the trainer's by 0\.0\d+$/,
  );
});

test("a trainer that does not compute with its own update is named", async () => {
  await expect(checkVersions(1, follows, 0, 0.3, 0, isStale)).rejects.toThrow(
    /^the trainer does not compute with its own last update: .* changed by 0\.0\d+, the trainer's by 0\.0$/,
  );
});

const count = 200;
/** Independent values with this standard deviation. */
function noise(seed: number, deviation: number): Float32Array {
  const random = uniforms(seed);
  return Float32Array.from({ length: count }, () => (random() - 0.5) * Math.sqrt(12) * deviation);
}
const plus = (left: Float32Array, right: Float32Array) => left.map((value, index) => value + right[index]!);
const moved = noise(1, 0.05);

describe("changeEvidence", () => {
  test.each([
    ["nothing, exactly", () => new Float32Array(count), Number.NEGATIVE_INFINITY],
    ["the learner's, exactly", () => moved, Number.POSITIVE_INFINITY],
  ])("is certain where the server's change is %s", (_, server, evidence) => {
    expect(changeEvidence(moved, server(), 1e-5)).toBe(evidence);
  });

  test.each([0.01, 0.02, 0.04])("tells a change from none under noise of %f", (deviation) => {
    for (let seed = 2; seed < 40; seed++) {
      const other = noise(seed, deviation);
      expect(changeEvidence(moved, plus(moved, other), 1e-5)).toBeGreaterThan(6);
      expect(changeEvidence(moved, other, 1e-5)).toBeLessThan(-6);
    }
  });

  test("is weak where the noise hides the change", () => {
    for (let seed = 2; seed < 40; seed++) {
      const other = noise(seed, 0.5);
      expect(Math.abs(changeEvidence(moved, plus(moved, other), 1e-5))).toBeLessThan(6);
      expect(Math.abs(changeEvidence(moved, other, 1e-5))).toBeLessThan(6);
    }
  });

  test("is 0 if the learner's change is too small, also if there is none", () => {
    expect(changeEvidence(moved, new Float32Array(count), 0.06)).toBe(0);
    expect(changeEvidence(new Float32Array(count), moved, 0)).toBe(0);
  });
});
