import { spawn } from "node:child_process";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import { fileURLToPath } from "node:url";
import { expect, it } from "vitest";
import { nightly } from "../nightly.fixture.ts";
import { prepareEnvironment, preparePython } from "./python.ts";

const tests = fileURLToPath(new URL("../../worker/tests/verl", import.meta.url));

/** The driver runs in verl's environment, and the transformers that it is compared with in the local engine's. */
it(`verl's driver: test_driver.py${nightly ? " and test_driver_images.py" : ""}`, async () => {
  const { python } = await preparePython();
  const flags = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore"];
  // Others need a Ray cluster, of which CI has one (backends/verl/engine.e2e.ts).
  const chosen = nightly ? [tests] : [join(tests, "test_driver.py"), "-k", "does_not_start or is_refused"];
  const child = spawn(python, [...flags, ...chosen], {
    cwd: tests,
    stdio: ["ignore", "pipe", "pipe"],
    env: { ...process.env, HONE_VERL_PYTHON: await prepareEnvironment("verl"), OMP_NUM_THREADS: "1" },
  });
  const ended = new Promise<number | null>((resolve) => child.once("close", resolve));
  const [output, errors, code] = await Promise.all([text(child.stdout), text(child.stderr), ended]);
  expect(code, `${output}\n${errors.slice(-4000)}`).toBe(0);
}, 1_800_000);
