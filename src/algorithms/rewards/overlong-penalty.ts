/** DAPO's soft penalty of replies that come near the length limit (arXiv 2503.14476). */

export interface OverlongPenalty {
  /** Longest reply, tokens. */
  maxLength: number;
  /** The last so many tokens of it cost. */
  buffer: number;
  /** What the whole buffer costs. */
  factor: number;
}

/** What is added to the reward of a reply of `length` tokens: 0 outside the buffer, `-factor` at its end. */
export function overlongPenalty(length: number, { maxLength, buffer, factor }: OverlongPenalty): number {
  if (buffer <= 0) return 0;
  return Math.min(0, ((maxLength - buffer - length) / buffer) * factor);
}
