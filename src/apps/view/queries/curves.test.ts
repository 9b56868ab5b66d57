import { join } from "node:path";
import fc from "fast-check";
import { afterAll, beforeAll, expect, test } from "vitest";
import { temporaryFolder } from "../../../temporary-folder.fixture.ts";
import { generateRun } from "../generate-run.fixture.ts";
import { openRunIndex, type RunIndex } from "../run-index.ts";
import { binEdges, metricColumns, rewardHistogram, tokenScales } from "./curves.ts";
import { episodeList } from "./episodes.ts";

const root = temporaryFolder("distributions");
let run: RunIndex;
let many: RunIndex;

beforeAll(async () => {
  const open = async (name: string, rollouts: number) => {
    generateRun(join(root, name), { steps: 3, tasks: 4, rollouts });
    const index = openRunIndex(join(root, name), join(root, "cache"));
    while (!(await index.refresh(1000)));
    return index;
  };
  run = await open("few", 4);
  many = await open("many", 40);
});
afterAll(() => {
  run.close();
  many.close();
});

test.each(["", "role=judge", "step=2 and failed=false", "reward>0.3", 'text~"question 2"'])(
  "each bar of the rewards has as many episodes as its filter finds, with %j",
  (filter) => {
    for (const { database } of [run, many]) {
      const { bins, unknown } = rewardHistogram(database, { filter });
      const found = (clause: string) =>
        episodeList(database, { filter: filter === "" ? clause : `${clause} and (${filter})` }).total;
      expect(bins.length).toBeGreaterThan(0);
      expect(bins.length).toBeLessThanOrEqual(12);
      for (const [index, { low, high, count }] of bins.entries()) {
        const upper = index === bins.length - 1 ? "<=" : "<";
        expect(found(low === high ? `reward=${low}` : `reward>=${low} and reward${upper}${high}`)).toBe(count);
      }
      expect(found("reward=unknown")).toBe(unknown);
    }
  },
);

test("many rewards are counted in ranges that contain each of them", () => {
  const { bins, unknown } = rewardHistogram(many.database, { filter: "role=solver" });
  expect(bins).toHaveLength(12);
  expect(bins.reduce((sum, { count }) => sum + count, unknown)).toBe(3 * 4 * 40);
  expect(bins.slice(1).map(({ low }) => low)).toEqual(bins.slice(0, -1).map(({ high }) => high));
});

test("the ranges of rewards never overlap or vanish", () => {
  const number = fc.double({ min: -1e6, max: 1e6, noNaN: true });
  fc.assert(
    fc.property(number, fc.double({ min: 1e-6, max: 1e6, noNaN: true }), (low, width) => {
      const edges = binEdges(low, low + width);
      expect(edges.slice(1).every((edge, index) => edge > edges[index]!)).toBe(true);
      expect(edges[0]).toBeLessThanOrEqual(low);
      expect(edges.at(-1)).toBeGreaterThanOrEqual(low + width);
    }),
  );
  expect(binEdges(0, 1)).toEqual([0, 0.083, 0.167, 0.25, 0.333, 0.417, 0.5, 0.583, 0.667, 0.75, 0.833, 0.917, 1]);
});

test("columns of metrics have the newest value of each run, and the names of all", () => {
  const runs = new Map([
    ["few", run.database],
    ["many", many.database],
  ]);
  expect(metricColumns(runs, ["reward/mean", "actor/grad_norm", "unheard/of"])).toEqual({
    names: ["actor/grad_norm", "reward/mean", "time/rollout", "time/step"],
    values: Object.fromEntries(
      [...runs.keys()].map((name) => [name, { "reward/mean": 0.03, "actor/grad_norm": "NaN" }]),
    ),
  });
});

test("the scale of colors is that of the run, not of one episode", () => {
  const { episodes, ranges } = tokenScales(run.database, run.folder);
  expect(episodes).toBe(48);
  expect(ranges.version).toEqual([0, 2]);
  expect(ranges.advantage).toEqual([-0.375, 0.375]);
  expect(tokenScales(many.database, many.folder).episodes).toBeLessThanOrEqual(64);
});
