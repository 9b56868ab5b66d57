/** What a trial's end means: a reward, or whose failure it was. */
import { RolloutEnded } from "../agents/control-flow.ts";
import type { GatewayCalls, Outcome } from "../agents/types.ts";
import { RunError, UserError } from "../errors.ts";
import type { TrialEvent, TrialResult } from "./bridge.ts";
import type { Trial } from "./run-trial.ts";

/**
 * An agent may swallow failed calls and exit with code 0; then the verifier's 0 is not due to the model.
 * @throws the failed call; RunError if no call was answered
 */
export function checkCalls({ answered, failure }: GatewayCalls, address: string, outOfBudget: boolean): void {
  if (failure && !outOfBudget && !(failure instanceof RolloutEnded)) throw failure;
  if (answered > 0) return;
  throw new RunError(`the agent ended without a reply from the model at ${address}`, {
    hint: "check that the agent uses this address, and that its container can reach it",
  });
}

/**
 * The reward of a finished trial; unknown if the verifier failed, which an agent can bring about.
 * @throws RunError if the container or Harbor failed; Error in the agent's stage if the agent did
 */
export function toOutcome(
  { result, verifierOutput, files }: Trial,
  seen: ReadonlySet<TrialEvent>,
  stage: (name: string) => void,
): Outcome {
  const { exception_info: exception, failure_cause: cause } = result;
  const what = exception && `${exception.exception_type}: ${exception.exception_message}`;
  switch (cause) {
    case null:
    case "agent_exhausted_budget":
    case "agent_refused_task":
      break;
    case "model_provider_failed":
      // The gateway knows why the call failed; the rollout finds it there.
      stage("agent");
      throw new Error(`the agent's model call failed: ${what}`);
    case "verifier_failed":
      break;
    case "unclassified":
      if (seen.has("agent-start") && !isOfVerifier(result, seen)) {
        stage("agent");
        throw new Error(`the agent failed: ${what}`);
      }
      throw diskOr(`the trial failed: ${what}`);
    default:
      throw diskOr(`the sandbox failed (${cause}): ${what}`);
  }
  const names = Object.keys(result.verifier_result?.rewards ?? {});
  const failed = cause === "verifier_failed" || names.length === 0;
  const timedOut = cause === "agent_exhausted_budget";
  const { metrics, ...graded } = failed ? { reward: null, metrics: {} } : rewardOf(result, names);
  const lines = [
    failed ? `the verifier failed: ${what ?? "it gave no reward"}` : timedOut ? `${what}.` : "",
    verifierOutput.trim(),
  ].filter(Boolean);
  return {
    ...graded,
    metrics: { ...metrics, agent_out_of_budget: Number(timedOut), verifier_failed: Number(failed) },
    ...(lines.length > 0 ? { explanation: lines.join("\n") } : {}),
    trial: { files, verifier: verifierOutput },
  };
}

/** An error after the agent's end that is not the agent's exit code. */
const isOfVerifier = ({ exception_info: exception }: TrialResult, seen: ReadonlySet<TrialEvent>) =>
  seen.has("agent-end") && exception?.exception_type !== "NonZeroAgentExitCodeError";

const diskOr = (message: string) =>
  new RunError(message, /no space left/i.test(message) ? { hint: "the disk is full; free some space" } : {});

function rewardOf({ verifier_result: verified }: TrialResult, names: string[]) {
  const rewards = verified?.rewards ?? {};
  const { reward = names.length === 1 ? rewards[names[0] ?? ""] : undefined, ...others } = rewards;
  if (reward !== undefined) return { reward, correct: reward >= 1, metrics: names.length === 1 ? {} : others };
  throw new UserError(`the verifier gave the rewards ${names.join(", ")}, but none is named "reward"`, {
    hint: 'write one number, or one of the keys of reward.json as "reward"; the others become metrics',
  });
}
