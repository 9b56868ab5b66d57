/** Plots of a run as SVG and PNG: curves of reward, reply length and entropy by step, and histograms of reply lengths. */
import { join } from "node:path";
import { makeFolder, writeWhole } from "../base/files.ts";
import {
  type Distributions,
  formatNumber,
  type Metrics,
  type RunEvent,
  type Subscriber,
  stepSummary,
} from "./events.ts";

export interface PlotOptions {
  directory: string;
  /** Number of steps from one drawing of the curves to the next; they are also drawn at the end. */
  every: number;
  /** Undefined: only SVG files are written. */
  toPng: ToPng | undefined;
  /** Takes a `plot` event for each PNG file. */
  emit: (event: RunEvent) => void;
}

/**
 * Writes `reward`, `length` and `entropy`, the curves so far, and `lengths-step-000012`, how many replies of a step have how
 * many tokens, each as `.svg` and `.png`. Never throws: what cannot be written is a warning.
 */
export function plotsSubscriber({ directory, every, toPng, emit }: PlotOptions): Subscriber {
  const curves = collectCurves();
  let last = 0;
  let drawn = 0;

  function write(step: number, name: string, svg: string, file = name): void {
    try {
      makeFolder(directory);
      writeWhole(join(directory, `${file}.svg`), [svg]);
      if (toPng === undefined) return;
      const png = toPng(svg);
      const path = join(directory, `${file}.png`);
      writeWhole(path, [png.bytes]);
      emit({ type: "plot", step, name, file: path, ...png });
    } catch (error) {
      const reason = error instanceof Error ? error.message : error;
      emit({ type: "warning", text: `the plot ${file} could not be written: ${reason}` });
    }
  }

  function drawCurves(): void {
    if (drawn === last) return;
    drawn = last;
    for (const { name, svg } of curves.draw()) write(last, name, svg);
  }

  return {
    event(event) {
      if (event.type === "run-start") for (const { step, metrics } of event.history) curves.add(step, metrics);
      if (event.type === "distributions") {
        const { step, values, limit } = event;
        const file = `lengths-step-${String(step).padStart(6, "0")}`;
        write(step, "lengths", lengthsSvg(step, values.response_length, limit), file);
      }
      if (event.type === "step-end") {
        last = event.step;
        curves.add(event.step, event.metrics);
        if (event.step % every === 0) drawCurves();
      }
      if (event.type === "run-end") drawCurves();
    },
    async close() {},
  };
}

interface Png {
  bytes: Uint8Array;
  width: number;
  height: number;
}

export type ToPng = (svg: string) => Png;

/** Twice the size of the SVG, for screens with a high resolution. */
const zoom = 2;

/**
 * Opens the renderer, which uses the fonts of the machine.
 * @returns undefined, after a warning, if there is no renderer for this machine
 */
export async function openPng(warn: (text: string) => void): Promise<ToPng | undefined> {
  try {
    const { Resvg } = await import("@resvg/resvg-js");
    const parse = (svg: string) => new Resvg(svg, { fitTo: { mode: "zoom", value: zoom } });
    const text = parse('<svg xmlns="http://www.w3.org/2000/svg"><text y="9" font-family="sans-serif">0</text></svg>');
    if (text.getBBox() === undefined) {
      warn("plots as PNG files have no labels, because this machine has no fonts: install one, e.g. fonts-dejavu-core");
    }
    return (svg) => {
      const image = parse(svg).render();
      return { bytes: image.asPng(), width: image.width, height: image.height };
    };
  } catch (error) {
    const reason = error instanceof Error ? error.message : error;
    warn(`plots are written as SVG only: @resvg/resvg-js, which draws PNG files, could not be loaded: ${reason}`);
    return undefined;
  }
}

