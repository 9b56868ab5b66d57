/** How charts are drawn, from the address: `smooth=0.6&x=tokens&log=KL,Ratio&zoom=12-40`. */
import { parameter, setParameters } from "./address.ts";

export const axisNames = ["step", "tokens", "time"] as const;
export type AxisName = (typeof axisNames)[number];

/** The largest weight of the past in the moving average; with 0, curves are not smoothed. */
export const maxSmooth = 0.99;
export const smoothing = (): number => Math.max(0, Math.min(maxSmooth, Number(parameter("smooth")) || 0));

export const axis = (): AxisName => axisNames.find((name) => name === parameter("x")) ?? "step";

/** Titles of the charts with a logarithmic axis. */
const logarithmic = () => parameter("log").split(",").filter(Boolean);
export const isLogarithmic = (title: string): boolean => logarithmic().includes(title);
export function switchLogarithmic(title: string): void {
  const others = logarithmic().filter((one) => one !== title);
  setParameters({ log: [...others, ...(isLogarithmic(title) ? [] : [title])].join(",") });
}

export type Zoom = readonly [from: number, to: number];

/** The first and the last point that are drawn, as the chart's `steps` number them; undefined: all. */
export function zoom(): Zoom | undefined {
  const [, from, to] = /^(\d+(?:\.\d+)?)-(\d+(?:\.\d+)?)$/.exec(parameter("zoom")) ?? [];
  return from === undefined || Number(from) >= Number(to) ? undefined : [Number(from), Number(to)];
}
export const setZoom = (range: Zoom | undefined): void => setParameters({ zoom: range?.join("-") });
