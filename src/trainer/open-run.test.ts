// biome-ignore-all lint/suspicious/noTemplateCurlyInString: the configuration's references are spelled like that
import { existsSync, mkdirSync, readdirSync, readFileSync, statSync, writeFileSync } from "node:fs";
import { createServer, type Server } from "node:http";
import { join } from "node:path";
import { afterAll, afterEach, beforeAll, describe, expect, it, test, vi } from "vitest";
import { listen } from "../base/http.ts";
import { listenForInterrupt } from "./open-run.ts";
import { openToy, temporaryFolders, toy } from "./toy-experiment.fixture.ts";
import { train } from "./train.ts";

describe("interrupt", () => {
  afterEach(() => vi.restoreAllMocks());

  test.each([
    ["before the first step every Ctrl-C ends at once", () => false, [1]],
    ["later the first lets the step finish, and the second ends at once", () => true, [0, 1]],
    ["a measurement ends at the first", undefined, [1]],
  ])("%s", async (_, onFirst, expected) => {
    const exit = vi.spyOn(process, "exit").mockImplementation((() => {}) as never);
    let stops = 0;
    const interrupt = listenForInterrupt(onFirst, async () => void stops++);
    try {
      for (const count of expected) {
        process.emit("SIGINT");
        await new Promise(setImmediate);
        expect([stops, exit.mock.calls.length, interrupt.requested]).toEqual([count, count, true]);
      }
    } finally {
      interrupt.dispose();
    }
  });
});

describe("engine failed", () => {
  const { root, newFolder } = temporaryFolders("failed");
  afterEach(() => vi.unstubAllEnvs());

  /** A worker that ends at once. */
  function brokenPython(): string {
    const program = join(root, "python");
    writeFileSync(program, `#!/bin/sh\n[ "$1" = -c ] && exit 0\necho "no libtorch" >&2\nexit 1\n`, { mode: 0o755 });
    return program;
  }

  it("the run folder stays with the log of the engine, and the name can be used again", async () => {
    vi.stubEnv("HONE_PYTHON", brokenPython());
    const [model, folder] = [join(root, "model"), newFolder()];
    mkdirSync(model);
    writeFileSync(join(model, "config.json"), "{}");
    const run = () => train(toy(), { overrides: [`model.name=${model}`, `rllm.trainer.run_dir=${folder}`] });
    for (let attempt = 0; attempt < 2; attempt++) {
      await expect(run()).rejects.toThrow(/ended with exit code 1/);
      expect(readFileSync(join(folder, "worker.log"), "utf8")).toContain("no libtorch");
    }
  });

  it("a mistake of the user leaves no folder", async () => {
    vi.stubEnv("HONE_PYTHON", brokenPython());
    const folder = newFolder();
    const overrides = [`model.name=${join(root, "missing")}`, `rllm.trainer.run_dir=${folder}`];
    await expect(train(toy(), { overrides })).rejects.toMatchObject({ exitCode: 2 });
    expect(existsSync(folder)).toBe(false);
  });
});

describe("secrets", () => {
  const { newFolder } = temporaryFolders("secrets");
  afterEach(() => vi.unstubAllEnvs());

  const secret = "a-secret-4711";
  const key = "rllm.sdk.proxy.admin_token";

  /** Every file of a folder that holds the text. */
  function filesWith(folder: string, text: string): string[] {
    const files = readdirSync(folder, { recursive: true, encoding: "utf8" });
    return files.filter((file) => {
      const path = join(folder, file);
      return statSync(path).isFile() && readFileSync(path).includes(text);
    });
  }

  test("no file of a run holds a secret, and a resumed run fetches it again", async () => {
    const folder = newFolder();
    vi.stubEnv("HONE_TEST_TOKEN", secret);
    const references = [
      `${key}=\${oc.env:HONE_TEST_TOKEN}`,
      "rllm.trainer.experiment_name=x-${oc.env:HONE_TEST_TOKEN}",
    ];
    const steps = (count: number) => `rllm.trainer.total_batches=${count}`;
    await train(toy(), { engine: openToy(), overrides: [...references, steps(2), `rllm.trainer.run_dir=${folder}`] });
    expect(filesWith(folder, "oc.env:HONE_TEST_TOKEN")).toContain("config.yaml");
    expect(filesWith(folder, "oc.env:HONE_TEST_TOKEN").some((file) => file.endsWith("checkpoint.json"))).toBe(true);
    expect(filesWith(folder, secret)).toEqual([]);

    vi.stubEnv("HONE_TEST_TOKEN", "another-one");
    const resumed = await train(toy(), { engine: openToy(), resume: folder, overrides: [steps(4)] });
    expect(resumed).toMatchObject({ exitCode: 0, step: 4 });
    expect(filesWith(folder, "another-one")).toEqual([]);
  });

  test("an admin token that was given literally must be given again", async () => {
    const folder = newFolder();
    const overrides = [`${key}=${secret}`, "rllm.trainer.total_batches=1", `rllm.trainer.run_dir=${folder}`];
    await train(toy(), { engine: openToy(), overrides });
    expect(filesWith(folder, secret)).toEqual([]);
    const again = (more: string[]) =>
      train(toy(), { engine: openToy(), resume: folder, overrides: ["rllm.trainer.total_batches=2", ...more] });
    await expect(again([])).rejects.toThrow(/admin_token was not saved with the run/);
    expect(await again([`${key}=${secret}`])).toMatchObject({ step: 2 });
  });

  test("the login of a URL is not saved, and must be given again", async () => {
    const folder = newFolder();
    const tunnel = `rllm.gateway.tunnel=http://me:${secret}@localhost:1`;
    const overrides = [tunnel, "rllm.trainer.total_batches=1", `rllm.trainer.run_dir=${folder}`];
    await train(toy(), { engine: openToy(), overrides });
    expect(filesWith(folder, "http://***@localhost:1")).not.toEqual([]);
    expect(filesWith(folder, secret)).toEqual([]);
    const again = (more: string[]) =>
      train(toy(), { engine: openToy(), resume: folder, overrides: ["rllm.trainer.total_batches=2", ...more] });
    await expect(again([])).rejects.toThrow(/password in rllm.gateway.tunnel were not saved/);
    expect(await again([tunnel])).toMatchObject({ step: 2 });
  });
});

describe("before", () => {
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
});
