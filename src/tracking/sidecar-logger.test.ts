import { EventEmitter } from "node:events";
import { PassThrough } from "node:stream";
import { describe, expect, it } from "vitest";
import { UserError } from "../base/errors.ts";
import { type SidecarProcess, sidecarLogger } from "./sidecar-logger.ts";

/** A fake sidecar: records the messages that it receives, and can answer. */
function sidecar(
  react: (message: Record<string, unknown>, self: { say(answer: object): void; exit(code: number): void }) => void,
) {
  const received: Record<string, unknown>[] = [];
  const emitter = new EventEmitter();
  const stdout = new PassThrough();
  const self = {
    say: (answer: object) => void stdout.write(`${JSON.stringify(answer)}\n`),
    exit(code: number | null, signal: NodeJS.Signals | null = null) {
      stdout.end();
      emitter.emit("exit", code, signal);
    },
  };
  const stdin = new PassThrough();
  stdin.setEncoding("utf8").on("data", (text: string) => {
    for (const line of text.trim().split("\n")) {
      const message = JSON.parse(line) as Record<string, unknown>;
      received.push(message);
      react(message, self);
    }
  });
  let killed = false;
  const child: SidecarProcess = {
    stdin,
    stdout,
    once: (event: string, listener: (...args: never[]) => void) => emitter.once(event, listener as never),
    kill() {
      killed = true;
      self.exit(null, "SIGKILL");
      return true;
    },
  };
  return { child, received, self, isKilled: () => killed };
}

const obedient = (message: Record<string, unknown>, { say }: { say(answer: object): void }) => {
  if (message.op === "init") say({ event: "ready", mode: "online", url: "x", directory: "/runs/a/wandb/run-1" });
  if (message.op === "finish") say({ event: "finished" });
};

function options(child: SidecarProcess, warnings: string[] = []) {
  return {
    client: "wandb" as const,
    start: async () => child,
    installCommand: "install-it",
    entity: null,
    project: "hone",
    name: "first",
    id: "id1",
    config: { a: 1 },
    directory: "/runs/a",
    startSeconds: 0,
    finishSeconds: 0.05,
    onWarning: (text: string) => void warnings.push(text),
  };
}

it("logs samples as a table", async () => {
  const { child, received } = sidecar(obedient);
  const subscriber = await sidecarLogger(options(child));
  const row = { task: "sums/0:0", prompt: "2+2?", reply: "4", reward: 1, reason: "right" };
  subscriber.event({ type: "samples", step: 5, kind: "train", rows: [row] });
  await subscriber.close();
  expect(received[1]).toEqual({
    ...{ op: "table", step: 5, name: "samples/train", columns: ["task", "prompt", "reply", "reward", "reason"] },
    data: [["sums/0:0", "2+2?", "4", 1, "right"]],
  });
});

it("logs distributions as histograms and plots as images", async () => {
  const { child, received } = sidecar(obedient);
  const subscriber = await sidecarLogger(options(child));
  const values = { response_length: [0, 64], reward: [], entropy: [] };
  subscriber.event({ type: "distributions", step: 5, values, limit: 9 });
  const plot = { name: "reward", file: "/runs/a/plots/reward.png", bytes: Buffer.of(), width: 4, height: 3 };
  subscriber.event({ type: "plot", step: 5, ...plot });
  await subscriber.close();
  const edges = Array.from({ length: 65 }, (_, index) => index);
  const counts = [1, ...new Array(62).fill(0), 1];
  expect(received.slice(1, 3)).toEqual([
    { op: "histogram", step: 5, name: "distribution/response_length", edges, counts },
    { op: "image", step: 5, name: "plots/reward", file: "/runs/a/plots/reward.png" },
  ]);
});

describe("sidecarLogger", () => {
  it("passes on metrics and how the run ended", async () => {
    const { child, received } = sidecar(obedient);
    const subscriber = await sidecarLogger(options(child));
    subscriber.event({
      type: "step-end",
      step: 1,
      total: 2,
      epoch: 0,
      metrics: { loss: Number.NaN, reward: 1 },
      seconds: 1,
    });
    subscriber.event({ type: "warning", text: "not a metric" });
    subscriber.event({ type: "validation-end", step: 1, metrics: { "val/reward": 0.5 }, seconds: 1 });
    subscriber.event({ type: "run-end", reason: "done" });
    await subscriber.close();
    expect(received).toEqual([
      {
        op: "init",
        entity: null,
        project: "hone",
        name: "first",
        id: "id1",
        config: { a: 1 },
        directory: "/runs/a",
        timeout_seconds: 0,
      },
      { op: "log", step: 1, metrics: { loss: "NaN", reward: 1 } },
      { op: "log", step: 1, metrics: { "val/reward": 0.5 } },
      { op: "finish", exit_code: 0 },
    ]);
  });

  it.each([
    [
      "missing",
      { event: "error", kind: "missing", message: "No module named 'wandb'" },
      /logger includes wandb, but its package is not installed/,
      /install-it/,
    ],
    [
      "not logged in",
      { event: "error", kind: "login", message: "No API key" },
      /login failed/,
      /WANDB_API_KEY.*offline/,
    ],
    ["unreachable", { event: "error", kind: "failed", message: "CommError" }, /CommError/, /offline/],
  ])("refuses before the run when it is %s", async (_what, answer, message, hint) => {
    const { child, isKilled } = sidecar((_message, { say }) => say(answer));
    const error = await sidecarLogger(options(child)).catch((caught: unknown) => caught);
    expect(error).toBeInstanceOf(UserError);
    expect((error as UserError).message).toMatch(message);
    expect((error as UserError).hint).toMatch(hint);
    expect(isKilled()).toBe(true);
  });

  it("reports a sidecar that ends before it answers", async () => {
    const { child } = sidecar((_message, { exit }) => exit(3));
    await expect(sidecarLogger(options(child))).rejects.toThrow(/its sidecar ended: exit code 3/);
  });

  it("continues without a sidecar that ends, and warns once", async () => {
    const warnings: string[] = [];
    const { child, received, self } = sidecar(obedient);
    const subscriber = await sidecarLogger(options(child, warnings));
    self.exit(1);
    await new Promise(setImmediate);
    subscriber.event({ type: "step-end", step: 1, total: 2, epoch: 0, metrics: {}, seconds: 1 });
    await subscriber.close();
    expect(warnings).toEqual([expect.stringMatching(/stopped recording.*exit code 1/)]);
    expect(received).toHaveLength(1);
  });

  it("limits the wait at the end, and says how to send the rest", async () => {
    const warnings: string[] = [];
    const { child, isKilled } = sidecar((message, self) => message.op === "init" && obedient(message, self));
    await (await sidecarLogger(options(child, warnings))).close();
    expect(isKilled()).toBe(true);
    expect(warnings).toEqual([expect.stringMatching(/wandb sync \/runs\/a\/wandb\/run-1/)]);
  });
});
