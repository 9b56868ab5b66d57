import { expect, test } from "vitest";
import { dropSmallGroups, groupTrajectories } from "../../trajectories/group-trajectories.ts";
import { rewardGroup, sampleEpisode, sampleTrajectory } from "../../trajectories/sample-episodes.fixture.ts";
import { gather, groupsWithSignal, nothingGathered, solvedTasks } from "./group-episodes.ts";

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
