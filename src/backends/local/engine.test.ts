import { describe, expect, it } from "vitest";
import { workerDied } from "./engine.ts";

const death = { code: null, signal: null, residentBytes: null, memoryKills: null, lastLines: [], logFile: undefined };

describe("workerDied", () => {
  it.each([
    [
      "SIGKILL is memory",
      { signal: "SIGKILL", residentBytes: 3.5 * 2 ** 30 },
      [/by SIGKILL: .*memory ran out/, /used 3\.5 GiB of memory/],
      /micro_batch_tokens/,
    ],
    [
      "SIGKILL while the kernel killed for memory",
      { signal: "SIGKILL", memoryKills: 1 },
      [/by SIGKILL: most likely .*memory ran out/],
      /micro_batch_tokens/,
    ],
    [
      "SIGKILL with plenty of memory is from outside",
      { signal: "SIGKILL", memoryKills: 0 },
      [/by SIGKILL: another program killed it \(signal 9\); the kernel killed no process for memory meanwhile\./],
      /^Look for what ends processes here/,
    ],
    [
      "a rank's SIGKILL with plenty of memory is from outside",
      { code: 137, memoryKills: 0 },
      [/exit code 137: another program killed it/],
      /^Look for/,
    ],
    ["137 is SIGKILL seen through a shell", { code: 137 }, [/exit code 137: .*memory ran out/], /micro_batch_tokens/],
    ["SIGSEGV", { signal: "SIGSEGV" }, [/native code/], /hone doctor/],
    ["SIGILL", { signal: "SIGILL" }, [/processor does not support/], /HONE_PYTHON/],
    [
      "a plain failure",
      { code: 1, lastLines: ["Traceback", "ModuleNotFoundError: torch"] },
      [/exit code 1\./, /last output:\n {4}Traceback\n {4}Module/],
      /output above/,
    ],
    ["the log", { code: 1, logFile: "/runs/a/worker.log" }, [/exit code 1/], /Its log: \/runs\/a\/worker\.log/],
  ] as const)("%s", (_what, facts, messages, hint) => {
    const error = workerDied({ ...death, ...facts });
    for (const message of messages) expect(error.message).toMatch(message);
    expect(error.hint).toMatch(hint);
    expect(error.exitCode).toBe(1);
  });

  it("shows only the end of a long log", () => {
    const lastLines = Array.from({ length: 50 }, (_, index) => `line ${index}`);
    const { message } = workerDied({ ...death, code: 1, lastLines });
    expect(message).not.toContain("line 37\n");
    expect(message).toContain("line 38\n");
  });
});
