import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import fc from "fast-check";
import { expect, it } from "vitest";
import { temporaryFolder } from "../temporary-folder.fixture.ts";
import type { RunEvent } from "./events.ts";
import { curveSvg, histogram, histograms, lengthsSvg, openPng, plotsSubscriber, type ToPng } from "./plots.ts";

const folder = temporaryFolder("curves");
const metrics = (step: number) => ({
  "reward/mean": step / 5000,
  "response_length/mean": 10 + (step % 3),
  "actor/entropy": step === 1 ? Number.NaN : 1 / step,
});

it("plots/ gets curves of reward, length and entropy, also of a resumed and a very long run", () => {
  const subscriber = plotsSubscriber({
    directory: folder,
    every: 1000,
    toPng: undefined,
    emit: () => expect.unreachable(),
  });
  const history = [1, 2].map((step) => ({ step, metrics: metrics(step) }));
  subscriber.event({ type: "run-start", folder, totalSteps: 5000, step: 2, history, text: [] });
  for (let step = 3; step <= 5000; step++) {
    subscriber.event({ type: "step-end", step, total: 5000, epoch: 0, metrics: metrics(step), seconds: 1 });
  }
  expect(readdirSync(folder).sort()).toEqual(["entropy.svg", "length.svg", "reward.svg"]);
  const reward = readFileSync(join(folder, "reward.svg"), "utf8");
  const points = /polyline points="([^"]*)"/.exec(reward)![1]!.split(" ");
  expect(points.length).toBeGreaterThan(200);
  expect(points.length).toBeLessThanOrEqual(512);
  expect(points[0]).toMatch(/^56\.0,206\.0$/);
  expect(reward).toContain("mean reward, by step");
});

const stepEnd = (step: number) =>
  ({ type: "step-end", step, total: 4, epoch: 0, metrics: metrics(step), seconds: 1 }) as const;
const lengths: RunEvent = {
  ...{ type: "distributions", step: 2, limit: 4 },
  values: { response_length: [1, 4], reward: [], entropy: [] },
};

it("each plot is also a PNG file, which is shown to the loggers once", async () => {
  const directory = join(folder, "png");
  const shown: RunEvent[] = [];
  const emit = (event: RunEvent) => void shown.push(event);
  const toPng = await openPng(expect.unreachable);
  const subscriber = plotsSubscriber({ directory, every: 2, toPng, emit });
  for (const event of [stepEnd(1), lengths, stepEnd(2)]) subscriber.event(event);
  subscriber.event({ type: "run-end", reason: "done" });
  const names = ["lengths-step-000002", "reward", "length"];
  expect(readdirSync(directory).sort()).toEqual(names.flatMap((name) => [`${name}.png`, `${name}.svg`]).sort());
  expect(shown).toEqual(
    [...names.entries()].map(([index, name]) => {
      const file = join(directory, `${name}.png`);
      const bytes = readFileSync(file);
      // The PNG signature, and the size in the IHDR chunk.
      expect(bytes.toString("latin1", 0, 8)).toBe("\x89PNG\r\n\x1a\n");
      expect([bytes.readUInt32BE(16), bytes.readUInt32BE(20)]).toEqual([1280, 480]);
      return {
        type: "plot",
        step: 2,
        name: ["lengths", "reward", "length"][index],
        file,
        bytes,
        width: 1280,
        height: 480,
      };
    }),
  );
});

it.each([
  ["a renderer that fails", join(folder, "failing"), "the plot lengths-step-000002 could not be written: no glyphs"],
  [
    "a folder that is a file",
    import.meta.filename,
    /the plot lengths-step-000002 could not be written: .*plots\.test\.ts/,
  ],
])("%s is a warning", (_, directory, text) => {
  const emitted: RunEvent[] = [];
  const toPng: ToPng = () => {
    throw new Error("no glyphs");
  };
  plotsSubscriber({ directory, every: 1, toPng, emit: (event) => void emitted.push(event) }).event(lengths);
  expect(emitted).toEqual([{ type: "warning", text: expect.stringMatching(text) }]);
});

it("a constant curve is drawn in the middle, with one label", () => {
  const svg = curveSvg(
    "flat",
    [1, 2].map((step) => ({ step, value: 0.07 })),
  );
  expect(svg).toContain('points="56.0,118.0 628.0,118.0"');
  expect(svg.match(/0\.070/g)).toHaveLength(1);
});

const heights = (svg: string, color: string) =>
  [...svg.matchAll(new RegExp(`height="([\\d.]+)" fill="${color}"`, "g"))].map(([, height]) => Number(height));

it("draws the distribution of reply lengths, with those at the limit in red", () => {
  const svg = lengthsSvg(7, [1, 1, 2, 4, 4, 4, 4], 4);
  expect(svg).toContain("step 7: tokens of 7 replies, 4 at the limit of 4");
  const [zero, one, two, three, four] = heights(svg, "#4878a8");
  expect([zero, three]).toEqual([0, 0]);
  expect(one! / four!).toBeCloseTo(2 / 4);
  expect(two! / four!).toBeCloseTo(1 / 4);
  expect(heights(svg, "#c0392b")).toEqual([four]);
});

it("draws long replies in few bars, and an empty plot without replies", () => {
  expect(heights(lengthsSvg(1, [0, 4000, 8192], 10_000), "#4878a8").length).toBeLessThanOrEqual(33);
  expect(lengthsSvg(1, [], 10)).toContain("tokens of 0 replies");
});

it.each([
  ["nothing", [], undefined],
  ["no finite value", [Number.NaN, Number.POSITIVE_INFINITY], undefined],
  [
    "equal values",
    [3, 3],
    { min: 3, max: 3, count: 2, sum: 6, sumSquares: 18, edges: [2.5, 2.75, 3, 3.25, 3.5], counts: [0, 0, 2, 0] },
  ],
  [
    "a value on an edge, the largest, and NaN",
    [0, 1, 4, Number.NaN],
    { min: 0, max: 4, count: 3, sum: 5, sumSquares: 17, edges: [0, 1, 2, 3, 4], counts: [1, 1, 0, 1] },
  ],
])("%s", (_, values, expected) => expect(histogram(values, 4)).toEqual(expected));

it("every finite value is in one bin", () => {
  fc.assert(
    fc.property(fc.array(fc.double({ min: -1e9, max: 1e9, noNaN: true }), { minLength: 1 }), (values) => {
      const { counts, edges } = histogram(values)!;
      expect(counts.reduce((sum, count) => sum + count)).toBe(values.length);
      expect(edges).toHaveLength(counts.length + 1);
    }),
  );
});

it("kinds without values have no histogram", () => {
  const found = histograms({ response_length: [1], reward: [], entropy: [Number.NaN] });
  expect(found.map(([name]) => name)).toEqual(["response_length"]);
});
