import { join } from "node:path";
import { afterAll, beforeAll, describe, it } from "vitest";
import { conformance } from "../../../conformance/conformance.ts";
import { precisionChecks } from "../../../conformance/precision.ts";
import { makeTinyModel } from "../../base/python.fixture.ts";
import { temporaryFolder } from "../../temporary-folder.fixture.ts";
import type { Engine } from "../engine.ts";
import { openLocalEngine } from "./engine.ts";
import { capabilities } from "./options.ts";

/** The checks must pass with every setting; these force compaction, waiting rows and micro-batches. */
const settings = {
  default: {},
  cramped: { maxSampleRows: 5, microBatchTokens: 24, chunkSize: 3, gradientCheckpointing: true },
} as const;

const root = temporaryFolder("conformance");
let model: string;

/** `HONE_CONFORMANCE_MODEL=smollm2-135m-instruct` runs the checks on a real model, which takes minutes. */
beforeAll(async () => {
  model = process.env.HONE_CONFORMANCE_MODEL ?? (await makeTinyModel(join(root, "model")));
});

describe.each(Object.entries(settings))("the local engine, %s settings", (name, options) => {
  let engine: Engine;
  beforeAll(async () => {
    engine = await openLocalEngine({
      model,
      device: "cpu",
      dtype: "float32",
      cacheDir: join(root, "cache"),
      logFile: join(root, `${name}.log`),
      ...options,
    });
  });
  afterAll(() => engine?.close());

  const checks = conformance.filter(({ needs }) => needs?.(capabilities) ?? true);
  it.each(checks.map((check, index) => ({ ...check, index })))("$name", async ({ check, index }) => {
    const path = (file: string): string => join(root, `${name}-${index}-${file}`);
    await check(engine, { path, tolerance: 1e-4 });
  });
});

it.each(precisionChecks)("in bfloat16: $name", async ({ check }) => {
  const options = {
    model,
    device: "cpu",
    dtype: "bfloat16",
    cacheDir: join(root, "cache"),
    logFile: join(root, "low.log"),
  } as const;
  const engine = await openLocalEngine(options);
  try {
    await check(engine, { path: (file) => join(root, `low-${file}`), tolerance: 0.1 });
  } finally {
    await engine.close();
  }
});
