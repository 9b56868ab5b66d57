import { createServer } from "node:net";
import { expect, test } from "vitest";
import { listen } from "../../base/http.ts";
import { runHere } from "./run-here.fixture.ts";

test.each(["abc", "", "ftp://127.0.0.1", "127.0.0.1:8000", "http://"])(
  "hone gateway --upstream %j is refused with one sentence",
  async (url) => {
    const { code, errors } = await runHere("gateway", "--upstream", url);
    expect([code, errors]).toEqual([2, expect.stringContaining("is not an http address")]);
  },
);

test.each([
  ["--upstream-kind", "sglang"],
  ["--upstream-model", "qwen"],
])("hone gateway %s without --upstream is refused", async (flag, value) => {
  const { code, errors } = await runHere("gateway", flag, value);
  expect([code, errors]).toEqual([2, expect.stringContaining(`${flag} ${value} requires --upstream`)]);
});

test.each(["gateway", "chat", "doctor"])(
  "hone %s refuses a setting that the backend does not support",
  async (name) => {
    const { code, errors } = await runHere(name, "model.name=./no-such-model", "rllm.algorithm.adv_estimator=nope");
    expect(code).toBe(2);
    expect(errors).toContain('rllm.algorithm.adv_estimator="nope": the name is neither built in nor registered');
  },
);

test.each(["rllm.sdk.proxy.port", "rllm.gateway.port"])(
  "hone gateway refuses a port in use and names %s, before it loads a model",
  async (setting) => {
    const other = createServer();
    const { port } = new URL(await listen(other));
    const { code, errors } = await runHere("gateway", "model.name=./no-such-model", `${setting}=${port}`);
    other.close();
    expect(code).toBe(2);
    expect(errors).toContain(`the gateway cannot listen on 127.0.0.1:${port}: listen EADDRINUSE`);
    expect(errors).toContain(`choose another port with ${setting}; 0 takes any free one`);
    expect(errors).not.toContain("no-such-model");
  },
);
