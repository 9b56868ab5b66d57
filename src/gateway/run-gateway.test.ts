/** Training an agent that only knows an HTTP address. */
import { chmodSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { delimiter, join } from "node:path";
import { expect, test, vi } from "vitest";
import type { Workflow } from "../agents/types.ts";
import { UserError } from "../base/errors.ts";
import { metricLines, openToy, type ToyRow, temporaryFolders, toy } from "../trainer/toy-experiment.fixture.ts";
import { train } from "../trainer/train.ts";
import { gatewayBaseURL } from "./sessions.ts";
import { openTraceStore } from "./traces/store.ts";

const { newFolder, root } = temporaryFolders("train-gateway");

/** The toy's workflow over HTTP, as an agent with no idea of training would do it. */
const overHttp: Workflow<ToyRow> = async () => {
  const response = await fetch(`${gatewayBaseURL()}/chat/completions`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ model: "any", messages: [{ role: "user", content: "b" }], temperature: 0 }),
  });
  const { choices } = (await response.json()) as { choices: { message: { content: string } }[] };
  return [...choices[0]!.message.content].filter((letter) => letter === "a").length / 4;
};

test("a run through the gateway has exactly the metrics of a run through the model client, and its calls are traced", async () => {
  const [direct, http, traces] = [newFolder(), newFolder(), join(root, "traces.db")];
  await train(toy(), { engine: openToy(), overrides: [`rllm.trainer.run_dir=${direct}`] });
  const experiment = toy({}, undefined, overHttp);
  const overrides = [`rllm.trainer.run_dir=${http}`, "rllm.trainer.project_name=toys", `rllm.sdk.store.path=${traces}`];
  const { history } = await train(experiment, { engine: openToy(), overrides });
  const withoutCounts = metricLines(http).map((line) =>
    Object.fromEntries(Object.entries(line).filter(([name]) => !name.startsWith("gateway/"))),
  );
  expect(withoutCounts).toEqual(metricLines(direct));
  // 16 rollouts a step, and 8 of each validation so far.
  expect(history.at(-1)!.metrics).toMatchObject({
    "gateway/calls_ok": 6 * 16 + 2 * 8,
    "gateway/overridden/temperature": 6 * 16 + 2 * 8,
  });

  const store = openTraceStore({ path: traces, create: false });
  const sessions = store.sessions({ project: "toys" });
  expect(sessions).toHaveLength(6 * 16 + 3 * 8);
  expect(
    sessions.every(({ calls, reward, termination }) => calls === 1 && reward !== null && termination !== null),
  ).toBe(true);
  const { session, attempt } = sessions.at(-30)!;
  const [trace] = store.traces({ session, attempt });
  expect(trace!.policyVersion).toBeGreaterThan(0);
  expect(trace!.logprobs).toHaveLength(trace!.tokens.length);
  store.close();
});

test("a gateway that cannot be opened with its settings stops the run before it begins", async () => {
  const run = (...more: string[]) =>
    train(toy(), { engine: openToy(), overrides: [`rllm.trainer.run_dir=${newFolder()}`, ...more] });
  await expect(run("rllm.sdk.proxy.host=0.0.0.0")).rejects.toThrow(UserError);
  await expect(run("rllm.gateway.host=203.0.113.1", "rllm.sdk.proxy.admin_token=secret")).rejects.toThrow(
    /cannot listen/,
  );
});

test("rllm.gateway.tunnel=cloudflared: agents get the address that the program prints, and the program ends with the run", async () => {
  const [programs, note] = [join(root, "programs"), join(root, "cloudflared.txt")];
  mkdirSync(programs);
  const line = "2026-11-11T19:57:58Z INF |  https://four-dashed-word-url.trycloudflare.com  |";
  writeFileSync(
    join(programs, "cloudflared"),
    `#!/bin/sh\necho "$$ $*" > ${note}\necho '${line}' >&2\nexec sleep 600\n`,
  );
  chmodSync(join(programs, "cloudflared"), 0o755);
  vi.stubEnv("PATH", `${programs}${delimiter}${process.env.PATH}`);
  const addresses = new Set<string>();
  const workflow: Workflow<ToyRow> = (_task, { gateway }) => {
    addresses.add(new URL(gateway.baseURL).origin);
    return 1;
  };
  const overrides = [
    `rllm.trainer.run_dir=${newFolder()}`,
    "rllm.trainer.total_batches=1",
    "rllm.gateway.tunnel=cloudflared",
  ];
  const run = (...more: string[]) =>
    train(toy({}, undefined, workflow), { engine: openToy(), overrides: [...overrides, ...more] });
  await expect(run()).rejects.toThrow(/the address that cloudflared opens and has the default admin token/);
  await run("rllm.sdk.proxy.admin_token=secret");
  vi.unstubAllEnvs();
  expect([...addresses]).toEqual(["https://four-dashed-word-url.trycloudflare.com"]);
  const [, pid, port] = /^(\d+) tunnel --no-autoupdate --url http:\/\/127\.0\.0\.1:(\d+)\n$/.exec(
    readFileSync(note, "utf8"),
  )!;
  expect(Number(port)).toBeGreaterThan(0);
  expect(() => process.kill(Number(pid), 0)).toThrow();
});
