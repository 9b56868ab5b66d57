/** Settings that contradict others, on every backend. */
import { isRemote } from "../../backends/registry/open-engine.ts";
import type { Rule } from "../../backends/rule.ts";
import type { Config } from "../../config/schema.ts";
import { coupledLosses, estimatorsThatNeed, hasCoupledLoss, hasCritic } from "./algorithms.ts";
import { contradicts, under } from "./make-rules.ts";

const algorithm = "rllm.algorithm";
const correction = `${algorithm}.rollout_correction`;
const stepwise = "rllm.stepwise_advantage";
const asynchronous = "rllm.async_training";
const workflow = "rllm.workflow";

export const isPerStep = ({ rllm: { stepwise_advantage: stepwise } }: Config) =>
  stepwise.enable && stepwise.mode === "per_step";

/** Whether each step has an advantage of its own. */
const hasStepAdvantages = (config: Config) => isPerStep(config) || config.rllm.algorithm.use_precomputed_advantage;
const whole = `one advantage for each trajectory: neither ${algorithm}.use_precomputed_advantage nor ${stepwise}.mode=per_step`;

export const contradictions: readonly Rule[] = [
  contradicts(
    [`${stepwise}.normalize_by_steps`],
    `${stepwise}.mode=broadcast: with per_step each step has its own advantage, which is not divided`,
    (config) => !isPerStep(config),
    "remove one of the two",
  ),
  contradicts(
    [`${stepwise}.enable`],
    `${algorithm}.use_precomputed_advantage=false, because both define the steps' advantages`,
    ({ rllm }) => !rllm.stepwise_advantage.enable || !rllm.algorithm.use_precomputed_advantage,
    "remove one of the two",
  ),
  contradicts(
    ["rllm.reward.running_norm", "rllm.reward.clip", `${algorithm}.gamma`],
    whole,
    (config) => !hasStepAdvantages(config),
    "remove it; rllm.workflow.workflow_args.gamma discounts the rewards of steps",
  ),
  contradicts(["rllm.reward.model"], whole, (config) => !hasStepAdvantages(config), "remove one of the two"),
  {
    ...contradicts(
      under(algorithm, "adv_estimator", "estimator_map"),
      `neither ${stepwise}.mode=per_step nor normalize_by_steps: a critic's values are compared with one reward, at the trajectory's last token`,
      (config, script) => {
        const { enable, mode, normalize_by_steps: divides } = config.rllm.stepwise_advantage;
        return !(enable && (mode === "per_step" || divides) && hasCritic(config, script));
      },
      "remove one of the two",
    ),
    when: `with ${estimatorsThatNeed("values")}`,
  },
  contradicts(
    [`${correction}.tis_mode`],
    `${correction}.bypass_mode=false`,
    ({ rllm }) => rllm.algorithm.rollout_correction.bypass_mode !== true,
  ),

  contradicts(
    [`${asynchronous}.fwd_bwd_group_size`],
    `a divisor of ${asynchronous}.mini_batch_size`,
    ({ rllm: { async_training: keys } }) =>
      !keys.enable || keys.mini_batch_size % (keys.fwd_bwd_group_size ?? keys.mini_batch_size) === 0,
    "set a divisor, or null for all groups at once",
  ),
  {
    ...contradicts(
      [`${asynchronous}.fwd_bwd_group_size`],
      `${asynchronous}.mini_batch_size groups at once, because these losses compare all tokens of a step`,
      (config, script) => {
        const { enable, fwd_bwd_group_size: atOnce, mini_batch_size: batch } = config.rllm.async_training;
        return !enable || (atOnce ?? batch) >= batch || !hasCoupledLoss(config, script);
      },
      "set it to null",
    ),
    when: `with ${coupledLosses}`,
  },
  contradicts(
    under("rllm.rejection_sample", "enable", "mode"),
    `${asynchronous}.enable=false, because it draws whole batches again`,
    ({ rllm: { async_training, rejection_sample: rejection } }) =>
      !async_training.enable || !(rejection.enable || rejection.mode === "episode"),
    "set rllm.dynamic_sampling.enable=true, which replaces single tasks that teach nothing",
  ),

  contradicts(
    ["rllm.reward.model"],
    "data.mixed_mm_data=false: reward models read only text, so conversations with images would have no reward",
    ({ data }) => !data.mixed_mm_data,
    "grade images with a reward function",
  ),
  contradicts(
    ["rllm.reward.model_weights"],
    "one weight for each model of rllm.reward.model",
    ({ rllm: { reward } }) => reward.model === null || reward.model_weights.length === [reward.model].flat().length,
    "set one weight per model, or none",
  ),
  {
    ...contradicts(
      under("model", "train_attn", "train_mlp"),
      "layers for the critic to train, which has no output layer: model.train_attn or train_mlp",
      (config, script) => {
        const { lora_rank: rank, train_attn, train_mlp } = config.model;
        return rank === 0 || train_attn || train_mlp || !hasCritic(config, script);
      },
      "model.train_mlp=true, or an estimator without a critic, e.g. rllm.algorithm.adv_estimator=rloo",
    ),
    when: `with ${estimatorsThatNeed("values")}`,
  },
  contradicts(
    ["training.keep_best", "rllm.trainer.val_only"],
    "a validation dataset in the script",
    (_, script) => script?.hasValidation,
    "give the experiment a `validation` dataset",
  ),
  contradicts(
    [`${workflow}.name`, ...under(`${workflow}.workflow_args`, "agent_cls", "agent_args", "env_cls", "env_args")],
    `${workflow}.use_workflow=true`,
    ({ rllm }) => rllm.workflow.use_workflow,
  ),

  contradicts(
    ["local.processes"],
    "local.device=auto, cuda or cpu",
    (config) => isRemote(config) || ["auto", "cuda", "cpu"].includes(config.local.device),
  ),
  contradicts(
    ["local.sequence_parallel"],
    "local.processes to be a multiple of it",
    (config) => isRemote(config) || config.local.processes % config.local.sequence_parallel === 0,
  ),
];
