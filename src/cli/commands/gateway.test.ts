import { createServer } from "node:net";
import { expect, test, vi } from "vitest";
import { listen } from "../../http/listen.ts";
import { runCommandLine } from "../run-command-line.ts";

test.each(["abc", "", "ftp://127.0.0.1", "127.0.0.1:8000", "http://"])(
  "hone gateway --upstream %j is refused with one sentence",
  async (url) => {
    using errors = vi.spyOn(process.stderr, "write").mockReturnValue(true);
    expect(await runCommandLine(["gateway", "--upstream", url])).toBe(2);
    expect(errors.mock.calls.join("")).toContain("is not an http address");
  },
);

test.each([
  ["--upstream-kind", "sglang"],
  ["--upstream-model", "qwen"],
])("hone gateway %s without --upstream is refused", async (flag, value) => {
  using errors = vi.spyOn(process.stderr, "write").mockReturnValue(true);
  expect(await runCommandLine(["gateway", flag, value])).toBe(2);
  expect(errors.mock.calls.join("")).toContain(`${flag} ${value} requires --upstream`);
});

test.each(["gateway", "chat", "doctor"])(
  "hone %s refuses a setting that the backend does not support",
  async (name) => {
    using errors = vi.spyOn(process.stderr, "write").mockReturnValue(true);
    const words = [name, "model.name=./no-such-model", "rllm.algorithm.adv_estimator=nope"];
    expect(await runCommandLine(words)).toBe(2);
    expect(errors.mock.calls.join("")).toContain(
      'rllm.algorithm.adv_estimator="nope": the name is neither built in nor registered',
    );
  },
);

test.each(["rllm.sdk.proxy.port", "rllm.gateway.port"])(
  "hone gateway refuses a port in use and names %s, before it loads a model",
  async (setting) => {
    const other = createServer();
    const { port } = new URL(await listen(other));
    using errors = vi.spyOn(process.stderr, "write").mockReturnValue(true);
    expect(await runCommandLine(["gateway", "model.name=./no-such-model", `${setting}=${port}`])).toBe(2);
    other.close();
    const printed = errors.mock.calls.join("");
    expect(printed).toContain(`the gateway cannot listen on 127.0.0.1:${port}: listen EADDRINUSE`);
    expect(printed).toContain(`choose another port with ${setting}; 0 takes any free one`);
    expect(printed).not.toContain("no-such-model");
  },
);
