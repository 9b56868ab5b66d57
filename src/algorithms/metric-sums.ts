/** Metrics as sums and counts, so that the parts of a batch can be added. The reported value is `sum / count`. */
import { own } from "../own.ts";

export type MetricSums = Record<string, { sum: number; count: number }>;

export function addMetrics(parts: readonly MetricSums[]): MetricSums {
  const total: MetricSums = {};
  for (const [name, { sum, count }] of parts.flatMap((part) => Object.entries(part))) {
    const earlier = own(total, name) ?? { sum: 0, count: 0 };
    total[name] = { sum: earlier.sum + sum, count: earlier.count + count };
  }
  return total;
}

export const averageMetrics = (sums: MetricSums): Record<string, number> =>
  Object.fromEntries(Object.entries(sums).map(([name, { sum, count }]) => [name, sum / count]));
