/** DAPO's soft penalty of replies near the length limit (arXiv 2503.14476). */

export interface OverlongPenalty {
  /** Length limit, in tokens. */
  maxLength: number;
  /** Number of tokens before the limit that are penalized. */
  buffer: number;
  /** Penalty at the limit. */
  factor: number;
}

/** Added to the reward of a reply of `length` tokens: 0 before the buffer, then linear to `-factor` at the limit. */
export function overlongPenalty(length: number, { maxLength, buffer, factor }: OverlongPenalty): number {
  if (buffer <= 0) return 0;
  return Math.min(0, ((maxLength - buffer - length) / buffer) * factor);
}
