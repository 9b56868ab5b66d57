/** The rules that LightRFT's documentation names: what cannot work is a mistake, what works otherwise a warning. */
import type { Mistake } from "../node.ts";
import type { ConfigWarning } from "../warnings.ts";
import type { ParsedFlags } from "./parse-flags.ts";

export interface World {
  /** Number of processes, one a GPU. */
  processes: number;
  /** What said so: `"WORLD_SIZE"`, `"local.processes"`; undefined where nothing did. */
  source: string | undefined;
}

/**
 * Nothing on a LightRFT command line says how many processes there are. Where the environment and the overrides do not
 * either, it is the fewest that the flags allow.
 */
export function findWorld({ values }: ParsedFlags, told: World | undefined): World {
  return told ?? { processes: leastCommonMultiple(values.engine_tp_size, values.sp_size), source: undefined };
}

export function checkRules({ values, given }: ParsedFlags, world: World, mistakes: Mistake[]): ConfigWarning[] {
  const {
    train_batch_size: batch,
    rollout_batch_size: prompts,
    n_samples_per_prompt: samples,
    micro_train_batch_size: micro,
  } = values;
  const { processes } = world;
  const told = world.source === undefined ? `${processes} processes` : `${world.source}, ${processes}`;
  const mistake = (name: keyof typeof values, message: string) =>
    mistakes.push({ where: given.get(name) ?? `--${name} ${values[name]}`, message });

  if (batch % (micro * processes) !== 0) {
    const parts = `--micro_train_batch_size ${micro} x ${told}`;
    mistake("train_batch_size", `${batch} samples cannot be shared out evenly: not divisible by ${parts}`);
  }
  if (prompts % processes !== 0) mistake("rollout_batch_size", `${prompts} prompts are not divisible by ${told}`);
  if (processes % values.engine_tp_size !== 0) {
    mistake("engine_tp_size", `${told}, cannot be divided into groups of ${values.engine_tp_size}`);
  }
  if (processes % values.sp_size !== 0) {
    mistake("sp_size", `${told}, cannot be divided into groups of ${values.sp_size}`);
  }
  if (!["reinforce", "cpgd"].includes(values.advantage_estimator) && samples < 2) {
    mistake("n_samples_per_prompt", `${values.advantage_estimator} compares the samples of a prompt, so it needs 2`);
  }

  const warnings: ConfigWarning[] = [];
  const warn = (paths: string[], text: string) => warnings.push({ category: "conflict", paths, text });
  const all = prompts * samples;
  if (batch < all) {
    const steps = Math.ceil(all / batch);
    warn(
      ["--train_batch_size", "--rollout_batch_size"],
      `--train_batch_size ${batch} is below --rollout_batch_size ${prompts} x --n_samples_per_prompt ${samples} = ${all}: ` +
        `${all} samples in ${steps} optimizer steps a rollout${all % batch === 0 ? "" : ` of about ${Math.round(all / steps)}`}`,
    );
  } else if (batch > all) {
    warn(
      ["--train_batch_size", "--rollout_batch_size"],
      `--train_batch_size ${batch} is above the ${all} samples of a rollout: one optimizer step a rollout, of ${all} samples`,
    );
  }
  if (values.actor_learning_rate >= values.critic_learning_rate) {
    warn(
      ["--actor_learning_rate", "--critic_learning_rate"],
      `--actor_learning_rate ${values.actor_learning_rate} is not below --critic_learning_rate ` +
        `${values.critic_learning_rate}: a critic usually learns faster than the policy that it judges`,
    );
  }
  if (given.has("kl_target") && values.kl_target !== 0 && (values.kl_target < 0.001 || values.kl_target > 0.01)) {
    warn(
      ["--kl_target", "--init_kl_coef"],
      `--kl_target ${values.kl_target} is outside of 0.001 to 0.01, where training is known to be stable`,
    );
  }
  return warnings;
}

function leastCommonMultiple(left: number, right: number): number {
  let [divisor, rest] = [left, right];
  while (rest !== 0) [divisor, rest] = [rest, divisor % rest];
  return (left / divisor) * right;
}
