/**
 * Named checks that every engine must pass, as data: an engine's own test runs each of them on a small model. They use only
 * the interfaces of ./engine.ts. A sampler without a learner, such as an inference server, passes `samplerChecks`.
 */
import { agreementChecks } from "./conformance/agreement.ts";
import { gradientChecks } from "./conformance/gradients.ts";
import { precisionChecks } from "./conformance/precision.ts";
import { samplerChecks } from "./conformance/sampler.ts";
import { specChecks } from "./conformance/specs.ts";
import { targetChecks } from "./conformance/targets.ts";
import { type ConformanceCheck, type SamplerCheck, withTrainedPolicy } from "./conformance/tools.ts";
import { valueChecks } from "./conformance/values.ts";
import { weightChecks } from "./conformance/weights.ts";

export { samplerChecks } from "./conformance/sampler.ts";

const learnerChecks: readonly ConformanceCheck[] = [
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
