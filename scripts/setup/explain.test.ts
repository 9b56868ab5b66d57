import { tmpdir } from "node:os";
import { describe, expect, it } from "vitest";
import { attempt, explain } from "./run.mjs";
import { uvSettings } from "./uv.mjs";

describe("explain", () => {
  it.each([
    ["npm error code ENOSPC", /the disk is full \(.* left/, "Free some space"],
    ["error: failed to write: No space left on device (os error 28)", /the disk is full/, "Free some space"],
    ["cause: dns error", /registry is not reachable/, "Check the network"],
    [
      "npm error network request failed, reason: getaddrinfo EAI_AGAIN",
      /registry is not reachable/,
      "Check the network",
    ],
    ["× Hash mismatch for `torch==2.15.0`", /differs from the lock file's hash/, "Clear the package cache"],
    ["error TS2307: Cannot find module", /^the step failed\n {4}error TS2307/, undefined],
  ])("%s", (output, message, hint) => {
    const error = explain("the step", output, tmpdir());
    expect(error.message).toMatch(message);
    if (hint === undefined) expect(error.hint).toBeUndefined();
    else expect(error.hint).toContain(hint);
  });
});

describe("attempt", () => {
  it.each([
    [
      "a program's exit code and output",
      ["-e", "console.log(1); console.error(2); process.exitCode = 3"],
      3,
      "1\n2\n",
      60_000,
    ],
    ["a program that runs too long", ["-e", "setTimeout(() => {}, 60000)"], 124, "", 700],
  ])("gives %s", async (_what, args, code, output, timeoutMs) => {
    expect(await attempt(process.execPath, args, { timeoutMs })).toEqual({ code, output });
  });

  it("gives 127 for a missing program", async () => {
    expect((await attempt("/no/such/program", [])).code).toBe(127);
  });
});

describe("uvSettings", () => {
  const pip = "global.index-url='https://mirror.example/simple'\n:env:.cert='/etc/ca.pem'\n";
  it.each([
    [
      "pip's mirror and certificate",
      pip,
      {},
      { UV_DEFAULT_INDEX: "https://mirror.example/simple", SSL_CERT_FILE: "/etc/ca.pem" },
    ],
    ["uv's own settings win", pip, { UV_INDEX_URL: "x", SSL_CERT_FILE: "y" }, {}],
    ["nothing set", "", {}, {}],
  ])("%s", (_what, config, environment, settings) => expect(uvSettings(config, environment)).toEqual(settings));
});
