/** Composes the configuration of a command that loads a model without an experiment. */
import { type ComposedConfig, composeConfig } from "../config/compose.ts";
import { printWarnings } from "../config/warnings.ts";
import { checkSettings } from "../support/check-support.ts";
import type { OpenCheckpoint } from "../trainer/checkpoints/open-checkpoint.ts";

/**
 * @param checkpoint its run's configuration comes first
 * @throws UserError for missing values and for settings that the backend does not support, as `hone train` does
 */
export function composeSupported(overrides: readonly string[], checkpoint?: OpenCheckpoint): ComposedConfig {
  const composed = composeConfig({ input: checkpoint?.config ?? {}, overrides });
  // The run's own estimators and losses are registered by its script, which is not loaded here.
  const { adv_estimator = [], loss_fn, estimator_map = {}, loss_fn_map = {} } = checkpoint?.config.rllm.algorithm ?? {};
  const registered = [adv_estimator, loss_fn ?? [], Object.values(estimator_map), Object.values(loss_fn_map)].flat(2);
  const checked = checkSettings(composed, { registered, trains: false });
  printWarnings(checked.warnings);
  return checked.composed;
}
