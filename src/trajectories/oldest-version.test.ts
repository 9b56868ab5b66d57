import { expect, it } from "vitest";
import { oldestVersion } from "./oldest-version.ts";
import { sampleEpisode, sampleStep, sampleTrajectory } from "./sample-episodes.fixture.ts";

const episode = (...steps: Parameters<typeof sampleStep>[2][]) =>
  sampleEpisode("a:0", {
    trajectories: steps.map((changes) => sampleTrajectory({ steps: [sampleStep([1], [2, 3], changes)] })),
  });

it("is the version of the oldest token that the policy sampled", () => {
  expect(oldestVersion([episode({ policyVersion: 4 }), episode({ policyVersion: 3 })])).toBe(3);
  expect(oldestVersion([episode({ policyVersion: 4, tokenVersions: Int32Array.of(2, 4) })])).toBe(2);
  expect(oldestVersion([episode({ policyVersion: -1 }, { policyVersion: 5 })])).toBe(5);
  expect(oldestVersion([episode({ policyVersion: -1 }), episode({})])).toBe(0);
  expect(oldestVersion([sampleEpisode("a:0", { trajectories: [] })])).toBeUndefined();
});
