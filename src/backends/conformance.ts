/**
 * Named checks that every engine must pass, as data: an engine's own end-to-end test runs each of them on a small model.
 * They know the interface of ./engine.ts alone, no engine.
 */
import { gradientChecks } from "./conformance/gradients.ts";
import { samplingChecks } from "./conformance/sampling.ts";
import { targetChecks } from "./conformance/targets.ts";
import type { ConformanceCheck } from "./conformance/tools.ts";
import { valueChecks } from "./conformance/values.ts";
import { weightChecks } from "./conformance/weights.ts";

export type { ConformanceCheck } from "./conformance/tools.ts";

export const conformance: readonly ConformanceCheck[] = [
  ...samplingChecks,
  ...gradientChecks,
  ...targetChecks,
  ...valueChecks,
  ...weightChecks,
];
