/** Environments of other systems, from their packages, train a tiny model. Only in nightly: their packages are installed. */
import { execFile, execFileSync, spawn } from "node:child_process";
import { cpSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { connect } from "node:net";
import { dirname, join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { promisify } from "node:util";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import type { Reply, Workflow } from "../agents/types.ts";
import { multiTurn } from "../agents/workflows.ts";
import { freePort } from "../base/processes.ts";
import { makeTinyModel } from "../base/python.fixture.ts";
import { prepareEnvironment } from "../base/python.ts";
import type { Dataset } from "../data/dataset.ts";
import { fromRows } from "../data/dataset.ts";
import { nightly } from "../nightly.fixture.ts";
import { temporaryFolder } from "../temporary-folder.fixture.ts";
import { readEpisode } from "../tracking/episodes.ts";
import { train } from "../trainer/train.ts";
import { buildImage } from "./containers/engine.ts";
import { hostImage, testEngine } from "./containers/host-image.fixture.ts";
import { type NemoGymRow, nemoGym } from "./nemo-gym.ts";
import { openEnv } from "./openenv.ts";
import { verifiersEnvironment, verifiersTasks } from "./verifiers.ts";

const root = temporaryFolder("environments");
const run = promisify(execFile);
let model = "";
let python = "";
let url = "";
const ends: (() => void)[] = [];
afterAll(() => {
  for (const end of ends) end();
});

async function listens(port: number): Promise<void> {
  for (let tries = 0; tries < 600; tries++) {
    const up = await new Promise<boolean>((resolve) => {
      const socket = connect(port, "127.0.0.1", () => resolve(true)).on("error", () => resolve(false));
      socket.unref();
      setTimeout(() => socket.destroy(), 500).unref();
    });
    if (up) return;
    await sleep(200);
  }
  throw new Error(`nothing listens on ${port}`);
}

function start(program: string, args: string[], cwd = root, env = {}): void {
  const child = spawn(program, args, { cwd, stdio: "ignore", detached: true, env: { ...process.env, ...env } });
  ends.push(() => process.kill(-(child.pid ?? 0), "SIGKILL"));
}

/** @returns all episodes of two steps, after checking that each prompt continues the tokens before it */
async function trainTwoSteps<Row>(name: string, data: Dataset<Row>, workflow: Workflow<Row>, more: object = {}) {
  const folder = join(root, name);
  const { exitCode, history } = await train({
    train: data,
    workflow,
    config: {
      rllm: {
        rollout: { n: 4 },
        trainer: { total_batches: 2, logger: [], run_dir: folder, save_freq: 0 },
        workflow: { raise_on_error: true },
        ...more,
      },
      model: { name: model, lora_rank: 4, train_unembed: true },
      training: { learning_rate: 0.02 },
      data: { train_batch_size: 2, max_response_length: 12, max_prompt_length: 4096 },
      local: { dtype: "float32", device: "cpu", threads: 1 },
    },
  });
  expect([exitCode, history.length]).toEqual([0, 2]);
  const episodes = readdirSync(join(folder, "episodes"))
    .flatMap((file) =>
      readFileSync(join(folder, "episodes", file), "utf8")
        .trim()
        .split("\n"),
    )
    .map(readEpisode);
  expect(episodes).toHaveLength(16);
  for (const { trajectories, failure } of episodes) {
    expect(failure).toBeUndefined();
    for (const { steps } of trajectories) {
      for (const [index, step] of steps.entries()) {
        expect(step.logprobs).toHaveLength(step.tokens.length);
        expect([...step.logprobs].every((value) => value <= 0)).toBe(true);
        const before = steps[index - 1];
        if (before === undefined || step.starts !== undefined) continue;
        const seen = [...before.promptTokens, ...before.tokens];
        expect([...step.promptTokens].slice(0, seen.length)).toEqual(seen);
      }
    }
  }
  return episodes;
}

describe.skipIf(!nightly)("from their packages", () => {
  beforeAll(async () => {
    model = await makeTinyModel(join(root, "model"));
    python = await prepareEnvironment("openenv");
    await run(join(dirname(python), "openenv"), ["init", "echo_env"], { cwd: root });
    const port = await freePort();
    // verifiers does not wait for a free session, as openEnv does.
    const app = join(root, "echo_env/server/app.py");
    writeFileSync(app, readFileSync(app, "utf8").replace("max_concurrent_envs=1,", "max_concurrent_envs=8,"));
    const server = ["-m", "uvicorn", "server.app:app", "--host", "127.0.0.1", "--port", String(port)];
    start(python, server, join(root, "echo_env"));
    await listens(port);
    url = `http://127.0.0.1:${port}`;
  });

  test("OpenEnv's echo environment", async () => {
    const environment = openEnv<{ seed: number }>({ url });
    const rows = [1, 2, 3, 4].map((seed) => ({ seed }));
    const workflow = multiTurn<{ seed: number }>({
      maxSteps: 2,
      // The tiny model does not write tool calls, so its text becomes the action.
      environment: async (task) => {
        const { step, ...rest } = await environment(task);
        const act = (text: string) => ({ id: "call", name: "act", arguments: { message: text } });
        return {
          ...rest,
          step: (reply, context) => step({ ...reply, toolCalls: [act(reply.text)] as never, problems: [] }, context),
        };
      },
    });
    const episodes = await trainTwoSteps("openenv", fromRows("echo", rows), workflow);
    // A reply that is cut off is not an action, and ends its episode. The environment pays for the length of what it echoes.
    const acted = episodes.filter(({ metrics }) => metrics.actions! > 0);
    expect(acted.length).toBeGreaterThan(0);
    for (const { trajectories } of acted) expect(trajectories[0]?.reward).toBeGreaterThan(0);
  });

  test("an image of that environment, which Hone starts", async (context) => {
    const engine = await testEngine();
    if (typeof engine === "string") return context.skip(`no image is started: ${engine}`);
    const base = await hostImage(engine, "-languages");
    const [port, build] = [await freePort(), join(root, "build")];
    const { stdout } = await run(python, ["-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]);
    mkdirSync(build);
    cpSync(stdout.trim(), join(build, "packages"), { recursive: true });
    cpSync(join(root, "echo_env"), join(build, "echo_env"), { recursive: true });
    const serve = ["python3", "-m", "uvicorn", "server.app:app", "--host", "127.0.0.1", "--port", String(port)];
    writeFileSync(
      join(build, "Dockerfile"),
      `FROM ${base}\nCOPY packages /packages\nCOPY echo_env /srv\nENV PYTHONPATH=/packages:/srv\nWORKDIR /srv\nENTRYPOINT ${JSON.stringify(serve)}\n`,
    );
    const image = await buildImage(engine, build, 600);
    ends.push(() => execFileSync(engine.name, ["rmi", "-f", image], { stdio: "ignore" }));
    const environment = openEnv<{ seed: number }>({ image, port, network: "host", timeoutSeconds: 120 });
    const ask = { signal: new AbortController().signal, random: () => 0 };
    const first = await environment(fromRows("echo", [{ seed: 1 }]).task(0));
    expect(await first.reset(ask)).toContain("ready");
    const call = { id: "call", name: "act", arguments: { message: "hello" } };
    const reply = { toolCalls: [call], problems: [] } as unknown as Reply;
    expect(await first.step(reply, ask)).toMatchObject({ reward: 0.5, observation: [{ role: "tool" }] });
    await first.close?.();
    const { stdout: ids } = await engine.run(["ps", "-q", "--filter", `ancestor=${image}`]);
    expect(ids.trim().split("\n")).toHaveLength(1);
    await engine.run(["rm", "-f", ids.trim()]);
  });

  test("verifiers' OpenEnv taskset, which is in its package", async () => {
    const resets = [1, 2, 3, 4].map((seed) => ({ seed }));
    const own = await prepareEnvironment("verifiers-openenv");
    const options = {
      taskset: { id: "openenv", base_url: url, resets },
      python: own,
      env: { player: { max_turns: 2 } },
    };
    const tasks = await verifiersTasks(options);
    expect(tasks.size).toBe(4);
    const episodes = await trainTwoSteps("verifiers", tasks, verifiersEnvironment(options));
    for (const { trajectories } of episodes) expect(trajectories[0]?.reward).toBeGreaterThan(0);
  });

  test("a taskset of one's own, in verifiers' own environment", async () => {
    const words = ["red", "green", "blue", "white"];
    const code = `
import verifiers.v1 as vf

class WordTask(vf.Task[vf.TaskData]):
    @vf.reward(weight=2.0)
    async def replied(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply) > 0)

class WordTaskset(vf.Taskset[WordTask]):
    def load(self):
        for word in ${JSON.stringify(words)}:
            yield WordTask(vf.TaskData(name=word, prompt=f"Say {word}."), self.config.task)

__all__ = ["WordTaskset"]
`;
    const folder = join(root, "tasksets");
    mkdirSync(folder);
    writeFileSync(join(folder, "hone_words.py"), code);
    const options = { taskset: "hone-words", pythonPath: [folder] };
    const tasks = await verifiersTasks(options);
    expect(words.map((_, index) => tasks.task(index).row.name)).toEqual(words);
    const episodes = await trainTwoSteps("words", tasks, verifiersEnvironment(options));
    for (const { trajectories } of episodes) {
      expect([0, 2]).toContain(trajectories[0]?.reward);
      expect(trajectories[0]?.steps[0]?.messages.at(-1)?.content).toMatch(/^Say (red|green|blue|white)\.$/);
    }
    expect(episodes.some(({ trajectories }) => trajectories[0]?.reward === 2)).toBe(true);
  });

  // It needs Python 3.12 and a gigabyte, so it runs where somebody has installed it.
  test.skipIf(!process.env.HONE_NEMO_GYM_PYTHON)("NeMo Gym's agent with a tool", async () => {
    const script = join(import.meta.dirname, "../../worker/tests/serve_nemo_gym.py");
    const [listen, port] = [await freePort(), await freePort()];
    const ports = [port, await freePort(), await freePort(), await freePort()].map(String);
    start(process.env.HONE_NEMO_GYM_PYTHON!, [script, `http://127.0.0.1:${listen}/v1`, ...ports]);
    await listens(port);
    const tool = {
      name: "get_weather",
      type: "function",
      // NeMo Gym's rows require a strict schema, which sampling cannot guarantee.
      strict: true,
      parameters: { type: "object", properties: { city: { type: "string" } } },
    };
    const rows: NemoGymRow[] = ["Rome", "Oslo", "Lima", "Cairo"].map((city) => ({
      responses_create_params: { input: [{ role: "user", content: `weather in ${city}?` }], tools: [tool] },
    }));
    const workflow = nemoGym({ agent: `http://127.0.0.1:${port}`, listen: { port: listen } });
    const episodes = await trainTwoSteps("nemo-gym", fromRows("weather", rows), workflow, {
      gateway: { unenforceable: "allow" },
    });
    // This environment pays 1 for any answer.
    for (const { trajectories } of episodes) expect(trajectories[0]?.reward).toBe(1);
  });
});
