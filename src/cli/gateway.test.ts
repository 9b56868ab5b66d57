import { expect, test, vi } from "vitest";
import { runCommandLine } from "./run-command-line.ts";

test.each(["abc", "", "ftp://127.0.0.1", "127.0.0.1:8000", "http://"])(
  "hone gateway --upstream %j is one sentence",
  async (url) => {
    using errors = vi.spyOn(process.stderr, "write").mockReturnValue(true);
    expect(await runCommandLine(["gateway", "--upstream", url])).toBe(2);
    expect(errors.mock.calls.join("")).toContain("is not an http address");
  },
);

test.each(["--upstream-kind", "--upstream-model"])("hone gateway %s without --upstream is refused", async (flag) => {
  using errors = vi.spyOn(process.stderr, "write").mockReturnValue(true);
  expect(await runCommandLine(["gateway", flag, "model.name=./no-such-model"])).toBe(2);
  expect(errors.mock.calls.join("")).toContain(`${flag} model.name=./no-such-model requires --upstream`);
});
