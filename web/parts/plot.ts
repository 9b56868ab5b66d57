/** How a chart is drawn with uPlot. */
import { signal } from "@preact/signals";
import type uPlot from "uplot";
import { type AxisName, setZoom } from "../state/chart-settings.ts";
import { color } from "../state/theme.ts";
import { duration, short } from "./numbers.ts";
import { drawable, smooth } from "./series.ts";

export interface Curve {
  label: string;
  values: readonly (number | null)[];
  /** A variable of the style sheet; default: by its place. */
  color?: string;
}

export interface ChartProps {
  title: string;
  /** The unit, e.g. "nats per token". */
  unit?: string;
  steps: readonly number[];
  /** The axis on which the steps are drawn, and their places. Default: by number. */
  x?: { name: AxisName; at: readonly number[] };
  curves: readonly Curve[];
  /** The selected step, which is marked by a line. */
  step: number | undefined;
  onPick?: (step: number) => void;
  /** Steps with a health message or a warning. */
  marks?: readonly { step: number; text: string }[];
  /** Shows the last value before the pointer where a curve has none. */
  sparse?: boolean;
}

export interface CanvasProps extends ChartProps {
  logarithmic: boolean;
  /** The weight of the past in the moving average. */
  weight: number;
  zoom: readonly [from: number, to: number] | undefined;
}

/** The step under the pointer, in all charts. */
export const hovered = signal<number | undefined>(undefined);

export const seriesColor = (index: number) => `--series-${(index % 8) + 1}`;

export const chartHeight = 168;

const placesOf = ({ steps, x }: ChartProps) => x?.at ?? steps;

/** With smoothing, the values as they are come first, drawn faintly. */
export function dataOf(props: CanvasProps): uPlot.AlignedData {
  const { curves, weight, logarithmic } = props;
  const plain = curves.map(({ values }) => drawable(values, logarithmic));
  const averages = weight > 0 ? curves.map(({ values }) => drawable(smooth(values, weight), logarithmic)) : [];
  return [[...placesOf(props)], ...plain, ...averages] as unknown as uPlot.AlignedData;
}

export function optionsFor(latest: { current: CanvasProps }, width: number): uPlot.Options {
  const { curves, logarithmic, weight, x } = latest.current;
  const [text, line, mark, attention] = ["--muted", "--line", "--text", "--attention"].map(color) as [
    string,
    string,
    string,
    string,
  ];
  const font = "11px system-ui, sans-serif";
  const axis = { stroke: text, font, grid: { stroke: line, width: 1 }, ticks: { show: false } };
  return {
    width,
    height: chartHeight,
    padding: [10, 16, 0, 0],
    legend: { show: false },
    scales: {
      x: { time: false, range: (_, low, high) => xRange(latest.current, low, high) },
      y: logarithmic
        ? { distr: 3, range: (_, low, high) => logRange(low, high) }
        : { range: (_, low, high) => yRange(low, high) },
    },
    cursor: {
      sync: { key: "steps", filters: { sub: (type) => type === "mousemove" || type === "mouseleave" } },
      points: { size: 6 },
      drag: { x: true, y: false, setScale: false, dist: 6 },
    },
    axes: [
      {
        ...axis,
        size: 24,
        grid: { show: false },
        ...horizontal[x?.name ?? "step"],
      },
      // A logarithmic axis has lines without a number.
      {
        ...axis,
        size: 46,
        values: (_, splits) => splits.map((value) => ((value as number | null) === null ? "" : short(value))),
      },
    ],
    series: [
      {},
      ...[...curves, ...(weight > 0 ? curves : [])].map((curve, index) => ({
        label: curve.label,
        stroke: color(curve.color ?? seriesColor(index % curves.length)),
        alpha: weight > 0 && index < curves.length ? 0.28 : 1,
        width: 1.6,
        points: {
          show: index < curves.length && curve.values.filter((value) => value !== null).length < 30,
          size: 4,
        },
        spanGaps: true,
      })),
    ],
    hooks: {
      setCursor: [
        ({ cursor }) => {
          const step = cursor.idx === null || cursor.idx === undefined ? undefined : latest.current.steps[cursor.idx];
          if ((cursor.left ?? -1) >= 0 || hovered.peek() !== undefined)
            hovered.value = (cursor.left ?? -1) < 0 ? undefined : step;
        },
      ],
      setSelect: [
        (plot) => {
          const { left, width } = plot.select;
          if (width === 0) return;
          plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
          const [from, to] = [plot.posToVal(left, "x"), plot.posToVal(left + width, "x")];
          const within = latest.current.steps.filter((_, index) => {
            const at = placesOf(latest.current)[index]!;
            return at >= from && at <= to;
          });
          if (within.length > 1) setZoom([within[0]!, within.at(-1)!]);
        },
      ],
      ready: [
        (plot) => {
          let before: number | undefined;
          plot.over.addEventListener("click", ({ detail }) => {
            const { steps, step: shown, onPick } = latest.current;
            const step = steps[plot.cursor.idx ?? -1];
            if (detail > 1 || step === undefined) return;
            before = shown;
            onPick?.(step);
          });
          // The first of its clicks has chosen a step.
          plot.over.addEventListener("dblclick", () => {
            if (before !== undefined) latest.current.onPick?.(before);
            setZoom(undefined);
          });
        },
      ],
      draw: [(plot) => drawMarks(plot, latest.current, { mark, attention })],
    },
  };
}

