import { spawn } from "node:child_process";
import { delimiter, join } from "node:path";
import { text } from "node:stream/consumers";
import { fileURLToPath } from "node:url";
import { beforeAll, expect, it } from "vitest";
import { preparePackage, preparePython } from "../python/prepare.ts";
import { makeTinyModel } from "../python/run-python.fixture.ts";
import { temporaryFolder } from "../temporary-folder.fixture.ts";

const project = fileURLToPath(new URL("../..", import.meta.url));
const tests = join(project, "worker", "tests", "sdk");
const root = temporaryFolder("sdk");
let model: string;
let python: string;
let sdk: string;

/** The SDK is in a folder of its own; numpy, torch and transformers are those of the local engine. */
beforeAll(async () => {
  python = (await preparePython()).python;
  sdk = await preparePackage("tinker");
  model = await makeTinyModel(join(root, "model"));
});

/** Runs a file of worker/tests/sdk, whose tests start `hone serve` from its source. */
it.each(["test_training.py", "test_sampling.py", "test_checkpoints.py", "test_errors.py", "test_tenants.py"])(
  "the official SDK: %s",
  async (file) => {
    const tsx = fileURLToPath(import.meta.resolve("tsx"));
    const serve = [process.execPath, "--import", tsx, join(project, "src/cli/main.ts"), "serve"];
    const child = spawn(python, ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore", join(tests, file)], {
      cwd: tests,
      stdio: ["ignore", "pipe", "pipe"],
      env: {
        ...process.env,
        HONE_MODEL: model,
        HONE_SERVE: JSON.stringify(serve),
        HONE_PYTHON: python,
        OMP_NUM_THREADS: "1",
        TINKER_TELEMETRY: "0",
        PYTHONPATH: [sdk, process.env.PYTHONPATH].filter(Boolean).join(delimiter),
      },
    });
    const ended = new Promise<number | null>((resolve) => child.once("close", resolve));
    const [output, errors, code] = await Promise.all([text(child.stdout), text(child.stderr), ended]);
    expect(code, `${output}\n${errors.slice(-4000)}`).toBe(0);
  },
  1_800_000,
);
