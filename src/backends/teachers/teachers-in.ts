/** The teachers and the loss that a configuration asks for. */
import {
  type DivergenceDefinition,
  type DivergenceName,
  divergences,
} from "../../algorithms/divergences/divergences.ts";
import type { KlEstimatorName } from "../../algorithms/kl/kl-estimators.ts";
import type { Config } from "../../config/schema.ts";
import { own } from "../../own.ts";

export type TeacherSpec = {
  /** In metrics. */
  name: string;
  /** The value of the row's column; null: the only teacher. */
  key: string | null;
} & (
  | { kind: "model"; model: string }
  | {
      kind: "server";
      url: string;
      model: string | undefined;
      /** The key itself, or the environment variable that has it. */
      apiKey: string | { variable: string } | undefined;
    }
);

/** Empty: the policy teaches itself. */
export function teachersIn({ distillation, rllm: { distill } }: Config): TeacherSpec[] {
  const { model: older, base_url, api_key } = distill.teacher_rollout_args;
  const named = Object.entries(distillation.teacher_models).map(([name, given]): TeacherSpec => {
    const { key = null, model_path, base_url: url, model, api_key_env } = given;
    if (model_path != null) return { name, key, kind: "model", model: model_path };
    const apiKey = api_key_env == null ? undefined : { variable: api_key_env };
    return { name, key, kind: "server", url: url!, model: model ?? undefined, apiKey };
  });
  const about = { name: "teacher", key: null } as const;
  if (base_url !== null) {
    const server = { url: base_url, model: older ?? undefined, apiKey: api_key ?? undefined };
    named.push({ ...about, kind: "server", ...server });
  } else if (older !== null) named.push({ ...about, kind: "model", model: older });
  return named;
}

/** The divergence over several tokens; undefined: an estimate from the sampled token. */
export const divergenceIn = ({ distillation: { distillation_loss: loss } }: Config): DivergenceName | undefined =>
  own(divergences, loss.loss_mode) === undefined ? undefined : (loss.loss_mode as DivergenceName);

export const estimatorIn = ({ distillation: { distillation_loss: loss } }: Config): KlEstimatorName =>
  loss.loss_mode as KlEstimatorName;

/** Whether the difference is added to the advantages. */
export const actsOnAdvantages = ({ distillation: { distillation_loss: loss } }: Config): boolean =>
  loss.use_policy_gradient ?? loss.loss_mode === "k1";

/** Whether a divergence compares the teacher's most likely tokens, and not only the sampled one. */
export function comparesLikely(config: Config): boolean {
  const name = divergenceIn(config);
  if (name === undefined) return false;
  const { support }: DivergenceDefinition = divergences[name];
  return support?.(config.distillation.distillation_loss) !== "sampled";
}

/** Whether the policy learns from rewards. */
export const learnsFromRewards = ({ distillation: { enabled, distillation_loss: loss } }: Config): boolean =>
  !enabled || loss.use_task_rewards;
