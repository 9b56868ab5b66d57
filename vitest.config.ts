import { readdirSync, readFileSync } from "node:fs";
import { availableParallelism } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { defineConfig } from "vitest/config";
import { LongestFirst } from "./scripts/maintain/longest-first.ts";

const folder = fileURLToPath(new URL("src", import.meta.url));
const unit = {
  // A busy machine is not a failure.
  testTimeout: 60_000,
  hookTimeout: 60_000,
  // By default one core stays idle: half of a small machine. One more, because some tests wait for a timer or a process.
  maxWorkers: availableParallelism() + 1,
  // They compose config/verl, not the verl of another environment.
  env: { HONE_VERL_PYTHON: "none" },
};
const unitTests = ["{src,scripts}/**/*.test.ts", "web/**/*.test.{ts,tsx}"];
const filesWith = (pattern: RegExp) =>
  ["src", "scripts", "web"]
    .flatMap((folder) => readdirSync(folder, { recursive: true, encoding: "utf8" }).map((file) => join(folder, file)))
    .filter((file) => /\.test\.tsx?$/.test(file) && pattern.test(readFileSync(file, "utf8")));
/** `npm test -- quick` leaves these out. */
const slow = filesWith(/^\/\/ Slow:/m);
/**
 * Files with a process each: a mocked module must not reach another file, and some files say why they need it. The others share
 * theirs, which halves the time.
 */
const alone = filesWith(/^vi\.mock\(|^\/\/ Own process:/m);
const shared = { isolate: false, setupFiles: "./scripts/maintain/each-unit-file.ts" };

/** Unit tests need Node alone; end-to-end tests also start the Python worker and train tiny models for real. */
export default defineConfig({
  test: {
    reporters: ["default", "./scripts/maintain/failures.mjs"],
    sequence: { sequencer: LongestFirst },
    projects: [
      {
        test: {
          ...unit,
          name: "unit",
          ...shared,
          include: unitTests,
          exclude: [...alone, ...slow, "node_modules"],
        },
      },
      {
        test: { ...unit, name: "unit-slow", ...shared, include: slow, exclude: alone },
      },
      {
        test: { ...unit, name: "unit-alone", include: alone },
      },
      {
        // Their packages need Node 22 (scripts/maintain/agents.mjs).
        resolve: {
          alias: {
            "hone-rl/scorers": join(folder, "integrations/scorers.ts"),
            "hone-rl/testing": join(folder, "testing/index.ts"),
            "hone-rl": join(folder, "index.ts"),
          },
        },
        test: { name: "agents", include: ["examples/agents/*.test.ts"], testTimeout: 120_000 },
      },
      {
        test: {
          name: "e2e",
          include: ["{src,bench}/**/*.e2e.ts"],
          globalSetup: ["./scripts/maintain/shared-models.ts", "./scripts/maintain/warm-python.ts"],
          testTimeout: 600_000,
          hookTimeout: 600_000,
          // Some wait for timers and programs.
          maxWorkers: availableParallelism() + 1,
        },
      },
    ],
  },
});
