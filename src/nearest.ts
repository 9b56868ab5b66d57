/** Which known names a mistyped one may have meant. Knows nothing of what the names stand for. */

/** Levenshtein distance: the fewest inserted, deleted or replaced characters that turn `a` into `b`. */
export function editDistance(a: string, b: string): number {
  let row = Array.from({ length: b.length + 1 }, (_, index) => index);
  for (let i = 1; i <= a.length; i++) {
    const next = [i];
    for (let j = 1; j <= b.length; j++) {
      next.push(Math.min(row[j]! + 1, next[j - 1]! + 1, row[j - 1]! + (a[i - 1] === b[j - 1] ? 0 : 1)));
    }
    row = next;
  }
  return row[b.length]!;
}

/** Upper case, hyphens and camelCase are no difference worth a letter. */
const plain = (name: string) =>
  name
    .replace(/([a-z0-9])([A-Z])/g, "$1_$2")
    .replace(/-/g, "_")
    .toLowerCase();

/** Names longer than any real one are no typing mistakes, and distances cost the product of both lengths. */
const longestName = 100;

/**
 * How far `name` is from `candidate`, or Infinity where nobody would mistake one for the other: a third of the
 * letters may differ, or one contains the other.
 */
export function nameDistance(name: string, candidate: string): number {
  if (name.length > longestName) return Number.POSITIVE_INFINITY;
  const [a, b] = [plain(name), plain(candidate)];
  const distance = editDistance(a, b);
  const shorter = Math.min(a.length, b.length);
  if (distance < shorter && distance <= Math.max(1, Math.floor(Math.max(a.length, b.length) / 3))) return distance;
  const contained = shorter >= 3 && (a.includes(b) || b.includes(a));
  return contained ? Math.abs(a.length - b.length) / 2 : Number.POSITIVE_INFINITY;
}

/** The candidates that `name` may have meant, the nearest first. */
export function nearest(name: string, candidates: readonly string[], limit = 3): string[] {
  return candidates
    .map((candidate) => ({ candidate, distance: nameDistance(name, candidate) }))
    .filter(({ distance }) => distance < Number.POSITIVE_INFINITY)
    .sort((left, right) => left.distance - right.distance)
    .slice(0, limit)
    .map(({ candidate }) => candidate);
}
