import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test, vi } from "vitest";
import { tokenLoss } from "../algorithms/custom-loss.ts";
import { namedLosses } from "../algorithms/policy-losses.ts";
import { UserError } from "../base/errors.ts";
import { composeConfig } from "../config/compose.ts";
import { valueAt } from "../config/tree.ts";
import { temporaryFolder } from "../temporary-folder.fixture.ts";
import { checkSettings, requireValues, unsupportedSettings } from "./check.ts";

const found = (...overrides: string[]) =>
  unsupportedSettings(composeConfig({ overrides })).map(({ message }) => message);

test("shipped defaults are supported, also when set explicitly", () => {
  for (const backend of ["local", "tinker", "verl"]) expect(found(`rllm/backend=${backend}`)).toEqual([]);
  expect(
    found("rllm.remote_runtime.enabled=false", "rllm.episode_logging.episode_log_dir=logs/rllm-training/default"),
  ).toEqual([]);
});

const onCpu = ["local.sampler.type=vllm", "local.device=cpu"];
const two = ["local.processes=2"];
const onTinker = "rllm/backend=tinker";
const onVerl = "rllm/backend=verl";

test.each([
  [
    ["rllm.remote_runtime.enabled=true"],
    "rllm.remote_runtime.enabled=true: it requires rllm.remote_runtime.backend=harbor, because agents in AWS's AgentCore",
  ],
  [["local.processes=3", "local.sequence_parallel=2"], "=2: it requires local.processes to be a multiple of it"],
  [
    ["local.sampler={type: vllm, tensor_parallel: 2, devices: [0]}"],
    "local.sampler.devices=[0]: it requires one GPU for each part of the model",
  ],
  [
    ["local.sampler.type=sglang", "local.device=cpu"],
    "it requires an NVIDIA GPU that the run uses, or local.sampler.url",
  ],
  [[onVerl, "model.lora_rank=4", "model.train_attn=false"], "verl trains LoRA adapters on attention and MLP layers"],
  [
    [onVerl, "model={lora_rank: 4, train_unembed: true}"],
    "it requires LoRA on the output embedding; only the local and",
  ],
  [["model.processor=./p"], "it requires a model that reads images"],
  [
    [onTinker, "rllm.critic.learning_rate=1e-3"],
    "it requires a critic (gae); only the local and verl backends support it",
  ],
  [[onTinker, "rllm.algorithm.lam=0.9"], "it requires a critic (gae); only the local and verl backends support it"],
  [
    ["rllm.async_training={enable: true, fwd_bwd_group_size: 3}"],
    "it requires a divisor of rllm.async_training.mini_batch_size; set a divisor",
  ],
  [
    ["rllm.async_training={enable: true, fwd_bwd_group_size: 2}", "rllm.algorithm.loss_fn=kl_cov"],
    "with clip_cov and kl_cov, it requires rllm.async_training.mini_batch_size groups at once",
  ],
  [
    ["rllm.async_training.enable=true", "rllm.rejection_sample.enable=true"],
    "rllm.rejection_sample.enable=true: it requires rllm.async_training.enable=false",
  ],
  [["rllm.async_training={enable: true, trigger_parameter_sync_step: 2}", "model.lora_rank=0"], "it requires a LoRA"],
  [
    ["rllm.stepwise_advantage={enable: true, mode: per_step}", "rllm.reward.clip=1"],
    "rllm.reward.clip=1: it requires one advantage for each trajectory",
  ],
  [
    ["rllm.stepwise_advantage={enable: true, mode: per_step, normalize_by_steps: true}"],
    "with per_step each step has its own advantage",
  ],
  [
    [onVerl, "algorithm.adv_estimator=gae", "rllm.stepwise_advantage={enable: true, mode: per_step}"],
    "a critic's values are compared with one reward",
  ],
  [
    ["rllm.stepwise_advantage={enable: true, mode: per_step}", "rllm.algorithm.adv_estimator=gae"],
    "a critic's values are compared with one reward",
  ],
  [["rllm.reward={model: [./a, ./b], model_weights: [1]}"], "it requires one weight for each model"],
  [["rllm.reward.model=./a", "rllm.algorithm.use_precomputed_advantage=true"], "neither rllm.algorithm.use_precomp"],
  [
    ["rllm.algorithm.rollout_correction={tis_mode: token, bypass_mode: true}"],
    "it requires rllm.algorithm.rollout_correction.bypass_mode=false",
  ],
  [[...two, "local.device=mps"], "it requires local.device=auto, cuda or cpu"],
  [[...onCpu, "local.sampler.devices=[1]"], "it requires an NVIDIA GPU"],
  [["rollout_engine.renderer_name=qwen33"], "the name is neither built in nor registered; did you mean"],
  [["rllm.algorithm.adv_estimator=grpoo"], "the name is neither built in nor registered; did you mean grpo?"],
  [
    ["rllm.algorithm.loss_fn_map={judge: gsppo}"],
    "the name gsppo is neither built in nor registered; did you mean ppo or gspo?",
  ],
  [["rllm.algorithm.estimator_map={judge: gropo}"], "the name gropo is neither built in nor registered; did you mean"],
  [
    ["rllm.algorithm.estimator_map={judge: [grpo, xyzzy]}"],
    "xyzzy is neither built in nor registered; built in: import",
  ],
  [["rllm.algorithm.rollout_correction.rs_mode=[token_k1]"], "it requires one threshold for each rule in"],
  [
    ["rllm.algorithm.rollout_correction={rs_mode: [token_k2, token_k1], rs_threshold: [0_1, 2]}"],
    "it requires one threshold for each rule in",
  ],
  [["rllm.algorithm.rollout_correction.rs_mode=[token_k4]"], "the name token_k4 is neither built in"],
  [["data.max_response_length=1000000000"], "a step would hold up to 5.12e+11 sampled tokens in memory; the limit is"],
  [["rllm.rollout.n=100000000"], "data.max_response_length=2048: a step would hold up to"],
  [[onVerl, "local.sequence_parallel=3"], "=3: it requires local.processes to be a multiple of it"],
  [["tinker_base_url=http://localhost:1"], "only the tinker backend supports it"],
  [
    [onVerl, "data.gen_batch_size=3"],
    "data.gen_batch_size=3: it has no effect: the experiment's script reads the data",
  ],
  [
    [onVerl, "trainer.device=cpu", "actor_rollout_ref.rollout.gpu_memory_utilization=0.3"],
    "gpu_memory_utilization=0.3: it has no effect: it is not used, because Hone's own vLLM server samples",
  ],
  [[onVerl, "actor_rollout_ref.actor.shuffle=true"], "it belongs to verl's own trainer, which Hone's trainer replaces"],
  [[onVerl, "actor_rollout_ref.actor.optim.betas=[0.5,0.9]"], "set training.beta1 and training.beta2"],
  [[onVerl, "rllm.reward.model=./judge"], "it requires reward models, or servers for them"],
  [
    [onTinker, "sampling.train.min_p=0.1"],
    "it requires sampling with min_p; only the local and verl backends support it",
  ],
  [[onTinker, "rllm.rollout.val.min_p=0.1"], "it requires sampling with min_p"],
  [
    [onTinker, "rllm.algorithm.entropy_coeff=0.1"],
    "it requires entropies; only the local and verl backends support it",
  ],
  [[onTinker, "rllm.algorithm.high_entropy_token_ratio=0.2"], "it requires entropies"],
  [[onTinker, "rllm.algorithm.adv_estimator=gae"], "it requires a critic (gae); only the local and verl backend"],
  [[onTinker, "rllm.algorithm.estimator_map={judge:gae}"], "it requires a critic (gae)"],
  [[onTinker, "model.lora_rank=0"], "it requires training of all weights"],
  [[onTinker, "rllm.algorithm.reference_model=./other"], "it requires models other than the run's own; only the local"],
  [
    [onTinker, "rllm.reward.model=./judge"],
    "it requires reward models, or servers for them (rllm.reward.use_engine=true)",
  ],
])("%j is refused", (overrides, message) => {
  expect(found(...overrides)).toEqual([expect.stringContaining(message)]);
  expect(() => checkSettings(composeConfig({ overrides }))).toThrow(message);
});

