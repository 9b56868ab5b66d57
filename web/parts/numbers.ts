/** Formats numbers, times and texts. */
import type { JsonNumber } from "../../src/apps/view/queries/parameters.ts";

/** The number, or null if it is unknown. JSON has no NaN and no infinities. */
export const toNumber = (value: JsonNumber | null | undefined): number | null =>
  value === null || value === undefined ? null : Number(value);

/** At most four significant digits: 0.0312, 12.5, 3,500, 1.2e-7. */
export function short(value: JsonNumber | null | undefined): string {
  const number = toNumber(value);
  if (number === null) return "–";
  if (!Number.isFinite(number)) return Number.isNaN(number) ? "NaN" : number > 0 ? "∞" : "−∞";
  const size = Math.abs(number);
  if (size >= 1e6)
    return `${Number((number / 10 ** (size >= 1e9 ? 9 : 6)).toPrecision(3))}${size >= 1e9 ? "G" : "M"}`.replace(
      "-",
      "−",
    );
  if (size !== 0 && size < 1e-3) return number.toExponential(1).replace(".0", "").replaceAll("-", "−");
  const text = size >= 1000 ? Math.round(number).toLocaleString("en") : String(Number(number.toPrecision(3)));
  return text.replace("-", "−");
}

/** With its sign: +0.3, −1, 0. */
export function signed(value: JsonNumber | null | undefined): string {
  const number = toNumber(value);
  return number !== null && number > 0 ? `+${short(number)}` : short(number);
}

export const percent = (share: number): string => (share > 0 && share < 0.001 ? "<0.1%" : `${short(share * 100)}%`);

export const count = (number: number, noun: string): string =>
  `${number.toLocaleString("en")} ${number === 1 ? noun : `${noun}s`}`;

/** 340 ms, 2.4 s, 3 min 20 s, 2 h 5 min. */
export function duration(milliseconds: number): string {
  if (milliseconds < 1000) return `${Math.round(milliseconds)} ms`;
  const seconds = milliseconds / 1000;
  if (seconds < 60) return `${Number(seconds.toPrecision(2))} s`;
  const minutes = Math.floor(seconds / 60);
  return minutes < 60
    ? `${minutes} min ${Math.round(seconds % 60)} s`
    : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export function ago(time: number | null, now = Date.now()): string {
  if (time === null) return "–";
  const passed = now - time;
  const days = Math.floor(passed / 86_400_000);
  if (days >= 2) return `${days.toLocaleString("en")} days ago`;
  return passed < 60_000 ? "just now" : `${duration(Math.floor(passed / 60_000) * 60_000).replace(" 0 s", "")} ago`;
}

export const atTime = (time: number | null): string => (time === null ? "unknown" : new Date(time).toLocaleString());
