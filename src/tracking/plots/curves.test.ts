import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, it } from "vitest";
import { temporaryFolder } from "../../temporary-folder.fixture.ts";
import { curveSvg, curvesSubscriber } from "./curves.ts";

const folder = temporaryFolder("curves");
const metrics = (step: number) => ({
  "reward/mean": step / 5000,
  "response_length/mean": 10 + (step % 3),
  "actor/entropy": step === 1 ? Number.NaN : 1 / step,
});

it("plots/ gets curves of reward, length and entropy, also of a resumed and a very long run", () => {
  const warnings: string[] = [];
  const subscriber = curvesSubscriber(folder, 1000, (text) => warnings.push(text));
  const history = [1, 2].map((step) => ({ step, metrics: metrics(step) }));
  subscriber.event({ type: "run-start", folder, totalSteps: 5000, step: 2, history, text: [] });
  for (let step = 3; step <= 5000; step++) {
    subscriber.event({ type: "step-end", step, total: 5000, epoch: 0, metrics: metrics(step), seconds: 1 });
  }
  expect(warnings).toEqual([]);
  expect(readdirSync(folder).sort()).toEqual(["entropy.svg", "length.svg", "reward.svg"]);
  const reward = readFileSync(join(folder, "reward.svg"), "utf8");
  const points = /polyline points="([^"]*)"/.exec(reward)![1]!.split(" ");
  expect(points.length).toBeGreaterThan(200);
  expect(points.length).toBeLessThanOrEqual(512);
  expect(points[0]).toMatch(/^56\.0,206\.0$/);
  expect(reward).toContain("mean reward, by step");
});

it("a constant curve is drawn in the middle, with one label", () => {
  const svg = curveSvg(
    "flat",
    [1, 2].map((step) => ({ step, value: 0.07 })),
  );
  expect(svg).toContain('points="56.0,118.0 628.0,118.0"');
  expect(svg.match(/0\.070/g)).toHaveLength(1);
});