test.each([
  [["local.sampler.type=own", "local.sampler.url=http://localhost:1"], "it requires local.sampler.type=vllm or sglang"],
  [["local.sampler.timeout=60"], "it requires local.sampler.type=vllm or sglang"],
  [["local.offload_optimizer=true"], "it requires local.processes above 1"],
  [[...two, "local.sharding=zero2", "local.offload_parameters=true"], "it requires local.sharding=fsdp or zero3"],
  [["local.sampler.type=vllm", "local.sampler.api_key=k"], "it requires local.sampler.url, the address of a running"],
  [["rllm.algorithm.lam=0.9"], "it requires an estimator with a critic"],
  [["rllm.critic.model=./other"], "it requires an estimator with a critic"],
  [["rllm.algorithm.reference_model=./other"], "it requires rllm.algorithm.kl_beta above 0"],
  [["rllm.reward.model=./judge", "rllm.reward.engine_url=[http://a]"], "it requires rllm.reward.use_engine=true"],
  [["rllm.reward.normalize=true"], "it requires rllm.reward.model"],
  [["rllm.algorithm.eps_clip=0.3"], "with one step per batch, every ratio is 1"],
  [
    ["rllm.algorithm={use_precomputed_advantage: true, norm_adv_by_std_in_grpo: false}"],
    "it requires rllm.algorithm.use_precomputed_advantage=false",
  ],
  [["rllm.algorithm={use_precomputed_advantage: true, adv_estimator: gae}"], "use_precomputed_advantage=false"],
  [[onTinker, "tinker_base_url=http://localhost:1", "local.dtype=float32"], "it requires a local engine"],
  [["local.sharding=zero3"], "it requires local.processes above 1"],
  [["rllm.critic.learning_rate=1e-3"], "it requires an estimator with a critic"],
  [["rllm.reward.timeout=3"], "it requires rllm.reward.remote_url or use_engine"],
  [[...onCpu, "local.sampler.memory_share=0.3"], "it requires an NVIDIA GPU"],
  [
    ["local.device=cpu", "local.sampler.memory_share=0.3", "rllm.reward={model: ./judge, use_engine: true}"],
    "it requires an NVIDIA GPU",
  ],
  [["local.sampler.memory_share=0.3"], "it requires an inference server that Hone starts"],
  [["rllm.workflow.workflow_args.gamma=0.5"], "it requires rllm.stepwise_advantage.enable=true with mode=per_step"],
  [["rllm.workflow.workflow_args.reward_bonus_coeff=1"], "it requires rllm.stepwise_advantage.enable=true"],
  [["rllm.stepwise_advantage.enable=true"], "it requires rllm.stepwise_advantage.mode=per_step or"],
  [["rllm.sdk.store.retention_days=1"], "it requires rllm.gateway.store=sqlite"],
  [["rllm.algorithm.policy_loss.tau_pos=2"], "it requires the loss sapo"],
  [["rllm.async_training.enable=true", "data.train_batch_size=3"], "it requires rllm.async_training.enable=false"],
])("%j warns that it has no effect", (overrides, because) => {
  const { warnings } = checkSettings(composeConfig({ overrides }));
  expect(warnings).toEqual([expect.objectContaining({ category: "no_effect" })]);
  expect(warnings[0]?.text).toContain(because);
});

