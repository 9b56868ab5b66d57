/** A run refuses its settings before it loads a model or calls a service. */
import { existsSync } from "node:fs";
import { createServer, type Server } from "node:http";
import { afterAll, beforeAll, expect, it, vi } from "vitest";
import { listen } from "../../http/listen.ts";
import { openToy, temporaryFolders, toy } from "../toy-experiment.fixture.ts";
import { train } from "../train.ts";

const { newFolder } = temporaryFolders("before");
let requests = 0;
let server: Server;
let url: string;
beforeAll(async () => {
  server = createServer((_request, response) => {
    requests++;
    response.writeHead(500).end();
  });
  url = await listen(server);
});
afterAll(() => {
  server.close();
});

it.each([
  ["an estimator that needs a critic", ["rllm.algorithm.adv_estimator=gae"], /requires a critic/],
  ["a loss that needs entropies", ["rllm.algorithm.entropy_coeff=0.1"], /entropy_coeff/],
  ["weights that cannot be trained", ["model.lora_rank=0"], /requires training of all weights/],
  [
    "asynchronous settings that contradict",
    ["rllm.async_training.enable=true", "rllm.rejection_sample.enable=true"],
    /rejection_sample/,
  ],
  ["a tunnel with the default admin token", ["rllm.gateway.tunnel=https://tunnel.example"], /default admin token/],
  ["a tunnel that is not an address", ["rllm.gateway.tunnel=tunnel"], /not an http/],
  ["a checkpoint without a path", ["training.resume_mode=path"], /resume_from_path/],
])("%s", async (_, overrides, message) => {
  requests = 0;
  const folder = newFolder();
  const service = `tinker_base_url=${url}`;
  const settings = ["rllm/backend=tinker", service, "model.lora_rank=32", `rllm.trainer.run_dir=${folder}`];
  await expect(train(toy(), { overrides: [...settings, ...overrides] })).rejects.toThrow(message);
  expect([requests, existsSync(folder)]).toEqual([0, false]);
});

it("a wrong checkpoint is refused before the model loads", async () => {
  const folder = newFolder();
  const missing = /the folder .*nothing does not exist/;
  const settings = { engine: openToy(), overrides: [`rllm.trainer.run_dir=${folder}`] };
  await expect(train(toy(), { ...settings, checkpoint: `${folder}/nothing` })).rejects.toThrow(missing);
  const resumed = [...settings.overrides, "training.resume_mode=path", `training.resume_from_path=${folder}/nothing`];
  await expect(train(toy(), { ...settings, overrides: resumed })).rejects.toThrow(missing);
  expect(existsSync(folder)).toBe(false);
});

it("a dry run names everything for which a run would stop, and exits with the code of such a run", async () => {
  const written: string[] = [];
  vi.spyOn(process.stdout, "write").mockReturnValue(true);
  vi.spyOn(process.stderr, "write").mockImplementation((text) => written.push(String(text)) > 0);
  const dry = (...overrides: string[]) => train(toy(), { overrides, dryRun: true });
  const wrong = ["local.processes=2", "local.sequence_parallel=3", "rllm.gateway.tunnel=tunnel", "rllm.rollout.n=3"];
  expect((await dry(...wrong, "training.resume_mode=path")).exitCode).toBe(2);
  const refused = written.splice(0);
  expect((await dry("model.name=./no-model")).exitCode).toBe(2);
  expect(written.splice(0).join("")).toContain("no-model does not exist; a run would stop here");
  expect((await dry()).exitCode).toBe(0);
  vi.restoreAllMocks();
  const stops = refused.filter((line) => line.includes("a run would stop here")).join("");
  for (const reason of ["sequence_parallel=3", "not an http", "resume_from_path"]) expect(stops).toContain(reason);
  expect(written.filter((line) => line.includes("would stop"))).toEqual([]);
});

it.each([
  [
    "by the start-up check",
    ["rllm/backend=tinker", "model.lora_rank=32", "rllm.algorithm.adv_estimator=gae"],
    /requires a critic/,
  ],
  ["by the name of a role's estimator", ["rllm.algorithm.estimator_map.solver=gropo"], /gropo is neither built in/],
  [
    "beside a setting that it ignores",
    ["rllm.on_unsupported=warn", "rllm.remote_runtime.agentcore={a: 1}", "rllm.algorithm.estimator_map.solver=gropo"],
    /gropo is neither built in/,
  ],
])("a dry run says once what a run refuses %s, and prints the configuration", async (_, overrides, reason) => {
  const written: Record<"stdout" | "stderr", string[]> = { stdout: [], stderr: [] };
  for (const stream of ["stdout", "stderr"] as const) {
    vi.spyOn(process[stream], "write").mockImplementation((text) => written[stream].push(String(text)) > 0);
  }
  await train(toy(), { overrides, dryRun: true });
  vi.restoreAllMocks();
  const stops = written.stderr.filter((line) => line.includes("a run would stop here"));
  expect(stops).toEqual([expect.stringMatching(reason)]);
  expect(written.stdout.join("")).toContain("rllm:");
});
