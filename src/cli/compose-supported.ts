/** Composes the configuration of a command that loads a model without an experiment. */
import { type ComposedConfig, composeConfig, prepareComposition } from "../config/compose.ts";
import { warningLine } from "../config/warnings.ts";
import { checkSettings } from "../support/check-support.ts";
import type { OpenCheckpoint } from "../trainer/checkpoints/open-checkpoint.ts";

/** `composeSupported`, after installing what has the backend's own configuration. */
export async function prepareSupported(overrides: readonly string[], checkpoint?: OpenCheckpoint) {
  await prepareComposition({ input: checkpoint?.config ?? {}, overrides });
  return composeSupported(overrides, checkpoint);
}

/**
 * @param checkpoint its run's configuration comes first
 * @throws UserError for missing values and for settings that the backend does not support, as `hone train` does
 */
export function composeSupported(overrides: readonly string[], checkpoint?: OpenCheckpoint): ComposedConfig {
  const composed = composeConfig({ input: checkpoint?.config ?? {}, overrides });
  // The run's own estimator and loss are registered by its script, which is not loaded here.
  const algorithm = checkpoint?.config.rllm.algorithm;
  const registered = {
    "rllm.algorithm.adv_estimator": algorithm ? [algorithm.adv_estimator] : [],
    "rllm.algorithm.loss_fn": algorithm?.loss_fn ? [algorithm.loss_fn] : [],
  };
  for (const warning of checkSettings(composed, { registered, trains: false })) {
    process.stderr.write(`${warningLine(warning)}\n`);
  }
  return composed;
}
