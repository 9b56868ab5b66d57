import { expect, test } from "vitest";
import { workerDied } from "../../backends/local/engine.ts";
import { withFlags } from "./http.ts";

test("advice of the engine names the flags of hone serve, not the keys of a configuration", () => {
  for (const signal of ["SIGKILL", "SIGSEGV", "SIGBUS", "SIGILL", "SIGABRT", "SIGTERM", "SIGINT"] as const) {
    const death = { code: null, signal, residentBytes: null, memoryKills: null, lastLines: [], logFile: undefined };
    expect(withFlags(workerDied(death).hint ?? "")).not.toMatch(/\b(local|data|training|rllm)\.\w/);
  }
  expect(withFlags("Lower local.max_sample_rows or local.micro_batch_tokens, or try local.dtype=float32.")).toBe(
    "Lower --max-sample-rows or --micro-batch-tokens, or try --dtype float32.",
  );
});
