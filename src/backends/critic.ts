/** Which outputs a critic has, and which a policy. Shared by the engines that have critics. */
import type { Outputs } from "../algorithms/types.ts";
import { UserError } from "../errors.ts";
import type { LearnerSpec } from "./engine.ts";

/** @throws UserError when a critic is asked for anything but values, or a policy for values */
export function requireFitting({ head }: LearnerSpec, { entropy, values }: Outputs): void {
  if (head === "value") {
    if (values && !entropy) return;
    throw new UserError("a critic gives values and nothing else", { hint: "ask for { values: true }" });
  }
  if (!values) return;
  throw new UserError("this policy has no value head and gives no values", {
    hint: 'create a critic beside it: createLearner({ adapter, head: "value" })',
  });
}
