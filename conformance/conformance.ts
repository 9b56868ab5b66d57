/**
 * Named checks that every engine must pass, as data: an engine's own test runs each of them on a small model. They use only
 * the interfaces of ../engine.ts. A sampler without a learner, such as an inference server, passes `samplerChecks`.
 */
import { agreementChecks } from "./agreement.ts";
import { gradientChecks } from "./gradients.ts";
import { precisionChecks } from "./precision.ts";
import { samplerChecks } from "./sampler.ts";
import { specChecks } from "./specs.ts";
import { targetChecks } from "./targets.ts";
import { type ConformanceCheck, type SamplerCheck, withTrainedPolicy } from "./tools.ts";
import { valueChecks } from "./values.ts";
import { weightChecks } from "./weights.ts";

export { samplerChecks } from "./sampler.ts";

/** A learner without a sampler, such as one that an inference server completes, passes these. */
export const learnerChecks: readonly ConformanceCheck[] = [
  ...gradientChecks,
  ...precisionChecks,
  ...targetChecks,
  ...valueChecks,
  ...specChecks,
];

/** A sampler's check on the sampler of an engine's own policy. */
const ofPolicy = ({ check, ...rest }: SamplerCheck): ConformanceCheck => ({
  ...rest,
  check: (engine, helpers) =>
    withTrainedPolicy(engine, ({ sampler }) => check({ sampler, model: engine.model }, helpers)),
});

export const conformance: readonly ConformanceCheck[] = [
  ...samplerChecks.map(ofPolicy),
  ...learnerChecks,
  ...agreementChecks,
  ...weightChecks,
];
