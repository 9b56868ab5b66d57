import { describe, expect, test } from "vitest";
import { episodeMetrics } from "../trainer/record.ts";
import {
  type CompactFiltering,
  dropSmallGroups,
  gather,
  groupsWithSignal,
  groupTrajectories,
  maskedReasons,
  nothingGathered,
  solvedTasks,
} from "./groups.ts";
import { rewardGroup, sampleEpisode, sampleStep, sampleTrajectory } from "./sample-episodes.fixture.ts";
import { type TerminationReason, type TrajectoryGroup, terminationReasons } from "./types.ts";

function drawOf(...rewards: [string, number[]][]) {
  const episodes = rewards.flatMap(([task, own]) =>
    own.map((reward, index) => sampleEpisode(`${task}:${index}`, { trajectories: [sampleTrajectory({ reward })] })),
  );
  const grouped = groupTrajectories(episodes);
  const { groups, counts } = dropSmallGroups(grouped.groups);
  return { epoch: 0, episodes, groups, counts: { ...grouped.counts, ...counts } };
}

test("draws add up, and group sizes cover all groups", () => {
  const first = gather(nothingGathered, drawOf(["a", [1, 0]], ["b", [1, 1, 1]], ["lone", [1]]));
  const both = gather(first, drawOf(["a", [0, 0, 0, 0]]));
  expect(both.groups.map(({ id }) => id)).toEqual(["a:solver", "b:solver", "a:solver"]);
  expect(both).toMatchObject({ draws: 2, solved: { none: 1, partial: 1, all: 1 } });
  expect(both.episodes).toHaveLength(10);
  expect(both.counts).toMatchObject({
    "groups/num_trajs_before_filter": 10,
    "groups/num_groups": 3,
    "groups/avg_group_size": 3,
    "groups/max_group_size": 4,
    "batch/groups_dropped_insufficient_trajs": 1,
  });
  expect(gather(nothingGathered, drawOf())).toMatchObject({ groups: [], solved: { none: 0, partial: 0, all: 0 } });
});

test("the workflow's own verdict decides what is solved; without one, a reward of 1", () => {
  const group = rewardGroup("a:solver", [1, 0.9]);
  expect(solvedTasks([group])).toEqual({ none: 0, partial: 1, all: 0 });
  group.members[1]!.episode.correct = true;
  expect(solvedTasks([group])).toEqual({ none: 0, partial: 0, all: 1 });
  group.members[0]!.episode.correct = false;
  expect(solvedTasks([group, rewardGroup("b:solver", [0])])).toEqual({ none: 1, partial: 1, all: 0 });
});

test("uniform groups have no signal", () => {
  const groups = [
    rewardGroup("a:solver", [1, 1]),
    rewardGroup("b:solver", [1, 0]),
    rewardGroup("c:solver", [0.5, 0.5]),
  ];
  expect(groupsWithSignal(groups).map(({ id }) => id)).toEqual(["b:solver"]);
});

const rewardsOf = (groups: readonly TrajectoryGroup[]) =>
  Object.fromEntries(groups.map(({ id, members }) => [id, members.map(({ reward }) => reward)]));

test("trajectories that cannot be compared are dropped and counted by cause, and the known rewards are still compared", () => {
  const failure = { kind: "infrastructure", boundary: "engine", message: "the server is gone" } as const;
  const with_ = (reward: number | null, steps = [sampleStep([1], [2])]) => [sampleTrajectory({ reward, steps })];
  const { groups, counts } = groupTrajectories([
    sampleEpisode("a:0", { trajectories: with_(1) }),
    sampleEpisode("a:1", { trajectories: with_(null) }),
    sampleEpisode("a:2", { trajectories: with_(0) }),
    sampleEpisode("b:0", { trajectories: with_(null), failure }),
    sampleEpisode("b:1", { trajectories: with_(0.5, []) }),
    sampleEpisode("c:0", { trajectories: with_(Number.NaN) }),
    sampleEpisode("d:0", { trajectories: [] }),
    // The title of a conversation has no reward on purpose.
    sampleEpisode("e:0", { trajectories: [sampleTrajectory({ name: "side", reward: null })] }),
  ]);
  expect(rewardsOf(groups)).toEqual({ "a:solver": [1, 0] });
  expect(counts).toEqual({
    "groups/num_trajs_before_filter": 7,
    "groups/num_trajs_after_filter": 2,
    "groups/num_groups": 1,
    "groups/avg_group_size": 2,
    "groups/max_group_size": 2,
    "groups/min_group_size": 2,
    "groups/partly_dropped": 1,
    "groups/dropped_trajs/failed_episode": 1,
    "groups/dropped_trajs/no_steps": 1,
    "groups/dropped_trajs/side_call": 1,
    "groups/dropped_trajs/unknown_reward": 1,
    "groups/dropped_trajs/reward_not_finite": 1,
  });
});

