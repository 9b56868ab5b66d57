/**
 * Tests that start the worker start a fork of a Python that has imported torch (worker/tests/warm_python.py): a tenth of a second of
 * one core, not four. `HONE_COLD_PYTHON=1` leaves it out.
 */
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { preparePython } from "../../src/base/python.ts";

export default async function setUp() {
  if (process.platform !== "linux" || process.env.HONE_COLD_PYTHON) return;
  const { python } = await preparePython();
  const folder = mkdtempSync(join(tmpdir(), "hone-python-"));
  const program = fileURLToPath(new URL("../../worker/tests/warm_python.py", import.meta.url));
  const server = spawn(python, [program, folder], {
    stdio: ["pipe", "pipe", "inherit"],
    // What the worker's processes have (src/backends/local/engine.ts).
    env: {
      ...process.env,
      OMP_NUM_THREADS: process.env.OMP_NUM_THREADS ?? "1",
      OMP_WAIT_POLICY: "passive",
      GOMP_SPINCOUNT: "3000",
      ONEDNN_PRIMITIVE_CACHE_CAPACITY: "64",
      LRU_CACHE_CAPACITY: "64",
    },
  });
  const ended = once(server, "close");
  const isReady = await Promise.race([once(server.stdout, "data").then(() => true), ended.then(() => false)]);
  if (isReady) process.env.HONE_PYTHON = join(folder, "python");
  else console.warn(`${program} does not run here, so each worker imports torch`);
  return async () => {
    server.stdin.end();
    await ended;
    rmSync(folder, { recursive: true, force: true });
  };
}
