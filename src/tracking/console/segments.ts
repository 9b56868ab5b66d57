/** A line made of segments. The least important ones are dropped where the line does not fit. */

import { cutText, textWidth } from "../../text-width.ts";

export type Style = (text: string) => string;

export interface Segment {
  text: string;
  /** The segment with the highest number is dropped first; 0 is never dropped. */
  weight: number;
  /** Applied to what is left: escape codes do not count as width. */
  style?: Style | undefined;
  /** One space before it instead of two, because it explains the segment before it. */
  close?: boolean;
  /** It is cut, instead of dropped, down to this many columns. */
  least?: number;
}

/** Joins the segments that fit into `width` columns. If those of weight 0 do not fit, the line is cut. */
export function fit(segments: readonly Segment[], width: number): string {
  const kept = segments.filter(({ text }) => text !== "");
  for (;;) {
    const excess = textWidth(lineOf(kept)) - width;
    if (excess <= 0) break;
    const heaviest = Math.max(...kept.map(({ weight }) => weight));
    if (heaviest === 0) return cutText(lineOf(kept), width);
    const last = kept.findLastIndex(({ weight }) => weight === heaviest);
    const { least, ...segment } = kept[last]!;
    const room = textWidth(segment.text) - excess;
    if (least !== undefined && room >= least) kept[last] = { ...segment, text: cutText(segment.text, room) };
    else kept.splice(last, 1);
  }
  return lineOf(kept.map((segment) => ({ ...segment, text: segment.style?.(segment.text) ?? segment.text })));
}

const lineOf = (segments: readonly Segment[]) =>
  segments.map(({ text, close }, index) => (index === 0 ? text : `${close ? " " : "  "}${text}`)).join("");