test.each([
  ["rllm.critic.learning_rate=1e-3", "rllm.algorithm.adv_estimator=gae"],
  ["rllm.algorithm.eps_clip=0.3", "training.num_minibatches=2"],
  ["rllm.algorithm.eps_clip=0.3", "rllm.algorithm.rollout_correction.bypass_mode=true"],
  ["rllm.async_training={enable: true, fwd_bwd_group_size: 32}"],
  ["rllm.workflow.workflow_args.gamma=0.5", "rllm.stepwise_advantage={enable: true, mode: per_step}"],
  ["rllm.algorithm.policy_loss.tau_pos=2", "rllm.algorithm.loss_fn_map={judge: sapo}"],
  [
    "rllm.algorithm.policy_loss.dro_beta=2",
    "training.ppo_epochs=2",
    "rllm.algorithm.estimator_map={judge: [grpo, dro]}",
  ],
  ["local.dtype=float32", onTinker],
  [...two, "local.sharding=zero2", "local.offload_optimizer=true", "local.sequence_parallel=2"],
  [...two, "local.offload_parameters=true"],
  [onTinker, "rllm.reward={model: ./judge, use_engine: true, engine_url: ['http://localhost:1']}"],
  ["rllm.critic.model=./other", "rllm.algorithm.adv_estimator=gae"],
  [onVerl, "actor_rollout_ref.actor.strategy=fsdp2", "trainer.n_gpus_per_node=2", "+ray_kwargs.ray_init.num_cpus=2"],
  [onVerl, "actor_rollout_ref.model.path=./other", "actor_rollout_ref.actor.optim.lr=1e-5"],
  [onVerl, "actor_rollout_ref.rollout.mode=async", "actor_rollout_ref.rollout.agent.num_workers=0"],
  ["rllm.algorithm.reference_model=./other", "rllm.algorithm.kl_beta=0.1"],
  ["rllm.reward={model: [./a, ./b], model_weights: [{solver: 1}, 2], own_weight: {judge: 0}}"],
])("%s takes effect with %s", (...overrides) => {
  expect(found(...overrides)).toEqual([]);
});

