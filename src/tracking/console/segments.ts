/** A line made of segments. The least important ones are dropped where the line does not fit. */

export type Style = (text: string) => string;

export interface Segment {
  text: string;
  /** The segment with the highest number is dropped first; 0 is never dropped. */
  weight: number;
  /** Applied to what is left: escape codes do not count as width. */
  style?: Style | undefined;
  /** One space before it instead of two, because it explains the segment before it. */
  close?: boolean;
}

/** Joins the segments that fit into `width` characters. If those of weight 0 do not fit, the line is cut. */
export function fit(segments: readonly Segment[], width: number): string {
  const kept = segments.filter(({ text }) => text !== "");
  while (lineOf(kept).length > width) {
    const heaviest = Math.max(...kept.map(({ weight }) => weight));
    if (heaviest === 0) return lineOf(kept).slice(0, Math.max(0, width));
    const last = kept.findLastIndex(({ weight }) => weight === heaviest);
    kept.splice(last, 1);
  }
  return lineOf(kept.map((segment) => ({ ...segment, text: segment.style?.(segment.text) ?? segment.text })));
}

const lineOf = (segments: readonly Segment[]) =>
  segments.map(({ text, close }, index) => (index === 0 ? text : `${close ? " " : "  "}${text}`)).join("");
