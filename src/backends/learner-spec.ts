/** Which learners an engine can create, and which outputs they have. Shared by the engines. */
import type { Outputs } from "../algorithms/types.ts";
import { UserError } from "../errors.ts";
import type { Capabilities, LearnerSpec } from "./engine.ts";

/** @throws UserError when a critic is asked for anything but values, or a policy for values */
export function requireFitting({ head }: LearnerSpec, { entropy, values }: Outputs): void {
  if (head === "value") {
    if (values && !entropy) return;
    throw new UserError("a critic computes only values", { hint: "request { values: true }" });
  }
  if (!values) return;
  throw new UserError("this policy has no value head, so it cannot compute values", {
    hint: 'create a critic in addition: createLearner({ adapter, head: "value" })',
  });
}

/** @throws UserError when the engine does not declare such learners */
export function requireCreatable({ engine, otherModels, outputs }: Capabilities, { model, head }: LearnerSpec): void {
  if (model !== undefined && !otherModels) {
    throw new UserError(`the ${engine} engine has one model and cannot load "${model}" as well`, {
      hint: "use the run's own model",
    });
  }
  if (head === "value" && !outputs.includes("values")) {
    throw new UserError(`the ${engine} engine has no critics: it cannot add a value head`, {
      hint: "rllm/backend=local, or an estimator without a critic, e.g. rllm.algorithm.adv_estimator=rloo",
    });
  }
}
