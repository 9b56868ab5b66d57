import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { checkSettings } from "../rules/check.ts";
import { temporaryFolder, testFolder } from "../temporary-folder.fixture.ts";
import { type ComposedConfig, composeConfig } from "./compose.ts";
import { forwardedKeys, type KeyPair, sharedKeys } from "./synonyms.ts";
import { originText, valueAt } from "./tree.ts";
import { olderVerlNames } from "./verl-keys.ts";
import { toYaml } from "./yaml.ts";

/** Two values of a key that are not its default. */
function values([, rllm]: KeyPair): [string, string] {
  const leaf = rllm.split(".").at(-1)!;
  if (["val_before_train", "norm_adv_by_std_in_grpo", "val_only", "bypass_mode"].includes(leaf))
    return ["true", "false"];
  if (/^(disable_thinking|accumulate_reasoning|enable)$/.test(leaf)) return ["true", "false"];
  const words: Record<string, [string, string]> = {
    adv_estimator: ["rloo", "reinforce"],
    tis_mode: ["token", "sequence"],
    loss_fn: ["gspo", "gpg"],
    loss_agg_mode: ["seq-mean-token-sum", "seq-mean-token-mean"],
    logger: ["[wandb]", "[tensorboard]"],
    lr_schedule: ["cosine", "linear"],
    project_name: ["p1", "p2"],
    experiment_name: ["e1", "e2"],
    model: ["./one", "./two"],
  };
  if (words[leaf] !== undefined) return words[leaf];
  return /temperature|top_p|min_p|ratio|eps_|kl_beta|tis_cap/.test(leaf) ? ["0.25", "0.5"] : ["17", "18"];
}

const said = ({ warnings }: ComposedConfig) => warnings.map(({ category, paths }) => [category, ...paths]);

const tables = [
  ["verl", [...sharedKeys.filter(([native]) => native.startsWith("data.")), ...olderVerlNames]],
  ["tinker", sharedKeys],
] as const;

for (const [backend, keys] of tables) {
  const compose = (...overrides: string[]) => composeConfig({ overrides: [`rllm/backend=${backend}`, ...overrides] });

  test.each(keys)(`${backend}: %s and %s get the same value, whichever was set`, (native, rllm) => {
    const [one, other] = values([native, rllm]);
    const both = (composed: ComposedConfig) => [native, rllm].map((path) => valueAt(composed.tree, path));
    const common = compose(`${rllm}=${one}`);
    const [value] = both(common);
    expect(both(common)).toEqual([value, value]);
    expect(said(common)).toEqual([]);

    const own = compose(`${native}=${one}`);
    expect(both(own)).toEqual([value, value]);
    const isOlder = olderVerlNames.some(([older]) => older === native);
    const deprecated = isOlder ? [["deprecated_native", native, rllm]] : [];
    expect(said(own)).toEqual(deprecated);
    expect(originText(own.origins.get(rllm)!)).toBe(`synced from ${native} (command line: ${native}=${one})`);

    const conflict = compose(`${native}=${other}`, `${rllm}=${one}`);
    expect(both(conflict)).toEqual([value, value]);
    expect(said(conflict)).toEqual([["conflict", native, rllm]]);

    const same = compose(`${native}=${one}`, `${rllm}=${one}`);
    expect(said(same)).toEqual(deprecated);
  });
}

test.each(forwardedKeys)("%s is forwarded to %s, which wins if it is set", (from, to) => {
  const overrides = ["rllm/backend=tinker", `${from}=4`];
  const forwarded = composeConfig({ overrides });
  expect([from, to].map((path) => valueAt(forwarded.tree, path))).toEqual([4, 4]);
  expect(originText(forwarded.origins.get(to)!)).toBe(`forwarded from ${from} (command line: ${from}=4)`);
  const both = composeConfig({ overrides: [...overrides, `${to}=5`] });
  expect([from, to].map((path) => valueAt(both.tree, path))).toEqual([4, 5]);
  expect(said(both)).toEqual([["conflict", from, to]]);
});

