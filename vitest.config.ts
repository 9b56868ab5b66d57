import { defineConfig } from "vitest/config";
import { LongestFirst } from "./scripts/maintain/longest-first.ts";

/** Unit tests need Node alone; end-to-end tests also start the Python worker and train tiny models for real. */
export default defineConfig({
  test: {
    reporters: ["default", "./scripts/maintain/failures.mjs"],
    sequence: { sequencer: LongestFirst },
    projects: [
      {
        test: {
          name: "unit",
          include: ["{src,scripts}/**/*.test.ts", "web/**/*.test.{ts,tsx}"],
          testTimeout: 60_000,
          // By default one core stays idle: half of a small machine.
          maxWorkers: "100%",
          // They compose config/verl, not the verl of another environment.
          env: { HONE_VERL_PYTHON: "none" },
        },
      },
      {
        test: {
          name: "e2e",
          include: ["{src,bench}/**/*.e2e.ts"],
          testTimeout: 600_000,
          hookTimeout: 600_000,
          maxWorkers: 2,
        },
      },
    ],
  },
});
