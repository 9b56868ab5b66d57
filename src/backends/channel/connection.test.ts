import { PassThrough } from "node:stream";
import { describe, expect, it, vi } from "vitest";
import { RunError, UserError } from "../../errors.ts";
import { connect } from "./connection.ts";
import { encodeFrame, type Frame, frameParser } from "./frames.ts";
import type { WorkerProcess } from "./worker-process.ts";

/** Both ends of a worker's pipes; `received` has what the worker received. */
function pipes() {
  const received: Frame["header"][] = [];
  const [input, output] = [new PassThrough(), new PassThrough()];
  input.on(
    "data",
    frameParser(({ header }) => received.push(header)),
  );
  let die = (_error: RunError): void => {};
  const ended = new Promise<RunError>((resolve) => {
    die = resolve;
  });
  const kill = vi.fn();
  const worker: WorkerProcess = { pid: 1, input, output, ended, stop: async () => {}, kill };
  return {
    connection: connect(worker),
    received,
    die,
    kill,
    output,
    say: (header: object) => output.write(encodeFrame({ ...header })),
  };
}

describe("connect", () => {
  it("passes events and answers to their requests, in any order", async () => {
    const { connection, received, say } = pipes();
    const events: unknown[] = [];
    const first = connection.request("sample", { policy: 3 }, {}, ({ header }) => events.push(header));
    const second = connection.request("stats");
    say({ id: second.id, ok: true, stats: {} });
    say({ id: first.id, event: "sample", request: 0 });
    say({ id: first.id, ok: true });
    await Promise.all([first.answer, second.answer]);
    expect(events).toEqual([{ id: first.id, event: "sample", request: 0 }]);
    expect(received).toEqual([
      { id: 1, op: "sample", policy: 3 },
      { id: 2, op: "stats" },
    ]);
  });

  it("turns the worker's errors into errors of their kind, and stays usable", async () => {
    const { connection, say } = pipes();
    const bad = connection.request("load");
    say({ id: bad.id, error: { kind: "user", message: "no such model", hint: "check" } });
    await expect(bad.answer).rejects.toEqual(new UserError("no such model", { hint: "check" }));
    const full = connection.request("save_state");
    say({ id: full.id, error: { kind: "system", code: "ENOSPC", path: "/runs/a", message: "[Errno 28] ..." } });
    await expect(full.answer).rejects.toMatchObject({ exitCode: 1, message: "/runs/a: the disk is full (ENOSPC)" });
    const broken = connection.request("forward");
    say({ id: broken.id, error: { kind: "internal", message: "shape", trace: "File x.py" } });
    await expect(broken.answer).rejects.toMatchObject({
      message: "the worker failed in forward: shape",
      details: "File x.py",
    });
    const fine = connection.request("stats");
    say({ id: fine.id, ok: true });
    await fine.answer;
  });

  it("fails all open and later requests with the worker's death", async () => {
    const { connection, die, received } = pipes();
    const open = [connection.request("sample"), connection.request("forward")];
    die(new RunError("the worker ended"));
    for (const { answer } of open) await expect(answer).rejects.toThrow("the worker ended");
    await expect(connection.request("stats").answer).rejects.toThrow("the worker ended");
    expect(received).toHaveLength(2);
  });

  it("kills a worker that writes anything but messages", async () => {
    const { connection, output, kill } = pipes();
    const open = connection.request("stats");
    output.write("Segmentation fault, core dumped");
    await expect(open.answer).rejects.toThrow(/not a message/);
    expect(kill).toHaveBeenCalled();
  });

  it("lists the silent requests, the longest first", async () => {
    vi.useFakeTimers({ toFake: ["performance"] });
    const { connection, say } = pipes();
    const sample = connection.request("sample", {}, {}, () => {});
    vi.advanceTimersByTime(3000);
    connection.request("stats");
    vi.advanceTimersByTime(1000);
    expect(connection.waitingFor()).toEqual([
      { what: "sample", seconds: 4 },
      { what: "stats", seconds: 1 },
    ]);
    say({ id: sample.id, event: "token" });
    vi.useRealTimers();
    await new Promise(setImmediate);
    expect(connection.waitingFor()[0]?.what).toBe("stats");
  });
});
