/** Suggests known names for a mistyped one. */
import { distance as editDistance } from "fastest-levenshtein";

/** Case, hyphens and camelCase do not count as differences. */
const plain = (name: string) =>
  name
    .replace(/([a-z0-9])([A-Z])/g, "$1_$2")
    .replace(/-/g, "_")
    .toLowerCase();

/** Longer than any real name. Computing a distance costs the product of both lengths. */
const longestName = 100;

/**
 * Distance of `name` from `candidate`; Infinity unless at most a third of the letters differ or one contains the other.
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

/** The candidates closest to `name`, nearest first. */
export function nearest(name: string, candidates: readonly string[], limit = 3): string[] {
  return candidates
    .map((candidate) => ({ candidate, distance: nameDistance(name, candidate) }))
    .filter(({ distance }) => distance < Number.POSITIVE_INFINITY)
    .sort((left, right) => left.distance - right.distance)
    .slice(0, limit)
    .map(({ candidate }) => candidate);
}
