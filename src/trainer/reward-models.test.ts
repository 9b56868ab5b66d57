import { fileURLToPath } from "node:url";
import { expect, test } from "vitest";
import type { Engine, ModelInfo, Scorer } from "../backends/engine.ts";
import { EngineDied } from "../backends/engine-parts.ts";
import { RunError } from "../base/errors.ts";
import type { Episode, Step } from "../trajectories/types.ts";
import type { RoleWeights } from "./reward-models.ts";
import { openRewardModels, type RewardModel, rolesWithoutTrajectories, scoreEpisodes } from "./reward-models.ts";

const model = { maxLength: 20 } as ModelInfo;

/** Renders to the characters of the conversation. */
const chat: RewardModel["chat"] = {
  async renderLater(messages) {
    const text = messages.map(({ role, content }) => `${role[0]}${content}`).join(" ");
    return Int32Array.from(text, (letter) => letter.charCodeAt(0));
  },
};

const rewardModel = (name: string, score: Scorer["score"], weight: RoleWeights = 1): RewardModel => ({
  name,
  weight,
  scorer: { model, score },
  chat,
});

const lengths: Scorer["score"] = async (sequences) => Float32Array.from(sequences, ({ length }) => length);
const of =
  (...scores: number[]): Scorer["score"] =>
  async () =>
    Float32Array.from(scores);

function step(prompt: string, reply: string): Step {
  return { messages: [{ role: "user", content: prompt }], text: reply } as unknown as Step;
}

function episode(rewards: (number | null)[], steps: Step[] = [step("hi", "yes")]): Episode {
  const trajectories = rewards.map((reward) => ({ name: "agent", steps, reward }));
  return { taskId: "t", rollout: 0, trajectories, metrics: {} } as unknown as Episode;
}

async function score(episodes: Episode[], models: RewardModel[], ownWeight: RoleWeights = 1) {
  const problems: string[] = [];
  await scoreEpisodes(episodes, { models, ownWeight }, (name, _, problem) => problems.push(`${name}: ${problem}`));
  return {
    problems,
    rewards: episodes.map(({ trajectories }) => trajectories.map(({ reward }) => reward)),
    metrics: episodes.map(({ metrics }) => metrics),
  };
}

test("scores and own rewards are added by their weights, and reported by name", async () => {
  const models = [rewardModel("long", lengths, 0.5), rewardModel("fixed", of(1, 2, 3), -1)];
  const found = await score([episode([1]), episode([0, 4])], models, 10);
  // "uhi ayes" has 8 characters.
  expect(found.rewards).toEqual([[10 + 4 - 1], [4 - 2, 40 + 4 - 3]]);
  expect(found.metrics).toEqual([
    { "reward_model/own": 1, "reward_model/long": 8, "reward_model/fixed": 1, "reward_model/failed": 0 },
    { "reward_model/own": 2, "reward_model/long": 8, "reward_model/fixed": 2.5, "reward_model/failed": 0 },
  ]);
  expect(found.problems).toEqual([]);
});

test("the last model call is scored with its reply", async () => {
  const steps = [step("first", "a"), step("second", "b")];
  expect((await score([episode([0], steps)], [rewardModel("long", lengths)])).rewards).toEqual([["usecond ab".length]]);
});

test("an unknown own reward stays unknown unless its weight is 0", async () => {
  const models = [rewardModel("long", lengths)];
  expect((await score([episode([null])], models)).rewards).toEqual([[null]]);
  expect((await score([episode([null])], models, 0)).rewards).toEqual([[8]]);
  expect((await score([episode([3])], models, 0)).metrics[0]).toEqual({
    "reward_model/long": 8,
    "reward_model/failed": 0,
  });
});

test.each<[string, Episode, Scorer["score"], string]>([
  ["a score that is not finite", episode([1]), of(Number.NaN), "the score is NaN"],
  ["a failed request", episode([1]), () => Promise.reject(new RunError("out of memory")), "out of memory"],
  ["a missing score", episode([1]), of(), "the score is NaN"],
  ["a conversation that is too long", episode([1], [step("x".repeat(30), "y")]), lengths, "reads at most 20"],
  ["no model call", episode([1], []), lengths, "the model was not called"],
])("%s makes the reward unknown and is reported", async (_what, one, scores, problem) => {
  const found = await score([one], [rewardModel("judge", scores)]);
  expect(found.rewards).toEqual([[null]]);
  expect(found.problems).toEqual([expect.stringContaining(`judge: `)]);
  expect(found.problems[0]).toContain(problem);
  expect(found.metrics[0]).toMatchObject({ "reward_model/failed": 1 });
});

test("weights per role: a model scores only the roles that its weights name", async () => {
  const several = episode([1, 10]);
  several.trajectories[1]!.name = "judge";
  const models = [rewardModel("long", lengths, { agent: 0.5 }), rewardModel("fixed", of(3, 5))];
  const found = await score([several], models, { judge: 0 });
  expect(found.rewards).toEqual([[1 + 4 + 3, 5]]);
  expect(several.trajectories.map(({ scores }) => scores)).toEqual([{ own: 1, long: 8, fixed: 3 }, { fixed: 5 }]);
  expect(found.metrics[0]).toMatchObject({ "reward_model/long": 8, "reward_model/fixed": 4, "reward_model/own": 1 });
  expect(rolesWithoutTrajectories({ models, ownWeight: { judge: 0, jugde: 1 } }, [several])).toEqual(["jugde"]);
});

test("stored moments are applied with normalize, reported without, and required with it", async () => {
  const moments = { mean: 2, std: 4 };
  const normalized = { ...rewardModel("judge", of(6)), moments };
  expect((await score([episode([null])], [normalized], 0)).rewards).toEqual([[1]]);

  const directory = fileURLToPath(new URL("../chat/fixtures/chatml", import.meta.url));
  const open = async (normalize: boolean, scorer: Partial<Scorer>) => {
    const warnings: string[] = [];
    const engine = {
      capabilities: { engine: "toy" },
      createScorer: async () => ({ model: { ...model, directory }, score: of(1), ...scorer }),
    } as unknown as Engine;
    const options = { models: [{ model: "judge", name: "judge", weight: 1 }], ownWeight: 1, normalize };
    const { models } = await openRewardModels(engine, options, (text) => warnings.push(text));
    return { moments: models[0]?.moments, warnings };
  };
  expect(await open(true, { moments })).toEqual({ moments, warnings: [] });
  expect(await open(false, { moments })).toEqual({
    moments: undefined,
    warnings: [expect.stringContaining("mean 2 and standard deviation 4 of its scores, which are not applied")],
  });
  expect((await open(false, { moments: { mean: 0, std: 1 } })).warnings).toEqual([]);
  await expect(open(true, {})).rejects.toThrow("judge stores no mean and standard deviation of its scores");
});

test("failed rollouts are not scored", async () => {
  const failed = { ...episode([0.25]), failure: { kind: "agent", message: "x" } } as unknown as Episode;
  const found = await score([failed, episode([0])], [rewardModel("long", lengths)]);
  expect(found.rewards).toEqual([[0.25], [8]]);
  expect(found.metrics[0]).toEqual({});
});

test("a reward model's process that ends also ends the run", async () => {
  const models = [rewardModel("judge", () => Promise.reject(new EngineDied("the worker ended")))];
  await expect(score([episode([1])], models)).rejects.toThrow(EngineDied);
});
