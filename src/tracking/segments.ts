/** A line made of parts that differ in weight: where the width does not hold all, the heaviest go first. */

export interface Segment {
  text: string;
  /** The part with the greatest number is dropped first; 0 is never dropped. */
  weight: number;
  /** Colours, applied after the width has been settled. */
  style?: (text: string) => string;
  /** One space before it instead of two: it explains the part before. */
  close?: boolean;
}

/** Joins the segments that fit into `width` characters; a line of undroppable ones alone is cut. */
export function fit(segments: readonly Segment[], width: number): string {
  const kept = segments.filter(({ text }) => text !== "");
  while (lineOf(kept).length > width) {
    const heaviest = Math.max(...kept.map(({ weight }) => weight));
    if (heaviest === 0) return lineOf(kept).slice(0, Math.max(0, width));
    kept.splice(
      kept.findLastIndex(({ weight }) => weight === heaviest),
      1,
    );
  }
  return lineOf(kept.map((segment) => ({ ...segment, text: segment.style?.(segment.text) ?? segment.text })));
}

const lineOf = (segments: readonly Segment[]) =>
  segments.map(({ text, close }, index) => (index === 0 ? text : `${close ? " " : "  "}${text}`)).join("");