const [minute, hour] = [60, 3600];
const horizontal: Readonly<Record<AxisName, Partial<uPlot.Axis>>> = {
  step: { incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000] },
  tokens: { values: (_, splits) => splits.map(short) },
  time: {
    incrs: [0.01, 0.1, 1, 5, 15, 30, minute, 5 * minute, 15 * minute, 30 * minute, hour, 3 * hour, 6 * hour, 24 * hour],
    values: (_, splits) => splits.map((seconds) => duration(seconds * 1000).replace(/ 0 (?:s|min)$/, "")),
  },
};

/** The zoomed part; a single point is drawn in the middle. */
function xRange(props: CanvasProps, low: number, high: number): [number, number] {
  const { steps, zoom } = props;
  const places = placesOf(props);
  if (zoom !== undefined) {
    const from = places[steps.findIndex((step) => step >= zoom[0])];
    const to = places[steps.findLastIndex((step) => step <= zoom[1])];
    if (from !== undefined && to !== undefined && from < to) return [from, to];
  }
  return low === high ? [low - 1, high + 1] : [low, high];
}

/** With a margin of a twentieth of the range, and at least from half to twice the value. */
function logRange(low: number | null, high: number | null): [number, number] {
  if (low === null || high === null) return [1, 10];
  const margin = Math.max((high / low) ** 0.05, Math.sqrt(4 / Math.min(4, high / low)));
  return [low / margin, high * margin];
}

/** A constant curve is drawn in the middle of the chart. */
function yRange(low: number | null, high: number | null): [number, number] {
  if (low === null || high === null) return [0, 1];
  if (low === high) return low === 0 ? [0, 1] : [low - Math.abs(low) / 2, high + Math.abs(high) / 2];
  const margin = (high - low) * 0.08;
  return [low >= 0 ? Math.max(0, low - margin) : low - margin, high <= 0 ? Math.min(0, high + margin) : high + margin];
}

/** Draws a line at the selected step, and a triangle at the bottom for steps with a message. */
function drawMarks(plot: uPlot, props: ChartProps, colors: { mark: string; attention: string }): void {
  const { ctx, bbox } = plot;
  const { steps, step, marks = [] } = props;
  const places = placesOf(props);
  const positionOf = (step: number) => {
    const place = places[steps.findIndex((one) => one >= step)] ?? Number.NaN;
    return Math.round(plot.valToPos(place, "x", true));
  };
  const ratio = devicePixelRatio;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  if (step !== undefined) {
    const x = positionOf(step);
    ctx.strokeStyle = colors.mark;
    ctx.globalAlpha = 0.55;
    ctx.lineWidth = ratio;
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
  }
  ctx.globalAlpha = 1;
  ctx.fillStyle = colors.attention;
  const foot = bbox.top + bbox.height;
  for (const { step } of marks) {
    const x = positionOf(step);
    ctx.beginPath();
    ctx.moveTo(x - 4 * ratio, foot);
    ctx.lineTo(x + 4 * ratio, foot);
    ctx.lineTo(x, foot - 7 * ratio);
    ctx.fill();
  }
  ctx.restore();
}