test("a mistake in verl's name of a key is reported where it was set", () => {
  const overrides = ["rllm/backend=verl", "actor_rollout_ref.actor.optim.lr=x"];
  expect(() => composeConfig({ overrides })).toThrow(
    'actor_rollout_ref.actor.optim.lr=x: training.learning_rate expects number >= 0, got "x"',
  );
});

test("a later layer wins under either name", () => {
  const input = { data: { train_batch_size: 16 }, rllm: { trainer: { total_epochs: 2 } } };
  const composed = composeConfig({ input, overrides: ["rllm.data.train_batch_size=8"] });
  expect(composed.config.data.train_batch_size).toBe(8);
  expect(composed.warnings).toEqual([]);
  const verl = composeConfig({ input, overrides: ["rllm/backend=verl", "trainer.total_epochs=3"] });
  expect(verl.config.rllm.trainer.total_epochs).toBe(3);
});

test.each([
  ["total_batches=0", ["rllm.trainer.total_batches=0"], { "trainer.total_training_steps": null }],
  ["total_batches=null", ["rllm.trainer.total_batches=null"], { "trainer.total_training_steps": null }],
  ["verl's null", ["trainer.total_training_steps=null"], { "rllm.trainer.total_batches": -1 }],
  ["kl_beta turns the KL on", ["rllm.algorithm.kl_beta=0.01"], { "actor_rollout_ref.actor.use_kl_loss": true }],
  [
    "unless the flag was set",
    ["rllm.algorithm.kl_beta=0.01", "actor_rollout_ref.actor.use_kl_loss=false"],
    { "actor_rollout_ref.actor.use_kl_loss": false },
  ],
  [
    "eps_clip sets both bounds",
    ["rllm.algorithm.eps_clip=0.1"],
    { "actor_rollout_ref.actor.clip_ratio_low": 0.1, "actor_rollout_ref.actor.clip_ratio_high": 0.1 },
  ],
  [
    "clip_ratio alone sets both bounds",
    ["actor_rollout_ref.actor.clip_ratio=0.1"],
    { "actor_rollout_ref.actor.clip_ratio_low": 0.1, "rllm.algorithm.eps_clip": 0.1 },
  ],
  [
    "one length",
    ["data.max_response_length=400"],
    { "actor_rollout_ref.rollout.response_length": 400, "rllm.rollout.val.max_tokens": 400 },
  ],
  ["a bare ~key", ["~rllm.algorithm.kl_beta"], { "actor_rollout_ref.actor.kl_loss_coef": 0.001 }],
  [
    "megatron's schedule",
    ["model_engine=megatron", "rllm.algorithm.lr_schedule=cosine"],
    { "actor_rollout_ref.actor.optim.lr_decay_style": "cosine" },
  ],
])("verl: %s", (_, overrides, expected) => {
  const { tree } = composeConfig({ overrides: ["rllm/backend=verl", ...overrides] });
  expect(Object.fromEntries(Object.keys(expected).map((path) => [path, valueAt(tree, path)]))).toEqual(expected);
});

test("older values of resume_mode, and resume_from_tinker_id", () => {
  const of = (...overrides: string[]) => composeConfig({ overrides }).config.training;
  expect(() => of("training.resume_from_tinker_id=abc")).toThrow(
    'training.resume_from_tinker_id expects tinker://RUN/weights/NAME or null, got "abc"',
  );
  expect(of("training.resume_mode=disable").resume_mode).toBe("off");
  expect(of("training.resume_mode=resume_path", "training.resume_from_path=x")).toMatchObject({ resume_mode: "path" });
  expect(of("training.resume_from_tinker_id=tinker://a/weights/b")).toMatchObject({
    resume_mode: "path",
    resume_from_path: "tinker://a/weights/b",
  });
});

test("a saved configuration, which has both names, does not warn", () => {
  const input = { data: { train_batch_size: 16, max_prompt_length: 128 } };
  const first = composeConfig({ input, overrides: ["rllm/backend=tinker"] });
  const kept = join(testFolder("sync"), "config.yaml");
  writeFileSync(kept, toYaml(first.tree, first.origins));
  expect(composeConfig({ input, files: [kept], overrides: ["rllm.trainer.run_dir=here"] }).warnings).toEqual([]);
});

