/** Curves over steps. */
import { signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { color, theme } from "../state/theme.ts";
import { short } from "./numbers.ts";

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
  curves: readonly Curve[];
  /** The selected step, which is marked by a line. */
  step: number | undefined;
  onPick?: (step: number) => void;
  /** Steps with a health message or a warning. */
  marks?: readonly { step: number; text: string }[];
}

/** The step under the pointer, in all charts. */
const hovered = signal<number | undefined>(undefined);

export const seriesColor = (index: number) => `--series-${(index % 8) + 1}`;

export function Chart(props: ChartProps) {
  const { title, unit, steps, curves } = props;
  const at = hovered.value ?? props.step;
  const index = at === undefined ? -1 : steps.indexOf(at);
  const values = curves.map(
    ({ values }) => (index < 0 ? values.findLast((value) => value !== null) : values[index]) ?? null,
  );
  return (
    <figure class="chart">
      <figcaption>
        <h3>{title}</h3>
        {unit && <span class="muted">{unit}</span>}
      </figcaption>
      <Canvas {...props} />
      <ul class="legend">
        {curves.map((curve, at) => (
          <li key={curve.label}>
            <i class="swatch" style={{ background: `var(${curve.color ?? seriesColor(at)})` }} />
            <span>{curve.label}</span> <b>{short(values[at])}</b>
          </li>
        ))}
      </ul>
    </figure>
  );
}

function Canvas(props: ChartProps) {
  const element = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot>(undefined);
  const latest = useRef(props);
  latest.current = props;
  const { title, steps, curves, step, marks } = props;
  const shape = `${theme.value} ${curves.map(({ label, color }) => `${label}${color}`).join("\n")}`;
  // A plot is created again only if the curves or colors change.
  useEffect(() => {
    const target = element.current!;
    const made = new uPlot(optionsFor(latest, target.clientWidth), dataOf(latest.current), target);
    plot.current = made;
    const observer = new ResizeObserver(() => made.setSize({ width: target.clientWidth, height: chartHeight }));
    observer.observe(target);
    return () => {
      observer.disconnect();
      made.destroy();
    };
  }, [shape]);
  useEffect(() => plot.current?.setData(dataOf(latest.current)), [steps, curves]);
  useEffect(() => plot.current?.redraw(false), [step, marks]);

  return <div class="canvas" ref={element} role="img" aria-label={describe(title, curves)} />;
}

const chartHeight = 168;

const dataOf = ({ steps, curves }: ChartProps) =>
  [[...steps], ...curves.map(({ values }) => [...values])] as unknown as uPlot.AlignedData;

/** A description of the curve for screen readers. */
function describe(title: string, curves: readonly Curve[]): string {
  const sentences = curves.map(({ label, values }) => {
    const known = values.filter((value): value is number => value !== null && Number.isFinite(value));
    if (known.length === 0) return `${label}: no values`;
    const [low, high] = known.reduce(
      ([low, high], value) => [Math.min(low, value), Math.max(high, value)],
      [known[0]!, known[0]!],
    );
    return `${label}: from ${short(known[0])} to ${short(known.at(-1))}, between ${short(low)} and ${short(high)}`;
  });
  return `${title}. ${sentences.join(". ")}`;
}

function optionsFor(latest: { current: ChartProps }, width: number): uPlot.Options {
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
    padding: [10, 8, 0, 0],
    legend: { show: false },
    scales: { x: { time: false }, y: { range: (_, low, high) => yRange(low, high) } },
    cursor: { sync: { key: "steps" }, points: { size: 6 }, drag: { x: false, y: false } },
    axes: [
      {
        ...axis,
        size: 24,
        grid: { show: false },
        incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000],
      },
      { ...axis, size: 46, values: (_, splits) => splits.map(short) },
    ],
    series: [
      {},
      ...latest.current.curves.map((curve, index) => ({
        label: curve.label,
        stroke: color(curve.color ?? seriesColor(index)),
        width: 1.6,
        points: { show: curve.values.filter((value) => value !== null).length < 30, size: 4 },
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
      ready: [
        (plot) =>
          plot.over.addEventListener("click", () => {
            const step = latest.current.steps[plot.cursor.idx ?? -1];
            if (step !== undefined) latest.current.onPick?.(step);
          }),
      ],
      draw: [(plot) => drawMarks(plot, latest.current, { mark, attention })],
    },
  };
}

/** A constant curve is drawn in the middle of the chart. */
function yRange(low: number | null, high: number | null): [number, number] {
  if (low === null || high === null) return [0, 1];
  if (low === high) return low === 0 ? [0, 1] : [low - Math.abs(low) / 2, high + Math.abs(high) / 2];
  const margin = (high - low) * 0.08;
  return [low >= 0 ? Math.max(0, low - margin) : low - margin, high <= 0 ? Math.min(0, high + margin) : high + margin];
}

/** Draws a line at the selected step, and a triangle at the bottom for steps with a message. */
function drawMarks(plot: uPlot, { step, marks = [] }: ChartProps, colors: { mark: string; attention: string }): void {
  const { ctx, bbox } = plot;
  const ratio = devicePixelRatio;
  ctx.save();
  if (step !== undefined) {
    const x = Math.round(plot.valToPos(step, "x", true));
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
    const x = plot.valToPos(step, "x", true);
    ctx.beginPath();
    ctx.moveTo(x - 4 * ratio, foot);
    ctx.lineTo(x + 4 * ratio, foot);
    ctx.lineTo(x, foot - 7 * ratio);
    ctx.fill();
  }
  ctx.restore();
}

/** A small curve in a table. */
export function Sparkline({ values, label }: { values: readonly (number | null)[]; label: string }) {
  const known = values.flatMap((value, index) => (value === null || !Number.isFinite(value) ? [] : [{ index, value }]));
  if (known.length < 2) return <span class="muted">–</span>;
  const low = Math.min(...known.map(({ value }) => value));
  const range = Math.max(...known.map(({ value }) => value)) - low || 1;
  const points = known.map(
    ({ index, value }) => `${(index / (values.length - 1)) * 96 + 2},${22 - ((value - low) / range) * 20}`,
  );
  return (
    <svg class="sparkline" viewBox="0 0 100 24" preserveAspectRatio="none" role="img" aria-label={label}>
      <polyline points={points.join(" ")} vector-effect="non-scaling-stroke" />
    </svg>
  );
}
