import { join } from "node:path";
import { afterAll, beforeAll } from "vitest";
import { makeTinyModel } from "../../base/python.fixture.ts";
import { temporaryFolder } from "../../temporary-folder.fixture.ts";
import type { Engine } from "../engine.ts";
import { openLocalEngine } from "./engine.ts";
import type { LocalEngineOptions } from "./options.ts";

/** A tiny Llama in the local engine, in float32, for all tests of a file. `at` names files of a folder that lasts as long. */
export function tinyEngine(name: string, options: Partial<LocalEngineOptions> = {}) {
  const root = temporaryFolder(name);
  const at = (file: string): string => join(root, file);
  let engine: Engine | undefined;
  beforeAll(async () => {
    const model = await makeTinyModel(at("model"));
    engine = await openLocalEngine({ model, device: "cpu", dtype: "float32", cacheDir: at("cache"), ...options });
  });
  afterAll(() => engine?.close());
  return { at, engine: () => engine! };
}

/** Microbatches of a few sequences each, so that a test covers their sum. */
export const smallBatches = { microBatchTokens: 40 };
