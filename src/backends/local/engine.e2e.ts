/** The end of the worker, intended or not: its error message, and that no process remains. */
import { spawn } from "node:child_process";
import { chmodSync, existsSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { beforeAll, describe, expect, it } from "vitest";
import { madeUpTokens, params } from "../../../conformance/tools.ts";
import { RunError, UserError } from "../../base/errors.ts";
import { ends } from "../../base/processes.fixture.ts";
import { makeTinyModel } from "../../base/python.fixture.ts";
import { temporaryFolder } from "../../temporary-folder.fixture.ts";
import { openLocalEngine } from "./engine.ts";

const root = temporaryFolder("worker");
let model: string;
beforeAll(async () => {
  model = await makeTinyModel(join(root, "model"));
});

const open = (logFile: string) =>
  openLocalEngine({ model, device: "cpu", dtype: "float32", cacheDir: join(root, "cache"), logFile });

/** Worker processes whose parent is this one. */
function workersOf(parent: number): Promise<number[]> {
  return new Promise((resolve) => {
    const child = spawn("ps", ["-eo", "pid=,ppid=,args="]);
    let output = "";
    child.stdout.on("data", (chunk) => {
      output += chunk;
    });
    child.once("close", () => {
      const rows = output.split("\n").map((line) => line.trim().split(/\s+/));
      resolve(
        rows
          .filter(([, ppid, ...args]) => Number(ppid) === parent && args.includes("hone_worker"))
          .map(([pid]) => Number(pid)),
      );
    });
  });
}

describe("the worker process", () => {
  it("fails requests in progress and later ones with one error that says why, if it is killed", async () => {
    const engine = await open(join(root, "killed.log"));
    const { sampler } = await engine.createPolicy({ adapter: { kind: "none" } });
    const [worker] = await workersOf(process.pid);
    const prompt = madeUpTokens(engine, 1, 4);
    const endless = { prompt, params: params({ maxTokens: 4000, ignoreEos: true }) };
    const sampling = (async () => {
      for await (const _sample of sampler.sample([endless], {
        onToken: () => process.kill(worker!, "SIGKILL"),
      }));
    })();
    await expect(sampling).rejects.toThrow(
      /worker ended by SIGKILL: (another program killed it|.*memory ran out).*\. It used \d/,
    );
    await expect(engine.stats()).rejects.toThrow(RunError);
    await engine.close();
    expect(await ends(worker!)).toBe(true);
  });

  it("is gone after close, and its log is kept", async () => {
    const engine = await open(join(root, "closed.log"));
    const [worker] = await workersOf(process.pid);
    expect(engine.waitingFor()).toEqual([]);
    await engine.close();
    expect([await ends(worker!), existsSync(join(root, "closed.log"))]).toEqual([true, true]);
    await expect(engine.stats()).rejects.toThrow(/closed/);
  });

  it("ends when Node is killed while the worker computes", async () => {
    const script = join(root, "orphan.mjs");
    const engineFile = fileURLToPath(new URL("./engine.ts", import.meta.url));
    writeFileSync(
      script,
      `const { openLocalEngine } = await import(${JSON.stringify(engineFile)});
       const engine = await openLocalEngine(${JSON.stringify({ model, device: "cpu", dtype: "float32", cacheDir: join(root, "cache") })});
       const { sampler } = await engine.createPolicy({ adapter: { kind: "none" } });
       const params = { maxTokens: 4000, temperature: 1, topP: 1, topK: -1, minP: 0, stopIds: [], stopStrings: [], ignoreEos: true, seed: 1 };
       for await (const _ of sampler.sample([{ prompt: Int32Array.of(5, 6, 7), params }], { onToken: () => console.log("sampling") }));`,
    );
    const node = spawn(process.execPath, ["--import", "tsx", script], {
      cwd: process.cwd(),
      stdio: ["ignore", "pipe", "inherit"],
    });
    await new Promise<void>((resolve, reject) => {
      node.stdout.once("data", () => resolve());
      node.once("close", () => reject(new Error("the script ended before it sampled")));
    });
    const [worker] = await workersOf(node.pid!);
    node.kill("SIGKILL");
    expect(await ends(worker!)).toBe(true);
  });

  it("names what is wrong with a model, and leaves no process", async () => {
    const broken = join(root, "broken");
    await makeTinyModel(broken);
    writeFileSync(join(broken, "model.safetensors"), "not safetensors");
    const opening = openLocalEngine({ model: broken, device: "cpu", logFile: join(root, "broken.log") });
    await expect(opening).rejects.toBeInstanceOf(UserError);
    await expect(opening).rejects.toThrow(/broken/);
    expect(await workersOf(process.pid)).toEqual([]);
  });

  it("reports its last lines if it ends at once", async () => {
    const python = join(root, "python");
    writeFileSync(
      python,
      `#!/bin/sh\n[ "$1" = -c ] && exit 0\necho "ModuleNotFoundError: No module named 'torch'" >&2\nexit 1\n`,
    );
    chmodSync(python, 0o755);
    const earlier = process.env.HONE_PYTHON;
    process.env.HONE_PYTHON = python;
    try {
      const opening = openLocalEngine({ model, logFile: join(root, "nopython.log") });
      await expect(opening).rejects.toThrow(/ended with exit code 1\.\n.*last output:\n.*No module named 'torch'/);
    } finally {
      if (earlier === undefined) delete process.env.HONE_PYTHON;
      else process.env.HONE_PYTHON = earlier;
    }
  });
});
