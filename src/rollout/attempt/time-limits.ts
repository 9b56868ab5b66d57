/** The time limits of an attempt: of each phase, of all of them together, and of each function that tears it down. */

/** In seconds. Default: no limit. */
export interface AttemptLimits {
  /** From the stage "set-up" to the next one. */
  setUpSeconds?: number;
  /** All stages that are neither "set-up" nor "reward", model calls included. */
  runSeconds?: number;
  /** The stage "reward". */
  scoreSeconds?: number;
  /** Each function that `tearDown` registered. Default 60. */
  tearDownSeconds?: number;
}

type Phase = "set-up" | "run" | "score";

const phaseOf = (stage: string): Phase => (stage === "set-up" ? "set-up" : stage === "reward" ? "score" : "run");

/** Longer timers fire at once, so longer limits are ignored. */
const longestTimerMs = 2 ** 31 - 1;

interface Phases {
  enter(stage: string): void;
  end(): void;
}

/** @param onTimeUp called once, with the limit that was reached */
export function startPhases(
  { setUpSeconds, runSeconds, scoreSeconds, totalSeconds }: AttemptLimits & { totalSeconds: number },
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

interface TearDown {
  /** After the end, `clean` runs at once. */
  register(clean: () => void | Promise<void>): void;
  /** @returns what went wrong; never throws */
  run(): Promise<string[]>;
}

/** Runs what an attempt registered for its end: in reverse order, each within the limit. */
export function createTearDown({ tearDownSeconds: seconds = 60 }: AttemptLimits = {}): TearDown {
  const registered: (() => void | Promise<void>)[] = [];
  let ended = false;
  return {
    register(clean) {
      if (ended) void attempt(clean, seconds);
      else registered.push(clean);
    },
    async run() {
      ended = true;
      const problems: string[] = [];
      for (const clean of registered.splice(0).reverse()) {
        const problem = await attempt(clean, seconds);
        if (problem !== undefined) problems.push(problem);
      }
      return problems;
    },
  };
}

async function attempt(clean: () => void | Promise<void>, seconds: number): Promise<string | undefined> {
  let timer: NodeJS.Timeout | undefined;
  const timeIsUp = new Promise<string>((resolve) => {
    timer = setTimeout(
      () => resolve(`took longer than ${seconds} s; the run did not wait for its end`),
      seconds * 1000,
    );
  });
  try {
    return await Promise.race([(async () => void (await clean()))(), timeIsUp]);
  } catch (error) {
    return `threw ${error instanceof Error ? `${error.name}: ${error.message}` : String(error)}`;
  } finally {
    clearTimeout(timer);
  }
}