// Plots as SVG: curves of reward, reply length and entropy by step, and histograms of reply lengths.

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
function collectCurves() {
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

const maxBars = 32;

/**
 * The distribution of reply lengths in tokens.
 *
 * @param lengths tokens of each reply
 * @param limit the longest reply allowed; replies of that length are drawn in red
 */
export function lengthsSvg(step: number, lengths: readonly number[], limit: number): string {
  const { left, right, top, bottom } = plotArea;
  const longest = lengths.reduce((max, length) => Math.max(max, length), 1);
  const tokensPerBar = Math.max(1, Math.ceil(longest / maxBars));
  const bars = Array.from({ length: Math.ceil((longest + 1) / tokensPerBar) }, () => ({ all: 0, atLimit: 0 }));
  for (const length of lengths) {
    const bar = bars[Math.floor(length / tokensPerBar)];
    if (bar === undefined) continue;
    bar.all++;
    if (length >= limit) bar.atLimit++;
  }
  const highest = bars.reduce((max, { all }) => Math.max(max, all), 1);
  const width = (right - left) / bars.length;
  const draw = (index: number, count: number, color: string) => {
    const height = (count / highest) * (bottom - top);
    const position = `x="${(left + index * width).toFixed(1)}" y="${(bottom - height).toFixed(1)}"`;
    const size = `width="${Math.max(1, width - 1).toFixed(1)}" height="${height.toFixed(1)}"`;
    return `<rect ${position} ${size} fill="${color}"/>`;
  };
  const limited = bars.reduce((sum, { atLimit }) => sum + atLimit, 0);
  const cut = limited > 0 ? `, ${limited} at the limit of ${limit}` : "";
  return svg(`step ${step}: tokens of ${lengths.length} replies${cut}`, [
    ...bars.map(({ all }, index) => draw(index, all, "#4878a8")),
    ...bars.flatMap(({ atLimit }, index) => (atLimit > 0 ? [draw(index, atLimit, "#c0392b")] : [])),
    svgRule(bottom, "#333"),
    svgLabel(left, bottom + 16, "0", "middle"),
    svgLabel(right, bottom + 16, String(bars.length * tokensPerBar), "end"),
    svgLabel(left - 6, top + 10, String(highest), "end"),
  ]);
}

/** All plots have the same frame: size, background and axis labels. */
const plotSize = { width: 640, height: 240 };

/** The edges of the area inside the axes. */
const plotArea = { left: 56, right: plotSize.width - 12, top: 30, bottom: plotSize.height - 34 };

/** @param parts SVG elements */
function svg(title: string, parts: readonly string[]): string {
  const { width, height } = plotSize;
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" font-family="sans-serif" font-size="12" fill="#333">`,
    `<rect width="${width}" height="${height}" fill="white"/>`,
    svgLabel(plotArea.left, 18, title, "start"),
    ...parts,
    "</svg>\n",
  ].join("\n");
}

const svgLabel = (x: number, y: number, text: string, anchor: "start" | "middle" | "end") =>
  `<text x="${x}" y="${y.toFixed(1)}" text-anchor="${anchor}">${text}</text>`;

/** A horizontal line across the plot. */
const svgRule = (y: number, color: string) =>
  `<line x1="${plotArea.left}" y1="${y.toFixed(1)}" x2="${plotArea.right}" y2="${y.toFixed(1)}" stroke="${color}"/>`;

// The histogram that TensorBoard and Weights & Biases show.

export interface Histogram {
  min: number;
  max: number;
  count: number;
  sum: number;
  sumSquares: number;
  /** `[counts.length + 1]`, ascending. */
  edges: number[];
  counts: number[];
}

/**
 * Bins of equal width from the smallest to the largest value. NaN and infinities are left out.
 * @returns undefined if no value is finite
 */
export function histogram(values: Iterable<number>, bins = 64): Histogram | undefined {
  const finite = Float64Array.from(values).filter(Number.isFinite);
  let [min, max, sum, sumSquares] = [Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY, 0, 0];
  for (const value of finite) {
    min = Math.min(min, value);
    max = Math.max(max, value);
    sum += value;
    sumSquares += value * value;
  }
  if (finite.length === 0) return undefined;
  // Equal values are in the middle of bins around them.
  const [low, high] = min < max ? [min, max] : [min - 0.5, max + 0.5];
  const counts = new Array<number>(bins).fill(0);
  for (const value of finite) {
    const bin = Math.min(bins - 1, Math.floor(((value - low) / (high - low)) * bins));
    counts[bin] = counts[bin]! + 1;
  }
  const edges = Array.from({ length: bins + 1 }, (_, index) => low + ((high - low) * index) / bins);
  return { min, max, count: finite.length, sum, sumSquares, edges, counts };
}

/** The histogram of each kind of value that has one. */
export function histograms(values: Distributions): [name: string, histogram: Histogram][] {
  return Object.entries(values).flatMap(([name, list]: [string, readonly number[]]): [string, Histogram][] => {
    const found = histogram(list);
    return found === undefined ? [] : [[name, found]];
  });
}
