/** The rules in LightRFT's documentation: impossible settings are mistakes, doubtful ones are warnings. */
import type { Mistake } from "../tree/node.ts";
import type { ConfigWarning } from "../warnings.ts";
import type { ParsedFlags } from "./parse-flags.ts";

export interface World {
  /** Number of processes, one per GPU. */
  processes: number;
  /** Where the number was set: `"WORLD_SIZE"`, `"local.processes"`; undefined if it was not set. */
  source: string | undefined;
}

/**
 * LightRFT has no flag for the number of processes. If neither the environment nor the overrides set it, it is the
 * minimum that the flags allow.
 */
export function findWorld({ values }: ParsedFlags, given: World | undefined): World {
  return given ?? { processes: leastCommonMultiple(values.engine_tp_size, values.sp_size), source: undefined };
}

export function checkRules({ values, given }: ParsedFlags, world: World, mistakes: Mistake[]): ConfigWarning[] {
  const {
    train_batch_size: batch,
    rollout_batch_size: prompts,
    n_samples_per_prompt: samples,
    micro_train_batch_size: micro,
  } = values;
  const { processes } = world;
  const count = world.source === undefined ? `${processes} processes` : `${processes} processes (${world.source})`;
  const mistake = (name: keyof typeof values, message: string) =>
    mistakes.push({ where: given.get(name) ?? `--${name} ${values[name]}`, message });

  if (batch % (micro * processes) !== 0) {
    const parts = `--micro_train_batch_size ${micro} x ${count}`;
    mistake("train_batch_size", `${batch} samples are not divisible by ${parts}`);
  }
  if (prompts % processes !== 0) mistake("rollout_batch_size", `${prompts} prompts are not divisible by ${count}`);
  if (processes % values.engine_tp_size !== 0) {
    mistake("engine_tp_size", `${count} cannot be divided into groups of ${values.engine_tp_size}`);
  }
  if (processes % values.sp_size !== 0) {
    mistake("sp_size", `${count} cannot be divided into groups of ${values.sp_size}`);
  }
  if (!["reinforce", "cpgd", "gae"].includes(values.advantage_estimator) && samples < 2) {
    mistake(
      "n_samples_per_prompt",
      `${values.advantage_estimator} compares the samples of a prompt, so set at least 2`,
    );
  }

  const warnings: ConfigWarning[] = [];
  const warn = (paths: string[], text: string) => warnings.push({ category: "conflict", paths, text });
  const all = prompts * samples;
  if (batch < all) {
    const steps = Math.ceil(all / batch);
    warn(
      ["--train_batch_size", "--rollout_batch_size"],
      `--train_batch_size ${batch} is below --rollout_batch_size ${prompts} x --n_samples_per_prompt ${samples} = ${all}: ` +
        `each rollout trains ${all} samples in ${steps} optimizer steps${all % batch === 0 ? "" : ` of about ${Math.round(all / steps)}`}`,
    );
  } else if (batch > all) {
    warn(
      ["--train_batch_size", "--rollout_batch_size"],
      `--train_batch_size ${batch} is above the ${all} samples of a rollout: each rollout is one optimizer step of ${all} samples`,
    );
  }
  if (values.actor_learning_rate >= values.critic_learning_rate) {
    warn(
      ["--actor_learning_rate", "--critic_learning_rate"],
      `--actor_learning_rate ${values.actor_learning_rate} is not below --critic_learning_rate ` +
        `${values.critic_learning_rate}: a critic usually needs a higher learning rate than the policy`,
    );
  }
  if (given.has("kl_target") && values.kl_target !== 0 && (values.kl_target < 0.001 || values.kl_target > 0.01)) {
    warn(
      ["--kl_target", "--init_kl_coef"],
      `--kl_target ${values.kl_target} is outside the range 0.001 to 0.01, in which training is known to be stable`,
    );
  }
  return warnings;
}

function leastCommonMultiple(left: number, right: number): number {
  let [divisor, rest] = [left, right];
  while (rest !== 0) [divisor, rest] = [rest, divisor % rest];
  return (left / divisor) * right;
}
