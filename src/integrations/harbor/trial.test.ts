/** What the end of a trial means, for each cause that Harbor reports. */
import { expect, test } from "vitest";
import { ModelCallError, RolloutEnded } from "../../agents/types.ts";
import { RunError, UserError } from "../../base/errors.ts";
import { AnswerError } from "../../base/resident.ts";
import { checkCalls, type TrialEvent, type TrialResult, toOutcome, toTrialFailure } from "./trial.ts";

const whole: TrialEvent[] = ["environment-start", "agent-start", "agent-end", "verification-start"];

function end(result: Partial<TrialResult>, events = whole, verifierOutput = "") {
  const stages: string[] = [];
  const complete = { verifier_result: null, exception_info: null, failure_cause: null, reward_valid: true, ...result };
  const outcome = () =>
    toOutcome({ result: complete, verifierOutput, files: [] }, new Set(events), (name) => stages.push(name));
  return { outcome, stages };
}
const rewards = (given: Record<string, number>) => ({ verifier_result: { rewards: given } });
const failed = (failure_cause: string, exception_type: string, more: Partial<TrialResult> = {}) => ({
  ...{ failure_cause, exception_info: { exception_type, exception_message: "why" }, reward_valid: false, ...more },
});

test("the key reward is the reward, or the only key; others are metrics", () => {
  expect(end(rewards({ reward: 0.5, tests: 3 }), whole, "3 of 6\n").outcome()).toEqual({
    ...{
      reward: 0.5,
      correct: false,
      metrics: { tests: 3, agent_out_of_budget: 0, verifier_failed: 0 },
      explanation: "3 of 6",
    },
    trial: { files: [], verifier: "3 of 6\n" },
  });
  expect(end(rewards({ accuracy: 1 })).outcome()).toMatchObject({ reward: 1, correct: true });
  expect(end(rewards({ a: 1, b: 0 })).outcome).toThrow(UserError);
});

test("an agent that ran out of time keeps its reward", () => {
  const result = { ...failed("agent_exhausted_budget", "AgentTimeoutError"), ...rewards({ reward: 1 }) };
  expect(end(result).outcome()).toMatchObject({ reward: 1, metrics: { agent_out_of_budget: 1 } });
});

test.each([
  ["sandbox_failed", "EnvironmentStartTimeoutError", whole.slice(0, 1), RunError, []],
  ["harbor_failed", "MissingExtraError", [], RunError, []],
  ["cancelled", "CancelledError", whole, RunError, []],
  // A failed build, and an error of the verifier's copy of files.
  ["unclassified", "RuntimeError", whole.slice(0, 1), RunError, []],
  ["unclassified", "RuntimeError", whole, RunError, []],
  ["unclassified", "NonZeroAgentExitCodeError", whole, Error, ["agent"]],
  ["unclassified", "ValueError", whole.slice(0, 2), Error, ["agent"]],
  ["model_provider_failed", "ApiError", whole, Error, ["agent"]],
] as const)("%s by %s after %j", (cause, type, events, kind, stages) => {
  // A reward that was measured after a failure does not count.
  const trial = end(failed(cause, type, rewards({ reward: 1 })), [...events]);
  expect(trial.outcome).toThrow(kind);
  if (kind === Error) expect(trial.outcome).not.toThrow(RunError);
  expect([...new Set(trial.stages)]).toEqual(stages);
});

test("a verifier that fails leaves the reward unknown, because the agent may have broken it", () => {
  // A reward that was measured before the failure does not count.
  const failure = { ...failed("verifier_failed", "VerifierTimeoutError"), ...rewards({ reward: 1 }) };
  const counted = { reward: null, metrics: { agent_out_of_budget: 0, verifier_failed: 1 } };
  const broken = end(failure, whole, "bash: not found\n").outcome();
  expect(broken).toMatchObject({ ...counted, trial: { verifier: "bash: not found\n" } });
  expect(broken.explanation).toBe("the verifier failed: VerifierTimeoutError: why\nbash: not found");
  expect(end(rewards({})).outcome()).toMatchObject({
    ...counted,
    explanation: "the verifier failed: it gave no reward",
  });
});

test("a full disk is named, and a mistake in the configuration is not retried", () => {
  const full = failed("unclassified", "OSError", {
    exception_info: { exception_type: "OSError", exception_message: "No space left on device" },
  });
  expect(end(full, []).outcome).toThrow(expect.objectContaining({ hint: expect.stringContaining("disk is full") }));
  expect(toTrialFailure(new AnswerError("bad agent", "ValueError"))).toBeInstanceOf(UserError);
  expect(toTrialFailure(new AnswerError("no socket", "ConnectionError"))).toBeInstanceOf(RunError);
});

test("calls that failed, and an agent that exits as if nothing had happened, are not the model's failure", () => {
  const check = (calls: Parameters<typeof checkCalls>[0], outOfBudget = false) =>
    checkCalls(calls, "http://127.0.0.1:1/v1", outOfBudget);
  const failure = new ModelCallError("model call 2 failed: out of memory");
  expect(() => check({ answered: 0 })).toThrow(RunError);
  expect(() => check({ answered: 0 }, true)).toThrow(/without a reply from the model at http:..127/);
  expect(() => check({ answered: 1, failure })).toThrow(failure);
  // It was waiting for the call when its time was over; and a full context is the conversation's own limit.
  check({ answered: 1, failure }, true);
  check({ answered: 1, failure: new RolloutEnded("max_prompt_length_exceeded", "too long") });
  check({ answered: 1 });
});