test("episodes with a masked ending are dropped before anything is compared, and counted by ending", () => {
  const ended = (id: string, termination: TerminationReason) => sampleEpisode(id, { termination });
  const episodes = [ended("a:0", "env_done"), ended("a:1", "timeout"), ended("a:2", "error"), ended("b:0", "timeout")];
  const flags = Object.fromEntries(terminationReasons.map((reason) => [`mask_${reason}`, reason === "timeout"]));
  const filtering = { enable: true, ...flags } as CompactFiltering;
  const { groups, counts } = groupTrajectories(episodes, { masked: maskedReasons(filtering) });
  expect(rewardsOf(groups)).toEqual({ "a:solver": [0, 0] });
  expect(counts).toMatchObject({ "groups/dropped_trajs/masked_timeout": 2, "groups/num_trajs_before_filter": 4 });
  expect(maskedReasons({ ...filtering, enable: false }).size).toBe(0);
});

test("if no trajectory of a group has its own reward, the rewards of the last steps are compared", () => {
  const step = (reward: number | null) => sampleStep([1], [2], { reward });
  const episode = (id: string, reward: number | null, ...last: (number | null)[]) =>
    sampleEpisode(id, { trajectories: [sampleTrajectory({ reward, steps: last.map(step) })] });
  const { groups, counts } = groupTrajectories([
    ...[episode("a:0", null, 0.2, 0.7), episode("a:1", null, 0.4), episode("a:2", null, 0.9, null)],
    ...[episode("b:0", null, 0.7), episode("b:1", 1, 0.4)],
  ]);
  expect(rewardsOf(groups)).toEqual({ "a:solver": [0.7, 0.4], "b:solver": [1] });
  expect(counts).toMatchObject({ "groups/dropped_trajs/unknown_reward": 2, "groups/partly_dropped": 2 });
});

test("roles of an episode are grouped separately; no episodes, no groups", () => {
  const trajectories = [sampleTrajectory({ reward: 1 }), sampleTrajectory({ name: "judge", reward: 0.5 })];
  const episodes = ["a:0", "a:1"].map((id) => sampleEpisode(id, { trajectories }));
  expect(rewardsOf(groupTrajectories(episodes).groups)).toEqual({ "a:solver": [1, 1], "a:judge": [0.5, 0.5] });
  const nothing = groupTrajectories([]);
  expect(nothing.groups).toEqual([]);
  expect(Object.values(nothing.counts).every((count) => count === 0)).toBe(true);
});

test("small groups are dropped below the minimum only", () => {
  const groups = [rewardGroup("a:solver", [1]), rewardGroup("b:solver", [1, 0])];
  expect(rewardsOf(dropSmallGroups(groups).groups)).toEqual({ "b:solver": [1, 0] });
  expect(dropSmallGroups(groups, 1).counts["batch/groups_dropped_insufficient_trajs"]).toBe(0);
});

describe("episode metrics", () => {
  test("solved shares count only tasks whose outcome is known", () => {
    const outcomes: [string, boolean | null][] = [
      ["a:0", true],
      ["a:1", false],
      ["b:0", true],
      ["b:1", null],
      ["c:0", null],
    ];
    const metrics = episodeMetrics(outcomes.map(([id, correct]) => sampleEpisode(id, { correct })));
    expect(metrics).toMatchObject({
      "batch/num_tasks": 3,
      "batch/solve_none": 0,
      "batch/solve_all": 0.5,
      "batch/solve_partial": 0.5,
    });
    expect(episodeMetrics([sampleEpisode("a:0")])).not.toHaveProperty("batch/solve_all");
    expect(episodeMetrics([])).toEqual({ "batch/num_tasks": 0 });
  });

  test("endings, workflow metrics and lengths", () => {
    const steps = [sampleStep([1, 2, 3], [4], { stopReason: "length" }), sampleStep([1], [4, 5, 6])];
    const termination: TerminationReason = "timeout";
    const metrics = episodeMetrics([
      sampleEpisode("a:0", { trajectories: [sampleTrajectory({ steps })], metrics: { turns: 2 }, retries: 1 }),
      sampleEpisode("a:1", {
        trajectories: [],
        termination,
        failure: { kind: "agent", boundary: "timeout", message: "60 s" },
      }),
      sampleEpisode("a:2", { trajectories: [], metrics: { turns: 5, depth: 1 } }),
    ]);
    expect(metrics).toMatchObject({
      "batch/termination_reason/env_done": 2 / 3,
      "batch/termination_reason/timeout": 1 / 3,
      "batch/termination_reason/error": 0,
      "batch/failed_episodes": 1,
      "batch/retries": 1,
      "batch/turns": 3.5,
      "batch/depth": 1,
      "response_length/mean": 2,
      "response_length/max": 3,
      "response_length/min": 1,
      "response_length/clip_ratio": 0.5,
      "prompt_length/mean": 2,
    });
  });
});
