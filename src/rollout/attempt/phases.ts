/** The time limits of an attempt: one for each phase, and one for all of them together. */

/** In seconds. Default: no limit. */
export interface PhaseLimits {
  /** From the stage "set-up" to the next one. */
  setUpSeconds?: number;
  /** All stages that are neither "set-up" nor "reward", model calls included. */
  runSeconds?: number;
  /** The stage "reward". */
  scoreSeconds?: number;
}

type Phase = "set-up" | "run" | "score";

const phaseOf = (stage: string): Phase => (stage === "set-up" ? "set-up" : stage === "reward" ? "score" : "run");

/** Longer timers fire at once, so longer limits are ignored. */
const longestTimerMs = 2 ** 31 - 1;

export interface Phases {
  enter(stage: string): void;
  end(): void;
}

/** @param onTimeUp called once, with the limit that was reached */
export function startPhases(
  { setUpSeconds, runSeconds, scoreSeconds, totalSeconds }: PhaseLimits & { totalSeconds: number },
  onTimeUp: (message: string) => void,
): Phases {
  const left: Record<Phase, number> = {
    "set-up": (setUpSeconds ?? Number.POSITIVE_INFINITY) * 1000,
    run: (runSeconds ?? Number.POSITIVE_INFINITY) * 1000,
    score: (scoreSeconds ?? Number.POSITIVE_INFINITY) * 1000,
  };
  const limit = { "set-up": setUpSeconds, run: runSeconds, score: scoreSeconds };
  const words = { "set-up": "its set-up", run: "its run", score: "its reward" };
  const total = startTimer(totalSeconds * 1000, () => onTimeUp(`the attempt took longer than ${totalSeconds} s`));
  let phase: Phase = "run";
  let since = performance.now();
  let timer: NodeJS.Timeout | undefined;

  const enter = (next: Phase) => {
    const now = performance.now();
    left[phase] -= now - since;
    since = now;
    phase = next;
    clearTimeout(timer);
    timer = startTimer(left[next], () => onTimeUp(`${words[next]} took longer than ${limit[next]} s`));
  };
  enter("run");
  return {
    enter: (stage) => {
      if (phaseOf(stage) !== phase) enter(phaseOf(stage));
    },
    end() {
      clearTimeout(timer);
      clearTimeout(total);
    },
  };
}

const startTimer = (milliseconds: number, onTimeUp: () => void) =>
  milliseconds <= longestTimerMs ? setTimeout(onTimeUp, Math.max(0, milliseconds)) : undefined;
