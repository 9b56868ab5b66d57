/** Curves of reward, reply length and entropy by step, as SVG. */
import type { Metrics } from "../events.ts";
import { formatNumber } from "../numbers.ts";
import { stepSummary } from "../step-summary.ts";
import { plotArea, svg, svgLabel, svgRule } from "./svg.ts";

interface Point {
  step: number;
  value: number;
}

interface Curve {
  name: string;
  title: string;
  read: (metrics: Metrics) => number | undefined;
}

const curves: readonly Curve[] = [
  { name: "reward", title: "mean reward", read: (metrics) => stepSummary(metrics).reward },
  { name: "length", title: "mean reply length, tokens", read: (metrics) => metrics["response_length/mean"] },
  { name: "entropy", title: "entropy, nats per token", read: (metrics) => stepSummary(metrics).entropy },
];

/** A longer run keeps every second step, then every fourth, ..., so memory is bounded. */
const maxPoints = 512;

/** Collects the steps of a run; `draw` returns the curves that have at least two finite values. */
export function collectCurves() {
  let kept: { step: number; metrics: Metrics }[] = [];
  let stride = 1;
  let seen = 0;
  return {
    add(step: number, metrics: Metrics): void {
      if (seen++ % stride !== 0) return;
      kept.push({ step, metrics: pick(metrics) });
      if (kept.length <= maxPoints) return;
      stride *= 2;
      kept = kept.filter((_, index) => index % 2 === 0);
    },
    draw(): { name: string; svg: string }[] {
      return curves.flatMap(({ name, title }) => {
        const points = kept.flatMap(({ step, metrics }): Point[] => {
          const value = metrics[name];
          return value === undefined ? [] : [{ step, value }];
        });
        return points.length > 1 ? [{ name, svg: curveSvg(title, points) }] : [];
      });
    },
  };
}

/** The value of each curve that has a finite one. */
function pick(metrics: Metrics): Metrics {
  const values = curves.map(({ name, read }) => [name, read(metrics)] as const);
  return Object.fromEntries(values.filter((entry): entry is [string, number] => Number.isFinite(entry[1])));
}

/** @param points at least two, in the order of steps */
export function curveSvg(title: string, points: readonly Point[]): string {
  const { left, right, top, bottom } = plotArea;
  const steps = points.map(({ step }) => step);
  const values = points.map(({ value }) => value);
  const [first, last] = [Math.min(...steps), Math.max(...steps)];
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const x = (step: number) => left + ((step - first) / Math.max(1, last - first)) * (right - left);
  const y = (value: number) =>
    high > low ? bottom - ((value - low) / (high - low)) * (bottom - top) : (bottom + top) / 2;
  const line = points.map(({ step, value }) => `${x(step).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
  const scale = high > low ? [low, (low + high) / 2, high] : [low];
  return svg(`${title}, by step`, [
    ...scale.flatMap((value) => [
      svgRule(y(value), "#ddd"),
      svgLabel(left - 6, y(value) + 4, formatNumber(value), "end"),
    ]),
    `<polyline points="${line}" fill="none" stroke="#4878a8" stroke-width="2"/>`,
    svgLabel(left, bottom + 18, String(first), "middle"),
    svgLabel(right, bottom + 18, String(last), "middle"),
  ]);
}
