import { expect, test } from "vitest";
import { createScheduler } from "./scheduler.ts";

const limits = { maxRows: 4, maxWaitingRows: 8 };
/** A job that ends when the test releases it. */
function held() {
  let end = (): void => {};
  const ended = new Promise<void>((resolve) => {
    end = resolve;
  });
  return { end, job: () => ended };
}
const turn = () => new Promise(setImmediate);

test("training jobs run one at a time, models in turns", async () => {
  const scheduler = createScheduler(limits);
  const order: string[] = [];
  let running = 0;
  const job = (name: string) => async () => {
    expect(++running).toBe(1);
    order.push(name);
    await turn();
    running--;
  };
  await Promise.all([
    ...["a1", "a2", "a3"].map((name) => scheduler.train("a", job(name))),
    ...["b1", "b2"].map((name) => scheduler.train("b", job(name))),
    scheduler.train("c", job("c1")),
  ]);
  expect(order).toEqual(["a1", "a2", "b1", "c1", "a3", "b2"]);
});

test("a failed job rejects for its owner and delays nobody", async () => {
  const scheduler = createScheduler(limits);
  const failed = scheduler.train("a", async () => {
    throw new Error("no");
  });
  const next = scheduler.train("a", async () => "yes");
  await expect(failed).rejects.toThrow("no");
  expect(await next).toBe("yes");
});

test("samples share the engine up to its rows, clients in turns", async () => {
  const scheduler = createScheduler(limits);
  const started: string[] = [];
  const jobs = new Map<string, ReturnType<typeof held>>();
  const sample = (owner: string, name: string, rows: number) => {
    const one = held();
    jobs.set(name, one);
    void scheduler.sample(owner, rows, () => {
      started.push(name);
      return one.job();
    });
  };
  sample("a", "a1", 3);
  sample("a", "a2", 2);
  sample("a", "a3", 2);
  sample("b", "b1", 2);
  expect(started).toEqual(["a1"]);
  expect(scheduler.state).toMatchObject({ rows: 3, rowsWaiting: 6 });
  jobs.get("a1")!.end();
  await turn();
  expect(started).toEqual(["a1", "a2", "b1"]);
  for (const name of ["a2", "b1", "a3"]) jobs.get(name)!.end();
  await turn();
  expect(scheduler.state).toMatchObject({ rows: 0, rowsWaiting: 0 });
});

test("a request with more sequences than places runs alone", async () => {
  const scheduler = createScheduler(limits);
  const [big, small] = [held(), held()];
  const started: string[] = [];
  const start = (name: string, job: () => Promise<void>) => () => {
    started.push(name);
    return job();
  };
  void scheduler.sample("a", 9, start("big", big.job));
  void scheduler.sample("b", 1, start("small", small.job));
  expect(started).toEqual(["big"]);
  big.end();
  await turn();
  expect(started).toEqual(["big", "small"]);
});

test("training pauses for samples in progress and continues when they have ended", async () => {
  let clock = 0;
  const scheduler = createScheduler({ ...limits, now: () => clock });
  const sampling = held();
  void scheduler.sample("a", 1, sampling.job);
  const order: string[] = [];
  const first = scheduler.train("a", async () => {
    clock += 60_000;
    order.push("first");
  });
  const second = scheduler.train("a", async () => void order.push("second"));
  await first;
  await turn();
  expect(order).toEqual(["first"]);
  sampling.end();
  await second;
  expect(order).toEqual(["first", "second"]);
});

test("free places are acquired until none is left, and each is released once", () => {
  const scheduler = createScheduler(limits);
  const leave = scheduler.enter(10)!;
  expect([scheduler.enter(3), scheduler.enter(2)]).toEqual([null, expect.any(Function)]);
  leave();
  leave();
  expect(scheduler.enter(10)).not.toBeNull();
  expect(scheduler.enter(1)).toBeNull();
});