test.each(namedLosses)("constants of %s take effect with it alone, and clipping bounds if it clips", (name, loss) => {
  const section = name === "ppo" ? "rllm.algorithm" : "rllm.algorithm.policy_loss";
  const others: Readonly<Record<string, string>> = { gspo_gradient: "sequence" };
  const constants = Object.keys(loss.constants).map((key) => `${section}.${key}=${others[key] ?? 1.5}`);
  const halves = constants.map((setting) => setting.replace(/(ratio)=1.5/, "$1=0.5"));
  const several = "training.num_minibatches=2";
  expect(found(several, `rllm.algorithm.loss_fn=${name}`, ...halves)).toEqual([]);
  const other = name === "gpg" ? "dro" : "gpg";
  expect(found(several, `rllm.algorithm.loss_fn=${other}`, ...halves)).toEqual(
    halves.map(() => expect.stringContaining(`has no effect: it requires the loss ${name}`)),
  );
  const clips = loss.ratio === "clipped";
  expect(found(several, `rllm.algorithm.loss_fn=${name}`, "rllm.algorithm.eps_clip=0.3")).toEqual(
    clips ? [] : [expect.stringContaining("has no effect: it requires a loss that clips ratios (ppo, ")],
  );
});

test("grpo_passk divides by the standard deviation like grpo", () => {
  const plain = "rllm.algorithm.norm_adv_by_std_in_grpo=false";
  expect(found(plain, "rllm.algorithm.adv_estimator=grpo_passk")).toEqual([]);
  expect(found(plain, "rllm.algorithm.adv_estimator=rloo")).toEqual([
    expect.stringContaining("it requires the estimator grpo, group_norm or grpo_passk"),
  ]);
});

test("neutral values and names registered by the user's code are not refused", () => {
  expect(found("local.mixed_precision_optimizer=true", "rllm.gateway.cumulative_token_mode=true")).toEqual([]);
  expect(found("rollout_engine.renderer_name=./my-renderer.ts")).toEqual([]);
  const own = composeConfig({ overrides: ["rllm.algorithm.adv_estimator=mine"] });
  expect(unsupportedSettings(own, { registered: ["mine"] })).toEqual([]);
});

test("a vLLM server that Hone starts on a CPU does not return experts", () => {
  const cpu = ["rllm.algorithm.router_replay=R3", "local={device: cpu, sampler: {type: vllm}}"];
  expect(found(...cpu)).toEqual([expect.stringMatching(/router_replay.*NVIDIA GPU.*Triton/s)]);
  expect(found(...cpu, "local.sampler.url=http://127.0.0.1:8000")).toEqual([]);
});

test("all refused settings are reported at once with their origins", () => {
  const overrides = ["rllm.remote_runtime.enabled=true", "rllm.algorithm.router_replay=R3"];
  const check = () => checkSettings(composeConfig({ overrides }));
  expect(check).toThrow(UserError);
  expect(check).toThrow(
    /2 settings cannot be used:\n.*\(command line: rllm\.algorithm\.router_replay=R3\)\n.*rllm\.remote_runtime\.enabled=true/,
  );
});

test.each([
  ["a named value", "rllm.algorithm.router_replay=R2", "disabled"],
  ["a key of another backend", "local.sampler.type=vllm", "auto"],
  ["an ability of the engine", "rllm.algorithm.entropy_coeff=0.1", 0],
  ["an estimator", "rllm.algorithm.adv_estimator=gae", "grpo"],
  ["a key with two names", "sampling.train.min_p=0.1", 0],
  ["the adapter", "model.lora_rank=0", 32],
])("on_unsupported=warn continues with the default of %s", (_, override, fallback) => {
  const [key = ""] = override.split("=");
  const composed = composeConfig({ overrides: [onTinker, "rllm.on_unsupported=warn", override] });
  const checked = checkSettings(composed);
  expect(checked.warnings).toEqual([expect.objectContaining({ category: "unsupported", paths: [key] })]);
  expect(checked.warnings[0]?.text).toContain("; continuing with the default ");
  expect(valueAt(checked.composed.config, key)).toEqual(fallback);
  expect(checked.composed.config.rllm.rollout.train.min_p).toBe(0);
});

test("on_unsupported=warn does not ignore contradictions, and all keys of a feature are treated alike", () => {
  const check = (...overrides: string[]) =>
    checkSettings(composeConfig({ overrides: ["rllm.on_unsupported=warn", ...overrides] }));
  expect(() => check("local.processes=2", "local.sequence_parallel=3")).toThrow("to be a multiple of it");
  const gae = [
    "rllm.algorithm.lam=0.5",
    "rllm.critic={model: ./other, learning_rate: 1, value_clip: 1, warmup_steps: 2}",
  ];
  expect(check(...gae).warnings.map(({ category }) => category)).toEqual(Array(5).fill("no_effect"));
});

