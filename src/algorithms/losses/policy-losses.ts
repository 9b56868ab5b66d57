/** The policy losses by name, and what is derived from all of them. */
import type { z } from "zod";
import { own } from "../../own.ts";
import { cispo } from "./cispo.ts";
import { clipCov, klCov } from "./covariance.ts";
import { cpgd } from "./cpgd.ts";
import type { ConstantsOf, LossSettings, PolicyLossDefinition } from "./definition.ts";
import { dro } from "./dro.ts";
import { gmpo } from "./gmpo.ts";
import { gspo } from "./gspo.ts";
import { importanceSampling } from "./importance-sampling.ts";
import { crossEntropy, gpg } from "./log-likelihood.ts";
import { ppo } from "./ppo.ts";
import { sapo } from "./sapo.ts";

export const policyLosses = {
  importance_sampling: importanceSampling,
  ppo,
  cispo,
  dro,
  gpg,
  cross_entropy: crossEntropy,
  gspo,
  gmpo,
  cpgd,
  sapo,
  clip_cov: clipCov,
  kl_cov: klCov,
} as const satisfies Record<string, PolicyLossDefinition>;

export type PolicyLossName = keyof typeof policyLosses;

export const definitionOf = (name: PolicyLossName): PolicyLossDefinition => policyLosses[name];

/** All losses under Hone's own names. */
export const namedLosses = Object.entries(policyLosses) as [PolicyLossName, PolicyLossDefinition][];

/** Hone's own name of a loss, given that or another system's name. */
export function lossByName(name: string): PolicyLossName | undefined {
  if (own<PolicyLossDefinition>(policyLosses, name) !== undefined) return name as PolicyLossName;
  return namedLosses.find(([, { aliases }]) => aliases?.includes(name))?.[0];
}

/** Every name of every loss. */
export const lossNames: readonly string[] = namedLosses.flatMap(([name, { aliases = [] }]) => [name, ...aliases]);

type Both<Union> = (Union extends unknown ? (one: Union) => void : never) extends (all: infer All) => void
  ? All
  : never;
type Shapes = (typeof policyLosses)[PolicyLossName]["constants"];

/** The constants of all losses by their names in the configuration. */
export type LossConstants = ConstantsOf<Both<Shapes>>;

/** The schema of the constants that are keys of `rllm.algorithm.policy_loss`: those of all losses but ppo. */
export const constantSchemas = Object.assign(
  {},
  ...namedLosses.filter(([name]) => name !== "ppo").map(([, { constants }]) => constants),
) as Both<Exclude<Shapes, typeof ppo.constants>>;

/** The default of `eps_clip`. */
export const epsClip = 0.2;

/** Defaults of the papers or, where a paper gives none, of the implementations in use. */
export const lossDefaults: LossSettings & LossConstants = {
  low: 1 - epsClip,
  high: 1 + epsClip,
  // verl's value.
  logRatioLimit: 20,
  seed: 0,
  ...(Object.fromEntries(
    namedLosses.flatMap(([, { constants }]) =>
      Object.entries(constants).map(([name, schema]) => [name, (schema as z.ZodType).parse(undefined)]),
    ),
  ) as LossConstants),
};
