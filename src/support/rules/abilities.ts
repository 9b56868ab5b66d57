/** What settings require of the engine and of the model. */
import { modelReadsImages } from "../../backends/registry/model-facts.ts";
import type { Rule } from "../../backends/rule.ts";
import { changesDistribution } from "../../backends/sampling-params.ts";
import type { Config } from "../../config/schema.ts";
import { estimatorsIn, estimatorsThatNeed, needOf, ownLosses } from "./algorithms.ts";
import { ability, below, under, withOlderNames } from "./make-rules.ts";

const algorithm = "rllm.algorithm";
const correction = `${algorithm}.rollout_correction`;
const critic = `a critic (${estimatorsThatNeed("values")})`;

/** The outputs that estimators need in addition to log-probabilities. */
const estimatorOutputs = [
  ["values", critic],
  ["concentration", `the sums of squared probabilities (${estimatorsThatNeed("concentration")})`],
] as const;

/** Whether the sampler reports the model's own log-probabilities only because sampling does not change the distribution. */
function samplesAsIs({ rllm }: Config): boolean {
  const { temperature, top_p: topP, top_k: topK, min_p: minP } = rllm.rollout.train;
  return !changesDistribution({ temperature, topP, topK, minP });
}
const asIs = {
  when: "with a sampler that reports log-probabilities after temperature and filters",
  requires: "sampling with temperature=1, top_p=1, top_k=-1 and min_p=0",
};

export const abilities: readonly Rule[] = [
  ability(
    under(algorithm, "entropy_coeff", "high_entropy_token_ratio"),
    "entropies",
    ({ outputs }, value) => value === 0 || outputs.includes("entropy"),
  ),
  ability(under(algorithm, "loss_fn", "loss_fn_map", "estimator_map"), "entropies", ({ outputs }, value, situation) => {
    const { config, script } = situation;
    const reads = value !== undefined && ownLosses(config, script).some(({ inputs }) => inputs.includes("entropy"));
    return !reads || outputs.includes("entropy");
  }),
  ...estimatorOutputs.map(([output, requires]) =>
    ability(
      under(algorithm, "adv_estimator", "estimator_map"),
      requires,
      ({ outputs }, value, { script }) =>
        outputs.includes(output) || !estimatorsIn(value).some((name) => needOf(name, script) === output),
    ),
  ),
  ability([...below("rllm.critic"), `${algorithm}.lam`], critic, ({ outputs }) => outputs.includes("values")),
  ability(["rllm.reward.model"], "reward models, or servers for them (rllm.reward.use_engine=true)", ({ outputs }) =>
    outputs.includes("scores"),
  ),
  ability(
    ["rllm.critic.model", `${algorithm}.reference_model`],
    "models other than the run's own",
    ({ otherModels }, value) => otherModels || value === null,
  ),
  ability(
    ["data.mixed_mm_data", "model.processor"],
    "images",
    ({ images }, value) => images || value === null || value === false,
  ),
  {
    outcome: "unsupported",
    keys: ["data.mixed_mm_data", "model.processor", "model.train_vision"],
    requires: "a model that reads images",
    isMet: ({ config }) => modelReadsImages(config),
  },
  ability(
    ["model.train_vision"],
    "training of the vision part",
    ({ images, trainsVision }, value) => (images && trainsVision === true) || value === false,
  ),
  ability(
    ["model.lora_rank"],
    "training of all weights",
    ({ adapters }, value) => value !== 0 || adapters.includes("full"),
  ),
  ability(
    ["model.train_unembed"],
    "LoRA on the output embedding",
    ({ loraTargets }, value, { config }) =>
      value === false || config.model.lora_rank === 0 || loraTargets.includes("unembed"),
  ),
  ability(
    ["rllm.algorithm.router_replay"],
    "replay of this routing (the local engine in one process; R3 with vLLM as the sampler)",
    ({ routerReplay = [] }, value) =>
      value === undefined ? routerReplay.length > 0 : value === "disabled" || routerReplay.some((one) => one === value),
  ),
  {
    outcome: "unsupported",
    keys: ["local.router_aux_loss"],
    requires: "local.processes=1",
    isMet: ({ config }, value) => value === 0 || config.local.processes === 1,
  },
  ability(
    ["model.train_experts"],
    "LoRA on experts",
    ({ loraTargets }, value, { config }) =>
      value === false || config.model.lora_rank === 0 || loraTargets.includes("experts"),
  ),
  ...(["top_p", "top_k", "min_p"] as const).map((name) =>
    ability(
      withOlderNames(under("rllm.rollout", `train.${name}`, `val.${name}`)),
      `sampling with ${name}`,
      ({ sampling }) => sampling.includes(name),
    ),
  ),
  {
    outcome: "unsupported",
    keys: under(correction, "tis_mode", "rs_mode"),
    ...asIs,
    isMet: ({ capabilities, config }) => capabilities.sampleLogprobs === "raw" || samplesAsIs(config),
  },
  {
    outcome: "no effect",
    keys: [`${correction}.bypass_mode`],
    ...asIs,
    isMet: ({ capabilities, config }) => capabilities.sampleLogprobs === "raw" || samplesAsIs(config),
  },
  {
    outcome: "unsupported",
    keys: ["rllm.async_training.enable"],
    when: "on an engine without a second copy of all weights, which cannot sample between an optimizer step and the next update of the sampler",
    requires: "a LoRA, or trigger_parameter_sync_step=1 with partial_rollout=true or staleness_threshold=0",
    isMet: ({ capabilities: { frozenSampler }, config: { model, rllm } }) => {
      const { mini_batch_size: batch, staleness_threshold: ahead, ...keys } = rllm.async_training;
      const runsAhead = Math.floor((1 + ahead) * batch) > batch;
      const waits = !frozenSampler[model.lora_rank === 0 ? "full" : "lora"];
      return !waits || (keys.trigger_parameter_sync_step === 1 && (keys.partial_rollout || !runsAhead));
    },
  },
];