test.each([
  [[]],
  [["rllm.algorithm.kl_beta=0.01", "actor_rollout_ref.actor.clip_ratio=0.3"]],
  [["actor_rollout_ref.actor.use_kl_loss=true", "rllm.trainer.total_batches=8", "rllm.algorithm.clip_ratio_c=2"]],
])("a saved configuration of verl composes to the same one: %j", (overrides) => {
  const first = composeConfig({
    overrides: ["rllm/backend=verl", "model={name: a/b, lora_rank: 4}", "training.ppo_epochs=2", ...overrides],
  });
  const kept = join(temporaryFolder("kept"), "config.yaml");
  writeFileSync(kept, toYaml(first.stored, first.origins, { unresolved: true }));
  const again = composeConfig({ files: [kept] });
  expect(again.tree).toEqual(first.tree);
  expect(checkSettings(again).warnings).toEqual([]);
});

test("the stored configuration of verl has every common key that verl's tree does not change", () => {
  const { stored } = composeConfig({ overrides: ["rllm/backend=verl"] });
  const shown = ["kl_beta", "eps_clip", "lr_schedule"].map((key) => valueAt(stored, `rllm.algorithm.${key}`));
  expect([...shown, valueAt(stored, "rllm.trainer.total_batches")]).toEqual([0, 0.2, "constant", -1]);
});

const traces = "~/.rllm/traces.db";

test.each<[string[], string]>([
  [[], "memory"],
  [[`rllm.sdk.store.path='${traces}'`], "sqlite"],
  [["rllm.sdk.store.path=a.db"], "sqlite"],
  [["rllm.gateway.db_path=a.db"], "sqlite"],
  [["rllm.gateway.db_path=null"], "memory"],
  [[`rllm.sdk.store.path='${traces}'`, "rllm.gateway.store=memory"], "memory"],
])("an explicit path of the trace database enables traces: %j", (overrides, expected) => {
  expect(composeConfig({ overrides }).config.rllm.gateway.store).toBe(expected);
});

test("a saved configuration keeps traces as they were, unless the command line sets the path", () => {
  const saved = { rllm: { sdk: { store: { path: traces } }, gateway: { store: "memory" as const } } };
  const storeOf = (...overrides: string[]) => composeConfig({ input: saved, overrides }).config.rllm.gateway.store;
  expect(storeOf()).toBe("memory");
  expect(storeOf(`rllm.sdk.store.path='${traces}'`)).toBe("sqlite");
});

/** `distillation` on the verl backend, whose own tree has a section of this name. */

const onVerl = (...overrides: string[]) => composeConfig({ overrides: ["rllm/backend=verl", ...overrides] });
const script = { estimators: {}, losses: {}, tasks: 1000, validation: undefined };
const served = '+distillation.teacher_models.strong={base_url: "http://localhost:1"}';

test("has the defaults and the keys of every backend", () => {
  const local = composeConfig({ overrides: [] });
  expect(onVerl().config.distillation).toEqual(local.config.distillation);
  const { config } = onVerl("distillation.enabled=true", served);
  expect(config.distillation.teacher_models).toEqual({ strong: { base_url: "http://localhost:1" } });
});

test("an entry under the name of verl's own example has only what was set", () => {
  const named = onVerl("distillation.teacher_models.teacher_model.model_path=./teacher");
  expect(named.config.distillation.teacher_models).toEqual({ teacher_model: { model_path: "./teacher" } });
});

test.each([
  [["+distillation.teacher_models.strong.model_path=./other"], "models other than the run's own"],
  [[served, "distillation.distillation_loss.loss_mode=jsd"], "log-probabilities of other tokens than the sampled ones"],
])("%j is refused", (overrides, reason) => {
  const composed = onVerl("distillation.enabled=true", ...overrides);
  expect(() => checkSettings(composed, { script })).toThrow(reason);
});

test("a teacher on a server is accepted, also as a loss on the sampled token", () => {
  for (const mode of ["k1", "k3", "low_var_kl"]) {
    const composed = onVerl("distillation.enabled=true", served, `distillation.distillation_loss.loss_mode=${mode}`);
    expect(() => checkSettings(composed, { script })).not.toThrow();
  }
});
