/** The time of the page's "3 min ago", which passes while nothing else changes. */
import { signal } from "@preact/signals";

const tickMilliseconds = 20_000;

export const now = signal(Date.now());

setInterval(() => {
  now.value = Date.now();
}, tickMilliseconds);
