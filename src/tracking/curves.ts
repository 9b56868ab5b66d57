/** Curves of a run as pictures: reward, reply length and entropy by step, in plots/ of the run folder. */
import { join } from "node:path";
import { makeFolder } from "../make-folder.ts";
import { writeWhole } from "./durable-files.ts";
import type { Metrics, Subscriber } from "./events.ts";
import { formatFigure } from "./numbers.ts";
import { stepFigures } from "./step-figures.ts";

interface Point {
  step: number;
  value: number;
}

/** File name and title of each curve, and where its value is found. */
const curves: Readonly<Record<string, { title: string; read: (metrics: Metrics) => number | undefined }>> = {
  reward: { title: "mean reward", read: (metrics) => stepFigures(metrics).reward },
  length: { title: "mean reply length, tokens", read: (metrics) => metrics["response_length/mean"] },
  entropy: { title: "entropy, nats per token", read: (metrics) => stepFigures(metrics).entropy },
};

/** A curve of a long run keeps every second point, then every fourth, ...: the memory is bounded. */
const mostPoints = 512;

/** Draws `{directory}/reward.svg`, `length.svg` and `entropy.svg` every so many steps and at the end; 0 draws nothing. */
export function curvesSubscriber(directory: string, every: number, warn: (text: string) => void): Subscriber {
  const points = new Map(Object.keys(curves).map((name) => [name, [] as Point[]]));
  let stride = 1;
  let seen = 0;
  const add = (step: number, metrics: Metrics) => {
    if (seen++ % stride !== 0) return;
    for (const [name, all] of points) {
      const value = curves[name]!.read(metrics);
      if (value !== undefined && Number.isFinite(value)) all.push({ step, value });
    }
    if ([...points.values()].every((all) => all.length <= mostPoints)) return;
    stride *= 2;
    for (const [name, all] of points)
      points.set(
        name,
        all.filter((_, index) => index % 2 === 0),
      );
  };
  const draw = () => {
    try {
      makeFolder(directory);
      for (const [name, all] of points) {
        if (all.length > 1) writeWhole(join(directory, `${name}.svg`), [curveSvg(curves[name]!.title, all)]);
      }
    } catch (error) {
      warn(`the curves could not be drawn: ${error instanceof Error ? error.message : error}`);
    }
  };
  return {
    event(event) {
      if (every === 0) return;
      if (event.type === "run-start") for (const { step, metrics } of event.history) add(step, metrics);
      if (event.type === "step-end") add(event.step, event.metrics);
      if (event.type === "run-end" || (event.type === "step-end" && event.step % every === 0)) draw();
    },
    async close() {},
  };
}

const size = { width: 640, height: 240, left: 56, right: 12, top: 30, bottom: 34 };

/** @param points at least two, by step */
export function curveSvg(title: string, points: readonly Point[]): string {
  const steps = points.map(({ step }) => step);
  const values = points.map(({ value }) => value);
  const [first, last] = [steps[0]!, steps.at(-1)!];
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const [right, floor] = [size.width - size.right, size.height - size.bottom];
  const x = (step: number) => size.left + ((step - first) / Math.max(1, last - first)) * (right - size.left);
  const y = (value: number) =>
    high > low ? floor - ((value - low) / (high - low)) * (floor - size.top) : (floor + size.top) / 2;
  const line = points.map(({ step, value }) => `${x(step).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
  const label = (at: number, height: number, text: string, anchor: string) =>
    `<text x="${at}" y="${height.toFixed(1)}" text-anchor="${anchor}">${text}</text>`;
  const scale = high > low ? [low, (low + high) / 2, high] : [low];
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${size.width} ${size.height}" font-family="sans-serif" font-size="12" fill="#333">`,
    `<rect width="${size.width}" height="${size.height}" fill="white"/>`,
    label(size.left, 18, `${title}, by step`, "start"),
    ...scale.flatMap((value) => [
      `<line x1="${size.left}" y1="${y(value).toFixed(1)}" x2="${right}" y2="${y(value).toFixed(1)}" stroke="#ddd"/>`,
      label(size.left - 6, y(value) + 4, formatFigure(value), "end"),
    ]),
    `<polyline points="${line}" fill="none" stroke="#4878a8" stroke-width="2"/>`,
    label(size.left, floor + 18, String(first), "middle"),
    label(right, floor + 18, String(last), "end"),
    "</svg>\n",
  ].join("\n");
}
