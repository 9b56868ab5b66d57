/** The policy losses by name. */
import { cispo } from "./cispo.ts";
import { clipCov, klCov, markForClipCov, markForKlCov } from "./covariance.ts";
import { cpgd } from "./cpgd.ts";
import { dro } from "./dro.ts";
import { gmpo } from "./gmpo.ts";
import { gspo } from "./gspo.ts";
import { importanceSampling } from "./importance-sampling.ts";
import { logLikelihood } from "./log-likelihood.ts";
import { ppo } from "./ppo.ts";
import { sapo } from "./sapo.ts";
import type { PolicyLossDefinition } from "./sequence-loss.ts";

export const policyLosses = {
  ppo: { evaluate: ppo },
  importance_sampling: { evaluate: importanceSampling },
  cispo: { evaluate: cispo },
  dro: { evaluate: dro, trainsWithoutAdvantage: () => true },
  cross_entropy: { evaluate: logLikelihood },
  gpg: { evaluate: logLikelihood },
  gspo: { evaluate: gspo, aggMode: "seq-mean-token-mean" },
  gmpo: { evaluate: gmpo, aggMode: "seq-mean-token-mean" },
  cpgd: { evaluate: cpgd, trainsWithoutAdvantage: ({ cpgdDrift }) => cpgdDrift > 0 },
  sapo: { evaluate: sapo, aggMode: "seq-mean-token-mean" },
  clip_cov: { evaluate: clipCov, mark: markForClipCov },
  kl_cov: { evaluate: klCov, mark: markForKlCov },
} as const satisfies Record<string, PolicyLossDefinition>;

export type PolicyLossName = keyof typeof policyLosses;

/** The names that verl and rLLM give to the same losses. */
export const lossAliases: Readonly<Record<string, PolicyLossName>> = {
  vanilla: "ppo",
  geo_mean: "gmpo",
  reinforce: "gpg",
};
