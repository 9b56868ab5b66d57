import { execFileSync, spawn } from "node:child_process";
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
let models: { text: string; images: string };
let python: string;
let sdk: string;
/** These tests mostly wait for the SDK's next attempt, so the others run meanwhile. */
let tenants: ReturnType<typeof pytest>;

/** The SDK is in a folder of its own; numpy, torch and transformers are those of the local engine. */
beforeAll(async () => {
  python = (await preparePython()).python;
  sdk = await preparePackage("tinker");
  const env = { ...process.env, PYTHONPATH: "worker:worker/tests" };
  execFileSync(python, ["worker/tests/make_tiny_vision_model.py", root], { cwd: project, env, stdio: "ignore" });
  models = { text: await makeTinyModel(join(root, "model")), images: join(root, "smolvlm") };
  tenants = pytest("test_tenants.py", "text");
});

/** Runs a file of worker/tests/sdk, whose tests start `hone serve` from its source. */
async function pytest(file: string, model: keyof typeof models): Promise<{ code: number | null; output: string }> {
  const tsx = fileURLToPath(import.meta.resolve("tsx"));
  const serve = [process.execPath, "--import", tsx, join(project, "src/cli/main.ts"), "serve"];
  const child = spawn(python, ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore", join(tests, file)], {
    cwd: tests,
    stdio: ["ignore", "pipe", "pipe"],
    env: {
      ...process.env,
      HONE_MODEL: models[model],
      HONE_SERVE: JSON.stringify(serve),
      HONE_PYTHON: python,
      OMP_NUM_THREADS: "1",
      TINKER_TELEMETRY: "0",
      PYTHONPATH: [sdk, join(project, "worker"), join(project, "worker/tests")].join(delimiter),
    },
  });
  const ended = new Promise<number | null>((resolve) => child.once("close", resolve));
  const [output, errors, code] = await Promise.all([text(child.stdout), text(child.stderr), ended]);
  return { code, output: `${output}\n${errors.slice(-4000)}` };
}

it.each([
  ["test_training.py", "text"],
  ["test_sampling.py", "text"],
  ["test_checkpoints.py", "text"],
  ["test_errors.py", "text"],
  ["test_images.py", "images"],
] as const)(
  "the official SDK: %s",
  async (file, model) => {
    const { code, output } = await pytest(file, model);
    expect(code, output).toBe(0);
  },
  1_800_000,
);

it("the official SDK: test_tenants.py", async () => {
  const { code, output } = await tenants;
  expect(code, output).toBe(0);
}, 1_800_000);
