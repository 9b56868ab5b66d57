/** The metrics of several optimizer steps as those of one. */
import type { ForwardBackwardResult } from "../backends/engine.ts";

export function mergedMetrics(results: readonly Pick<ForwardBackwardResult, "metrics">[]): Record<string, number> {
  const sums: Record<string, { sum: number; count: number }> = {};
  for (const { metrics } of results) {
    for (const [name, { sum, count }] of Object.entries(metrics)) {
      const earlier = sums[name] ?? { sum: 0, count: 0 };
      sums[name] = { sum: earlier.sum + sum, count: earlier.count + count };
    }
  }
  return Object.fromEntries(Object.entries(sums).map(([name, { sum, count }]) => [name, sum / count]));
}
