/** Curves over steps, tokens or time. */
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { isLogarithmic, smoothing, switchLogarithmic, zoom } from "../state/chart-settings.ts";
import { theme } from "../state/theme.ts";
import { count, short } from "./numbers.ts";
import {
  type CanvasProps,
  type ChartProps,
  type Curve,
  chartHeight,
  dataOf,
  hovered,
  optionsFor,
  seriesColor,
} from "./plot.ts";

export function Chart(props: ChartProps) {
  const { title, unit, steps, curves, sparse = false } = props;
  const at = hovered.value ?? props.step;
  const index = at === undefined ? -1 : sparse ? steps.findLastIndex((step) => step <= at) : steps.indexOf(at);
  const values = curves.map(({ values }) => {
    if (index >= 0 && !sparse) return values[index] ?? null;
    return values.findLast((value, place) => value !== null && (index < 0 || place <= index)) ?? null;
  });
  const known = curves.flatMap(({ values }) => values.filter((value) => value !== null && Number.isFinite(value)));
  const hasPositive = known.some((value) => value! > 0);
  const logarithmic = hasPositive && isLogarithmic(title);
  const left = logarithmic ? known.filter((value) => value! <= 0).length : 0;
  return (
    <figure class="chart">
      <figcaption>
        <h3>{title}</h3>
        {unit && <span class="muted">{unit}</span>}
        {left > 0 && <span class="warning">{count(left, "value")} ≤ 0 not drawn</span>}
        <button
          type="button"
          class="link"
          aria-pressed={logarithmic}
          aria-label={`logarithmic axis of ${title}`}
          disabled={!hasPositive}
          title="logarithmic axis"
          onClick={() => switchLogarithmic(title)}
        >
          log
        </button>
      </figcaption>
      <Canvas {...props} logarithmic={logarithmic} weight={smoothing()} zoom={zoom()} />
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

function Canvas(props: CanvasProps) {
  const element = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot>(undefined);
  const latest = useRef(props);
  latest.current = props;
  const { title, steps, x, curves, step, marks, logarithmic, weight, zoom } = props;
  const labels = curves.map(({ label, color }) => `${label}${color}`);
  const shape = [theme.value, logarithmic, weight > 0, x?.name, ...labels].join("\n");
  // A plot is created again only if the curves, colors or axes change.
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
  useEffect(() => plot.current?.setData(dataOf(latest.current)), [steps, x, curves, weight, zoom?.join()]);
  useEffect(() => plot.current?.redraw(false), [step, marks]);

  return <div class="canvas" ref={element} role="img" aria-label={describe(title, curves)} />;
}

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
