/** `distillation` on the verl backend, whose own tree has a section of this name. */
import { expect, test } from "vitest";
import { checkSettings } from "../../../support/check-support.ts";
import { composeConfig } from "../../compose.ts";

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
