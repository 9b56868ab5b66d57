import { type KlEstimatorName, klEstimators, klPenalty, nextKlWeight } from "../../../src/algorithms/kl.ts";
import { type Families, family } from "./family.ts";
import { floats, type Matrix, ragged, raggedOffsets, spread } from "./loss-batch.ts";

/** The estimators under the names that the systems have for them. */
const klNames: Record<string, KlEstimatorName> = {
  kl: "k1",
  k1: "k1",
  mse: "k2",
  k2: "k2",
  low_var_kl: "k3",
  k3: "k3",
  abs: "abs",
};
export const klName = (name: string): KlEstimatorName | undefined => klNames[name];

type KlInputs = { logprobs: Matrix; ref_logprobs: Matrix; mask?: Matrix };
type KlParams = Partial<Record<"kl_penalty" | "kl_estimator" | "kl_estimator_type", string>>;

const kl = family<KlInputs, KlParams, { kl?: Matrix; grad_logprob?: Matrix; error?: string }>(
  ({ inputs, params }) => {
    const wanted = params.kl_penalty ?? params.kl_estimator ?? params.kl_estimator_type ?? "";
    const estimator = klName(wanted);
    if (estimator === undefined) return { error: "NotImplementedError" };
    const rows = inputs.logprobs.map((row, b) => {
      const reference = floats(inputs.ref_logprobs[b]!);
      const values = Array.from(floats(row), (logprob, t) => klEstimators[estimator](logprob - reference[t]!));
      return values.map((value, t) => (inputs.mask?.[b]?.[t] === 0 ? { value: 0, slope: 0 } : value));
    });
    return {
      kl: rows.map((row) => row.map(({ value }) => value)),
      grad_logprob: rows.map((row) => row.map(({ slope }) => slope)),
    };
  },
  ({ name, outputs }) => {
    if (!name.startsWith("lightrft/kl/k3") || !outputs.kl!.flat().some((value) => value > 10)) return undefined;
    const capped = (matrix: Matrix, at: number) =>
      matrix.map((row, b) => row.map((entry, t) => (outputs.kl![b]![t]! > 10 ? at : entry)));
    return {
      why: "k3 is capped at 10, as in verl; LightRFT's overflows",
      instead: { kl: capped(outputs.kl!, 10), grad_logprob: capped(outputs.grad_logprob!, 0) },
    };
  },
);

const klController = family<{ kl: number[]; n_steps: number }, { init: number; target?: number; horizon?: number }>(
  ({ inputs, params }) => {
    let weight = params.init;
    const options = { initial: params.init, target: params.target ?? null, horizon: params.horizon ?? 1 };
    return {
      values: inputs.kl.map((found) => {
        weight = nextKlWeight(weight, found, inputs.n_steps, options);
        return weight;
      }),
    };
  },
);

interface PenaltyInputs extends KlInputs {
  token_level_scores: Matrix;
  mask: Matrix;
}

const verlKlPenalty = family<PenaltyInputs, { kl_penalty: string; init: number; target: number; horizon: number }>(
  ({ inputs, params }) => {
    const { mask } = inputs;
    const offsets = raggedOffsets(mask);
    const options = { weight: params.init, estimator: klName(params.kl_penalty)! };
    const found = klPenalty(ragged(inputs.logprobs, mask), ragged(inputs.ref_logprobs, mask), offsets, options);
    const penalties = spread(found.penalties, mask);
    return {
      token_level_rewards: inputs.token_level_scores.map((row, b) => row.map((score, t) => score - penalties[b]![t]!)),
      metrics: { "actor/reward_kl_penalty": found.kl, "actor/reward_kl_penalty_coeff": params.init },
      new_coef: nextKlWeight(params.init, found.kl, mask.length, params),
    };
  },
);

export const klFamilies: Families = {
  "verl/kl": kl,
  "verl/kl_controller": klController,
  "verl/apply_kl_penalty": verlKlPenalty,
  "lightrft/kl": kl,
  "lightrft/kl_controller": klController,
  "skyrl/kl": kl,
};
