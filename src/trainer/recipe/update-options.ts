/** The configuration's keys as the options of the update: losses, optimizer, KL terms, critic. */
import { adapterSpec } from "../../backends/adapter-spec.ts";
import type { Capabilities, LearnerSpec } from "../../backends/engine.ts";
import { comparesLikely } from "../../backends/teachers/teachers-in.ts";
import type { Config } from "../../config/schema.ts";
import type { Experiment } from "../experiment.ts";
import type { AdamOptions } from "../update/passes.ts";
import type { UpdateOptions } from "../update/update-policy.ts";
import { advantageOptions } from "./credit-options.ts";
import { teacherTerms } from "./distillation-options.ts";
import { correctionOptions, klOptions, policyLossOptions } from "./loss-options.ts";

export function updateOptions(
  config: Config,
  { estimators, losses }: Pick<Experiment<unknown>, "estimators" | "losses">,
  { engine }: Capabilities,
  totalSteps: number,
): UpdateOptions {
  const { training, data, distillation } = config;
  const { algorithm, critic, trainer } = config.rllm;
  const teacher = teacherTerms(config);
  return {
    loss: policyLossOptions(config, losses),
    kl: klOptions(config),
    prepare: {
      engine,
      advantages: advantageOptions(config, estimators),
      lambda: algorithm.lam,
      correction: correctionOptions(config),
      bypass: algorithm.rollout_correction.bypass_mode === true,
      severalSteps: training.num_minibatches * training.ppo_epochs > 1,
      teacher: teacher.advantages,
      comparesLikely: distillation.enabled && comparesLikely(config),
    },
    passes: training.ppo_epochs,
    minibatches: training.num_minibatches,
    seed: trainer.seed,
    adam: adamOptions(config, totalSteps),
    critic: {
      loss: {
        aggMode: algorithm.loss_agg_mode ?? "token-mean",
        lossScale: algorithm.loss_scale_factor ?? data.max_response_length,
        clip: critic.value_clip,
        coefficient: critic.value_coef,
      },
      adam: adamOptions(config, totalSteps, critic.learning_rate),
      warmupSteps: critic.warmup_steps,
    },
    teacher: teacher.loss,
  };
}

/** @param base the highest learning rate */
function adamOptions(
  { training, rllm: { algorithm } }: Config,
  totalSteps: number,
  base = training.learning_rate,
): AdamOptions {
  const { lr_schedule: schedule, warmup_steps_ratio: warmupRatio } = training;
  const { warmup_steps: warmupSteps, min_lr_ratio: minRatio } = algorithm;
  const { beta1, beta2, eps, weight_decay: weightDecay, max_grad_norm: maxGradNorm } = training;
  const rate = { schedule, warmupSteps, warmupRatio, base, minRatio };
  return { rate, totalSteps, beta1, beta2, eps, weightDecay, maxGradNorm };
}

/** The policy's own adapter and a value head. A critic has no output layer to adapt. */
export function criticSpec(config: Config): LearnerSpec {
  const adapter = adapterSpec(config);
  const other = otherModel(config, config.rllm.critic.model);
  if (adapter.kind !== "lora") return { adapter, head: "value", ...other };
  const targets = adapter.targets.filter((target) => target !== "unembed");
  return { adapter: { ...adapter, targets }, head: "value", ...other };
}

/** The frozen model that the KL compares with: the base model, or the weights that the run starts from. */
export function referenceSpec(config: Config): LearnerSpec {
  const { reference_model } = config.rllm.algorithm;
  if (config.training.start_from !== null && reference_model === null) return { adapter: adapterSpec(config) };
  return { adapter: { kind: "none" }, ...otherModel(config, reference_model) };
}

function otherModel({ model }: Config, name: string | null): Pick<LearnerSpec, "model"> {
  return name === null || name === model.name ? {} : { model: name };
}
