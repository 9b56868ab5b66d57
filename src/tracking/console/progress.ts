/** How far a run is: a state that each event advances. The live line and the summary show it. */
import type { Metrics, RunEvent } from "../events.ts";
import { stepSummary } from "../step-summary.ts";

export interface Progress {
  totalSteps: number;
  /** Includes the steps before a resume. */
  stepsDone: number;
  /** Steps done by this process. */
  stepsHere: number;
  /** What the run is doing: a status text, or "sampling", "training", "validating". */
  phase: string;
  /** How far the phase is; total is 0 if the phase has no count. */
  done: number;
  total: number;
  /** Tokens sampled in this phase. */
  tokens: number;
  phaseStart: number;
  stepStart: number;
  runStart: number;
  /** Reward of each finished step, oldest first; NaN if the step has none. */
  rewards: number[];
  /** Seconds of each of the last five steps of this process. */
  seconds: number[];
  /** The share of sampling in the time of the last step. */
  samplingShare: number;
  tokensPerSecond: number | undefined;
  /** Tokens sampled by this process. */
  allTokens: number;
  validation: { first: Metrics; last: Metrics } | undefined;
}

/** @param now seconds on a steady clock, the same in all calls */
export function newProgress(now: number): Progress {
  return {
    totalSteps: 0,
    stepsDone: 0,
    stepsHere: 0,
    phase: "",
    done: 0,
    total: 0,
    tokens: 0,
    phaseStart: now,
    stepStart: now,
    runStart: now,
    rewards: [],
    seconds: [],
    samplingShare: 0.5,
    tokensPerSecond: undefined,
    allTokens: 0,
    validation: undefined,
  };
}

/** Changes `progress` according to the event. */
export function advance(progress: Progress, event: RunEvent, now: number): void {
  switch (event.type) {
    case "run-start":
      progress.totalSteps = event.totalSteps;
      progress.stepsDone = event.step;
      progress.rewards = Array.from(event.history, ({ metrics }) => stepSummary(metrics).reward ?? Number.NaN);
      progress.runStart = now;
      progress.stepStart = now;
      break;
    case "setup-status":
      enter(progress, event.text, now);
      break;
    case "rollout-progress":
      // The rollouts of a validation leave the phase as it is.
      if (progress.phase !== "validating") enter(progress, "sampling", now);
      progress.allTokens += event.tokens - (event.tokens < progress.tokens ? 0 : progress.tokens);
      progress.tokens = event.tokens;
      progress.done = event.done;
      progress.total = event.total;
      break;
    case "update-progress":
      enter(progress, "training", now);
      progress.done = event.done;
      progress.total = event.total;
      break;
    case "validation-start":
      enter(progress, "validating", now);
      break;
    case "validation-end":
      progress.validation = { first: progress.validation?.first ?? event.metrics, last: event.metrics };
      enter(progress, "", now);
      break;
    case "step-end": {
      const { reward, sampling, tokensPerSecond } = stepSummary(event.metrics);
      progress.rewards.push(reward ?? Number.NaN);
      progress.seconds = [...progress.seconds, event.seconds].slice(-5);
      if (sampling !== undefined && event.seconds > 0) progress.samplingShare = Math.min(1, sampling / event.seconds);
      progress.tokensPerSecond = tokensPerSecond ?? progress.tokensPerSecond;
      progress.totalSteps = event.total;
      progress.stepsDone = event.step;
      progress.stepsHere++;
      progress.stepStart = now;
      enter(progress, "", now);
      break;
    }
  }
}

function enter(progress: Progress, phase: string, now: number): void {
  if (progress.phase === phase) return;
  progress.phase = phase;
  progress.phaseStart = now;
  progress.done = 0;
  progress.total = 0;
  progress.tokens = 0;
}

const phaseShare = ({ done, total }: Progress) => (total > 0 ? done / total : 0);

/** The share of the run that is done, including the current step, 0..1. */
export function fractionDone(progress: Progress): number {
  const { totalSteps, stepsDone, samplingShare, phase } = progress;
  let ofStep = 0;
  if (phase === "sampling") ofStep = phaseShare(progress) * samplingShare;
  if (phase === "training") ofStep = samplingShare + phaseShare(progress) * (1 - samplingShare);
  return totalSteps > 0 ? Math.min(1, (stepsDone + ofStep) / totalSteps) : 0;
}

/**
 * Seconds until the last step is done, from the median of the latest steps. In the first step from its sampling and the
 * part of its training that is done (`rough`), once that is a quarter; undefined before.
 */
export function timeLeft(progress: Progress, now: number): { seconds: number; rough: boolean } | undefined {
  const recent = [...progress.seconds].sort((left, right) => left - right);
  const median = recent[Math.floor(recent.length / 2)];
  const step = median ?? firstStepSeconds(progress, now);
  if (step === undefined) return undefined;
  const ofStep = Math.min(step, Math.max(0, now - progress.stepStart));
  const seconds = Math.max(0, step * (progress.totalSteps - progress.stepsDone) - ofStep);
  return { seconds, rough: median === undefined };
}

/** Rollouts run side by side, so the first that are done do not tell how long the others take. */
function firstStepSeconds(progress: Progress, now: number): number | undefined {
  const { phase, phaseStart, stepStart } = progress;
  const part = phaseShare(progress);
  if (phase !== "training" || part < 0.25) return undefined;
  return phaseStart - stepStart + (now - phaseStart) / part;
}
