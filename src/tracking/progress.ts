/** Where a run stands, folded from its events: what the live line and the summary show. Pure but for the clock handed in. */
import type { RunEvent } from "./events.ts";
import { stepSummary } from "./step-summary.ts";

export interface Progress {
  totalSteps: number;
  /** Steps done, those before a resume included. */
  stepsDone: number;
  /** Steps done by this process. */
  stepsHere: number;
  /** What it is busy with: a status text, or "sampling", "training", "validating". */
  phase: string;
  /** Of the phase; total 0 when it has no count. */
  done: number;
  total: number;
  /** Tokens sampled in this phase. */
  tokens: number;
  phaseStart: number;
  stepStart: number;
  runStart: number;
  /** Reward of each finished step, oldest first; NaN where a step had none. */
  rewards: number[];
  /** Seconds of the last steps that this process finished, and the share of the last one that was sampling. */
  seconds: number[];
  samplingShare: number;
  tokensPerSecond: number | undefined;
  /** Tokens sampled by this process in all. */
  allTokens: number;
  /** The latest validation, and the first, by metric. */
  validation: { first: Record<string, number>; last: Record<string, number> } | undefined;
}

/** @param now seconds on any steady clock, the same for all calls */
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

/** Changes `progress` by what the event says. */
export function advance(progress: Progress, event: RunEvent, now: number): void {
  switch (event.type) {
    case "run-start": {
      const { totalSteps, step } = event;
      const rewards = Array.from(event.history, ({ metrics }) => stepSummary(metrics).reward ?? Number.NaN);
      Object.assign(progress, { totalSteps, stepsDone: step, rewards, runStart: now, stepStart: now });
      break;
    }
    case "setup-status":
      enter(progress, event.text, now);
      break;
    case "rollout-progress":
      // A validation samples too, and stays a validation.
      if (progress.phase !== "validating") enter(progress, "sampling", now);
      progress.allTokens += event.tokens - (event.tokens < progress.tokens ? 0 : progress.tokens);
      Object.assign(progress, { done: event.done, total: event.total, tokens: event.tokens });
      break;
    case "update-progress":
      enter(progress, "training", now);
      Object.assign(progress, { done: event.done, total: event.total });
      break;
    case "validation-start":
      enter(progress, "validating", now);
      break;
    case "validation-end": {
      const last = { ...event.metrics };
      progress.validation = { first: progress.validation?.first ?? last, last };
      enter(progress, "", now);
      break;
    }
    case "step-end": {
      const { reward, sampling, tokensPerSecond } = stepSummary(event.metrics);
      progress.rewards.push(reward ?? Number.NaN);
      progress.seconds = [...progress.seconds, event.seconds].slice(-5);
      if (sampling !== undefined && event.seconds > 0) progress.samplingShare = Math.min(1, sampling / event.seconds);
      progress.tokensPerSecond = tokensPerSecond ?? progress.tokensPerSecond;
      Object.assign(progress, {
        totalSteps: event.total,
        stepsDone: event.step,
        stepsHere: progress.stepsHere + 1,
        stepStart: now,
      });
      enter(progress, "", now);
      break;
    }
    default:
      break;
  }
}

function enter(progress: Progress, phase: string, now: number): void {
  if (progress.phase === phase) return;
  Object.assign(progress, { phase, done: 0, total: 0, tokens: 0, phaseStart: now });
}

/** The share of the run that is done, the step under way included, 0..1. */
export function fractionDone(progress: Progress): number {
  const { totalSteps, stepsDone, samplingShare, phase, done, total } = progress;
  const part = total > 0 ? done / total : 0;
  const within =
    phase === "sampling" ? part * samplingShare : phase === "training" ? samplingShare + part * (1 - samplingShare) : 0;
  return totalSteps > 0 ? Math.min(1, (stepsDone + within) / totalSteps) : 0;
}

/**
 * Seconds until the last step is done: by the median of the latest steps, or before the first is done by the part of it
 * that is (`rough`). Undefined before a quarter of the first step's rollouts have ended.
 */
export function timeLeft(progress: Progress, now: number): { seconds: number; rough: boolean } | undefined {
  const recent = progress.seconds.slice(-5).sort((left, right) => left - right);
  const median = recent[Math.floor(recent.length / 2)];
  const step = median ?? firstStepSeconds(progress, now);
  if (step === undefined) return undefined;
  const begun = Math.min(step, Math.max(0, now - progress.stepStart));
  const seconds = Math.max(0, step * (progress.totalSteps - progress.stepsDone) - begun);
  return { seconds, rough: median === undefined };
}

/** Until it is known how the time divides, training is taken to need as long as sampling. */
function firstStepSeconds(progress: Progress, now: number): number | undefined {
  const { phase, done, total, phaseStart, stepStart, samplingShare } = progress;
  const part = total > 0 ? done / total : 0;
  if (part < 0.25 || now === phaseStart) return undefined;
  const whole = (now - phaseStart) / part;
  if (phase === "sampling") return whole / samplingShare;
  return phase === "training" ? phaseStart - stepStart + whole : undefined;
}
