import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { mostWaiting, readDiff, warmQueue } from "./container.ts";

describe("changed files", () => {
  test("files, without their folders, caches and the folders that are not the agent's", () => {
    const diff = `C /home
C /home/agent
A /home/agent/.cache
A /home/agent/.cache/pip
C /app
A /app/a b.txt
C /app/main.py
A /app/__pycache__/main.cpython-313.pyc
D /etc/motd
C /etc
A /tests/test.sh
A /empty
C /run
C /proc
`;
    expect(readDiff(diff, ["/tests"])).toEqual([
      { path: "/app/a b.txt", change: "added" },
      { path: "/app/main.py", change: "changed" },
      { path: "/empty", change: "added" },
      { path: "/etc/motd", change: "deleted" },
    ]);
    expect(readDiff("C /etc\nC /app", [])).toEqual([{ path: "/app", change: "changed" }]);
    expect(readDiff("Error: no such container", [])).toEqual([]);
  });
});

describe("warm queue", () => {
  beforeEach(() => void vi.useFakeTimers());
  afterEach(() => void vi.useRealTimers());

  function fake() {
    const open = new Set<number>();
    let next = 0;
    const queue = warmQueue(async () => {
      const id = next++;
      open.add(id);
      return { id, close: async () => void open.delete(id) };
    });
    return { open, queue };
  }

  test("keeps as many ready as asked, and no more than the bound", async () => {
    const { open, queue } = fake();
    expect((await queue.take(0)).id).toBe(0);
    expect(queue.counts()).toEqual({ started: 1, ready: 0, unused: 0, waiting: 0 });
    expect((await queue.take(2)).id).toBe(1);
    expect((await queue.take(2)).id).toBe(2);
    expect(queue.counts()).toEqual({ started: 5, ready: 1, unused: 0, waiting: 2 });
    await queue.take(1000);
    expect(queue.counts().waiting).toBe(mostWaiting);
    await queue.close();
    expect(open).toEqual(new Set([0, 1, 2, 3]));
    expect(queue.counts()).toMatchObject({ unused: mostWaiting, waiting: 0 });
  });

  test("those that nobody takes are given back, and one that failed is replaced", async () => {
    const { open, queue } = fake();
    await queue.take(3);
    await vi.advanceTimersByTimeAsync(119_000);
    await queue.take(3);
    expect(queue.counts().waiting).toBe(3);
    await vi.advanceTimersByTimeAsync(121_000);
    expect(queue.counts()).toMatchObject({ waiting: 0, unused: 3 });
    expect(open.size).toBe(2);
    let tries = 0;
    const failing = warmQueue(async () => {
      if (++tries === 2) throw new Error("no space left");
      return { close: async () => {} };
    });
    await failing.take(1);
    await expect(failing.take(1)).rejects.toThrow("no space left");
    await failing.take(0);
  });
});
