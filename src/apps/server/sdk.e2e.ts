import { spawn } from "node:child_process";
import { delimiter, join } from "node:path";
import { text } from "node:stream/consumers";
import { fileURLToPath } from "node:url";
import { beforeAll, expect, it } from "vitest";
import { makeTinyModel, makeTinyVisionModel } from "../../base/python.fixture.ts";
import { preparePackage, preparePython } from "../../base/python.ts";
import { temporaryFolder } from "../../temporary-folder.fixture.ts";

const project = fileURLToPath(new URL("../../..", import.meta.url));
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
  models = { text: await makeTinyModel(join(root, "model")), images: await makeTinyVisionModel(root) };
  tenants = pytest("text", "test_tenants.py");
});

/** Runs files of worker/tests/sdk, whose tests start `hone serve` from its source. */
async function pytest(
  model: keyof typeof models,
  ...files: string[]
): Promise<{ code: number | null; output: string }> {
  const tsx = fileURLToPath(import.meta.resolve("tsx"));
  const serve = [process.execPath, "--import", tsx, join(project, "src/apps/cli/main.ts"), "serve"];
  const paths = files.map((file) => join(tests, file));
  const child = spawn(python, ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore", ...paths], {
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
  // One process and one server for the four.
  ["text", ["test_training.py", "test_sampling.py", "test_checkpoints.py", "test_errors.py"]],
  ["images", ["test_images.py"]],
] as const)(
  "the official SDK, a model of %s: %o",
  async (model, files) => {
    const { code, output } = await pytest(model, ...files);
    expect(code, output).toBe(0);
  },
  1_800_000,
);

it("the official SDK: test_tenants.py", async () => {
  const { code, output } = await tenants;
  expect(code, output).toBe(0);
}, 1_800_000);
