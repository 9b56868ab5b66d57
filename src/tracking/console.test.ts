import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import {
  advance,
  consoleSubscriber,
  fractionDone,
  liveText,
  newProgress,
  summary,
  type Terminal,
  timeLeft,
} from "./console.ts";
import type { RunEvent } from "./events.ts";

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

const start: RunEvent = {
  type: "run-start",
  folder: "/runs/a",
  totalSteps: 4,
  step: 0,
  history: [],
  text: ["a model"],
};
const stepEnd = (step: number, reward: number): RunEvent => ({
  type: "step-end",
  step,
  total: 4,
  epoch: 0,
  seconds: 10,
  metrics: { "reward/mean": reward, "time/rollout": 4, "time/update": 6, "perf/throughput": 100 },
});
const sampling = (done: number, tokens: number): RunEvent => ({
  type: "rollout-progress",
  step: 1,
  done,
  total: 8,
  tokens,
});

/** A terminal that keeps what was written to it, and what its screen would show. */
function terminal(columns?: number): Terminal & { isTTY: boolean; written: string; screen(): string[] } {
  return {
    ...(columns === undefined ? {} : { columns }),
    isTTY: columns !== undefined,
    written: "",
    write(text) {
      this.written += text;
      return true;
    },
    screen() {
      const lines = [""];
      // biome-ignore lint/suspicious/noControlCharactersInRegex: terminal commands contain control characters
      for (const [part] of this.written.matchAll(/\x1b\[(\d*)([A-Za-z])|\n|\r|[^\x1b\n\r]+/g)) {
        if (part === "\n") lines.push("");
        else if (part === "\x1b[J") lines[lines.length - 1] = "";
        else if (part.endsWith("A") && part.startsWith("\x1b")) lines.length -= Number(part.slice(2, -1));
        else if (part !== "\r" && !part.startsWith("\x1b")) lines[lines.length - 1] += part;
      }
      return lines;
    },
  };
}

it.each([
  [1, "val/reward  0.914"],
  [2, "val/reward  0.914 -> 0.950"],
])("a single validation is shown as a value without a change: %i validation(s)", (count, line) => {
  const progress = newProgress(0);
  const validations = [0.914, 0.95].slice(0, count).map(
    (reward, index): RunEvent => ({
      ...{ type: "validation-end", step: index + 1, seconds: 1, metrics: { "val/reward": reward } },
    }),
  );
  for (const event of [start, stepEnd(1, 0.25), ...validations]) advance(progress, event, 1);
  expect(summary(progress, 2, 80)).toContain(line);
});

describe("liveText", () => {
  const progress = newProgress(0);
  for (const [event, now] of [
    [start, 0],
    [sampling(0, 0), 0],
    [sampling(8, 400), 4],
    [stepEnd(1, 0.25), 10],
    [sampling(0, 0), 10],
    [sampling(4, 200), 12],
  ] as const) {
    advance(progress, event, now);
  }
  it.each([
    [100, "█████░░░░░░░░░░░  step 2/4  sampling 4/8  reward 0.250  100 tok/s  2.0 s  28 s left"],
    [60, "███░░░░░░░  step 2/4  sampling 4/8  reward 0.250  28 s left"],
    [40, "step 2/4  sampling 4/8  reward 0.250"],
    [24, "step 2/4  sampling 4/8"],
    [10, "step 2/4"],
  ])("fits into %d characters", (width, text) => {
    expect(liveText(progress, [], 12, width)).toBe(text);
  });

  it("names the longest wait after a while", () => {
    const waits = [{ what: "the judge", seconds: 9 }];
    expect(liveText(progress, waits, 12, 100)).not.toContain("judge");
    waits.push({ what: "the worker", seconds: 75 });
    expect(liveText(progress, waits, 12, 100)).toContain("waiting for the worker (1 min 15 s)");
    expect(liveText(progress, waits, 12, 60)).toContain("waiting for the worker");
  });

  it("counts a validation for the step that follows it", () => {
    const validating = structuredClone(progress);
    advance(validating, { type: "validation-start", step: 1 }, 12);
    advance(validating, sampling(3, 50), 13);
    expect(liveText(validating, [], 13, 100)).toContain("validating 3/8");
    advance(validating, { type: "validation-end", step: 1, metrics: {}, seconds: 5 }, 17);
    expect(liveText(validating, [], 17, 100)).toContain("7.0 s");
    expect(validating.allTokens).toBe(650);
  });

  it("knows how much is done and left", () => {
    expect(fractionDone(progress)).toBeCloseTo((1 + 0.5 * 0.4) / 4);
    expect(timeLeft(progress, 12)).toEqual({ seconds: 28, rough: false });
    expect(timeLeft(progress, 1000)).toEqual({ seconds: 20, rough: false });
    expect(timeLeft(newProgress(0), 5)).toBeUndefined();
  });
});

describe("a status that is longer than the line", () => {
  const drawn = (text: string, width: number) => {
    const progress = newProgress(0);
    advance(progress, { type: "setup-status", text }, 0);
    return liveText(progress, [], 5, width);
  };

  it("is cut, not dropped", () => {
    expect(drawn(`loading ${"x".repeat(100)}`, 40)).toBe(`loading ${"x".repeat(31)}…`);
    expect(drawn("loading", 40)).toBe("loading  5.0 s");
  });

  it("is cut by its columns on the screen", () => {
    expect(drawn("模型".repeat(30), 21)).toBe("模型模型模型模型模型…");
  });
});

describe("the total time is estimated before the first step ends", () => {
  const long: RunEvent = { ...start, totalSteps: 2560 };
  const update = (done: number): RunEvent => ({ type: "update-progress", step: 1, done, total: 8 });
  it.each<[string, [RunEvent, number][], number, number | undefined]>([
    ["not from the first rollouts, because they run side by side", [[sampling(4, 40), 4]], 4, undefined],
    [
      "not before a quarter of its updates",
      [
        [sampling(8, 80), 10],
        [update(0), 10],
        [update(1), 11],
      ],
      11,
      undefined,
    ],
    [
      "from the first updates",
      [
        [sampling(8, 80), 10],
        [update(0), 10],
        [update(4), 12],
      ],
      12,
      2560 * 14 - 12,
    ],
  ])("%s", (_, events, now, seconds) => {
    const progress = newProgress(0);
    for (const [event, at] of [[long, 0], [sampling(0, 0), 0], ...events] as [RunEvent, number][])
      advance(progress, event, at);
    expect(timeLeft(progress, now)).toEqual(seconds === undefined ? undefined : { seconds, rough: true });
  });

  it("and printed once during the first training and once after the first step", async () => {
    const out = terminal();
    let clock = 0;
    const subscriber = consoleSubscriber({ out, others: [], now: () => clock });
    for (const [event, at] of [
      [long, 0],
      [sampling(0, 0), 0],
      [sampling(2, 20), 4],
      [sampling(8, 80), 5],
      [update(0), 5],
      [update(2), 6],
      [update(4), 7],
      [{ ...stepEnd(1, 0.25), total: 2560 }, 10],
      [{ ...stepEnd(2, 0.25), total: 2560 }, 20],
    ] as [RunEvent, number][]) {
      clock = at;
      subscriber.event(event);
    }
    await subscriber.close();
    expect(out.written.split("\n").filter((line) => line.startsWith("about"))).toEqual([
      "about 6 h 24 min for 2,560 steps, estimated from the first step so far",
      "about 7 h 07 min for 2,559 steps, estimated from the first step",
    ]);
  });
});

describe("consoleSubscriber", () => {
  it("explains the counts of a step's line once", async () => {
    const out = terminal();
    const subscriber = consoleSubscriber({ out, others: [], now: () => 0 });
    const counts = { "batch/solve_all": 0.25, "batch/solve_partial": 0.5, "batch/num_tasks": 8 };
    for (const step of [1, 2]) {
      const event = stepEnd(step, 0.5) as Extract<RunEvent, { type: "step-end" }>;
      subscriber.event({ ...event, metrics: { ...event.metrics, ...counts } });
    }
    await subscriber.close();
    expect(out.written).toContain("solved 6/8");
    expect(out.written.match(/solved: tasks that at least one rollout solved\n/g)).toHaveLength(1);
  });

  it("writes clean lines into a pipe", async () => {
    const out = terminal();
    const subscriber = consoleSubscriber({ out, others: [], now: () => 0 });
    const status: RunEvent = { type: "setup-status", text: "loading" };
    for (const event of [status, status, start, sampling(8, 100), stepEnd(1, 0.25), stepEnd(2, 0.5)])
      subscriber.event(event);
    subscriber.event({ type: "warning", text: "a retry" });
    subscriber.event({ type: "run-end", reason: "stopped", text: "go on with --resume runs/a" });
    await subscriber.close();
    expect(out.screen()).toEqual([
      "loading",
      "a model",
      "run folder /runs/a: 4 steps",
      "step 1/4  reward 0.250  10.0 s (sample 4.0 train 6.0)  100 tok/s",
      "step 2/4  reward 0.500 (+0.25)  10.0 s (sample 4.0 train 6.0)  100 tok/s",
      "warning: a retry",
      "",
      "reward by step",
      "0.50 |    *",
      ...Array.from({ length: 6 }, () => "     |"),
      "0.25 |*",
      "     +-----",
      "      1   2",
      "",
      "reward  0.250 -> 0.500 (first and last step)",
      "time    0.0 s for 2 steps, 100 tokens sampled",
      "stopped before the end: go on with --resume runs/a",
      "",
    ]);
    expect(out.written).not.toContain("\x1b");
  });

  it("leaves the reason of a failure to the error that follows", () => {
    const out = terminal();
    consoleSubscriber({ out, others: [], now: () => 0 }).event({
      type: "run-end",
      reason: "failed",
      text: "no reward",
    });
    expect(out.screen()).toEqual(["the run failed", ""]);
  });

  it("reports a long wait in a pipe at growing intervals", () => {
    const out = terminal();
    let seconds = 0;
    consoleSubscriber({ out, others: [], waitingFor: [() => [{ what: "the worker", seconds }]] });
    for (seconds = 0; seconds < 300; seconds++) vi.advanceTimersByTime(1000);
    expect(out.screen()).toEqual([
      "waiting for the worker for 1 min 00 s",
      "waiting for the worker for 2 min 00 s",
      "waiting for the worker for 4 min 00 s",
      "",
    ]);
  });

  it("keeps a line below all other output on a terminal, and removes it at the end", async () => {
    const out = terminal(60);
    const error = terminal(60);
    error.write = (text) => out.write.call(out, text); // The same screen.
    const write = out.write;
    const subscriber = consoleSubscriber({ out, others: [error], colors: false, now: () => 0 });
    subscriber.event(start);
    subscriber.event(sampling(4, 10));
    vi.advanceTimersByTime(200);
    expect(out.screen().at(-1)).toBe("█░░░░░░░░  step 1/4  sampling 4/8  0.0 s");
    out.write("a user's print\n");
    error.write("an error\n");
    subscriber.event(stepEnd(1, 0.25));
    vi.advanceTimersByTime(200);
    expect(out.screen()).toEqual([
      "a model",
      "run folder /runs/a: 4 steps",
      "a user's print",
      "an error",
      "step 1/4  reward 0.250  10.0 s  100 tok/s",
      "██░░░░░░░  step 2/4  reward 0.250  0.0 s  30 s left",
    ]);
    out.write("half a ");
    vi.advanceTimersByTime(200);
    expect(out.screen().at(-1)).toBe("half a ");
    out.write("line\n");
    vi.advanceTimersByTime(200);
    out.columns = 30; // The line has 51 columns, so the terminal has wrapped it into two rows.
    const before = out.written.length;
    vi.advanceTimersByTime(200);
    expect(out.written.slice(before).startsWith("\x1b[1A\r\x1b[J")).toBe(true);
    out.columns = 0; // A terminal may not know its size.
    vi.advanceTimersByTime(400);
    expect(out.written).not.toContain("Infinity");
    out.columns = 80;
    subscriber.event({ type: "run-end", reason: "done", report: ["next: rest"] });
    expect(out.screen().slice(-2)).toEqual(["next: rest", ""]);
    expect(out.write).toBe(write);
    subscriber.event({ type: "warning", text: "late" });
    await subscriber.close();
    expect(out.screen().slice(-2)).toEqual(["warning: late", ""]);
  });
});
