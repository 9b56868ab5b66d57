/** A reply's text as its client gets it: without the stop string and everything after it. */
export function cutAtStop(text: string, stops: readonly string[] = []): string {
  let end = text.length;
  for (const stop of stops) {
    const at = stop === "" ? -1 : text.indexOf(stop);
    if (at >= 0) end = Math.min(end, at);
  }
  return text.slice(0, end);
}