const plainScript = { losses: {}, estimators: {}, tasks: 100, validation: "toy" };

test.each([
  [
    ["training.best_metric=val/toy/reward"],
    false,
    "has no effect: it requires a validation dataset in the script, or data.val_files",
  ],
  [["rllm.rollout.n_val=4"], false, "has no effect: it requires a validation dataset in the script"],
  [["training.best_metric=val/toy/reward"], true, undefined],
  [["training.best_metric=val/toy/reward"], undefined, undefined],
])("%j with a validation dataset: %s", (overrides, hasValidation, message) => {
  const validation = hasValidation ? "toy" : undefined;
  const script = hasValidation === undefined ? undefined : { ...plainScript, validation };
  const { warnings } = checkSettings(composeConfig({ overrides }), { script });
  expect(warnings.map(({ text }) => text)).toEqual(message === undefined ? [] : [expect.stringContaining(message)]);
});

test.each([
  [[], "data.train_batch_size=64: a draw takes 64 tasks, but the dataset has only 40; set 40 or less, or add tasks"],
  [["data.train_batch_size=20", "rllm.rejection_sample={enable: true, multiplier: 3}"], "a draw takes 60 tasks"],
  [["rllm.async_training.enable=true"], "rllm.async_training.mini_batch_size=64: a draw takes 64 tasks, but"],
  [["data.train_batch_size=8", "training.resume_mode=path"], "it requires training.resume_from_path"],
  [
    ["data.train_batch_size=8", "training.resume_mode=path", "training.resume_from_path=tinker://a/weights/b"],
    "it is stored by a service of the tinker backend; train with that backend",
  ],
])("%j is refused for a script with 40 tasks, and not without a script", (overrides, message) => {
  const script = { ...plainScript, tasks: 40 };
  const composed = composeConfig({ overrides });
  const refused = (found: typeof script | undefined) =>
    unsupportedSettings(composed, { script: found }).flatMap((one) => (one.isRefused ? [one.message] : []));
  expect(refused(script)).toEqual([expect.stringContaining(message)]);
  expect(refused(undefined)).toEqual([]);
  const measures = composeConfig({ overrides: [...overrides, "rllm.trainer.val_only=true"] });
  const isStored = message.includes("is stored by");
  expect(unsupportedSettings(measures, { script }).filter((one) => one.isRefused)).toHaveLength(isStored ? 1 : 0);
});

test("a loss of the script that reads entropies or the reference is known", () => {
  const losses = { mine: tokenLoss("mine", ["entropy", "referenceLogprob"], () => ({ loss: 0, slope: 0 })) };
  const script = { ...plainScript, losses };
  const check = (...overrides: string[]) =>
    checkSettings(composeConfig({ overrides: ["rllm.algorithm.loss_fn=mine", ...overrides] }), { script });
  expect(check("rllm.algorithm.reference_model=./other").warnings).toEqual([]);
  expect(() => check(onTinker)).toThrow("it requires entropies; only the local and verl backends support it");
});

test("all missing values are reported at once", () => {
  const composed = composeConfig({
    overrides: ["rllm/backend=verl", "actor_rollout_ref.actor.strategy=???", "trainer.device=???"],
  });
  expect(() => requireValues(composed)).toThrow(
    /^2 required values are missing:\n {2}actor_rollout_ref\.actor\.strategy \(command line: .*\n {2}trainer\.device \(command line: trainer\.device=\?\?\?\)$/,
  );
  expect(() => composeConfig({ overrides: ["training.eps=???", "rllm.rollout.n=???"] })).toThrow(
    /rllm\.rollout\.n is \?\?\?[\s\S]*training\.eps is \?\?\?/,
  );
});

test("unknown sampling parameters are refused like any other unsupported key", () => {
  expect(found("+rllm.rollout.train.presence_penalty=0.5")).toEqual([
    "rllm.rollout.train.presence_penalty=0.5: this sampling parameter is not supported yet",
  ]);
});

test("on a machine with a GPU, verl's rollout servers read their settings", () => {
  const folder = temporaryFolder("gpu");
  writeFileSync(join(folder, "nvidia-smi"), "");
  vi.stubEnv("PATH", folder);
  try {
    expect(found(onVerl, "actor_rollout_ref.rollout.gpu_memory_utilization=0.3")).toEqual([]);
  } finally {
    vi.unstubAllEnvs();
  }
});
