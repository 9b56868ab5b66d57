/** Trials in real containers, through Harbor and the gateway. Without a container engine they do not run, and say so. */
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import type { Workflow } from "../../agents/types.ts";
import { nightly } from "../../nightly.fixture.ts";
import { temporaryFolder } from "../../temporary-folder.fixture.ts";
import { runWorkflow } from "../../testing/scripted.ts";
import type { Episode } from "../../trajectories/types.ts";
import { hostImage, testEngine } from "../containers/host-image.fixture.ts";
import { checkTasks } from "./check-tasks.ts";
import { shellAgent, writeReward } from "./harbor.ts";
import { type HarborOptions, type HarborTask, harbor, harborTasks } from "./index.ts";
import { bashAgent, makeTask, testsFolder } from "./make-tasks.fixture.ts";
import { openBridge } from "./trial.ts";
import { watchTrials } from "./trials.fixture.ts";

const engine = await testEngine();
if (typeof engine === "string") console.warn(`NOT RUN: trials of Harbor in containers (${engine})`);
// Also of the bridge, which imports this agent.
process.env.PYTHONPATH = testsFolder;
const root = temporaryFolder("harbor-e2e");
process.env.TMPDIR = temporaryFolder("harbor-trials");
const trials = watchTrials(engine, process.env.TMPDIR);

async function run(workflow: Workflow<HarborTask>, reply = () => "echo done > /app/answer.txt"): Promise<Episode> {
  const rows = [harborTasks(root).task(0).row];
  const limits = { timeoutSeconds: 400, raiseOnError: false };
  const [episode] = await runWorkflow({ workflow, rows, reply, ...limits });
  return episode!;
}

const options = (command: string, more: Partial<HarborOptions> = {}): HarborOptions => ({
  ...{ agent: shellAgent, environment: "podman", network: "host", agentArgs: { command }, ...more },
});

test.skipIf(typeof engine === "string")(
  "an agent earns the reward with its exact tokens; a forged reward, work after the limit and a killed bridge earn none",
  async () => {
    if (typeof engine === "string") return;
    makeTask(root, await hostImage(engine));
    const [own, forged, planted, late] = await Promise.all([
      run(harbor({ ...options(""), agent: bashAgent, agentArgs: {} })),
      run(harbor(options(writeReward))),
      // The directory cannot be removed by Harbor's rm -f.
      run(
        harbor(
          options("mkdir -p /tests /logs/verifier/reward.json; echo 'echo done > /app/answer.txt' > /tests/before.sh"),
        ),
      ),
      run(harbor(options("(setsid sh -c 'sleep 15; echo done > /app/answer.txt' &); sleep 60", { timeoutSeconds: 5 }))),
    ]);
    expect(own).toMatchObject({ trajectories: [{ name: "agent", reward: 1, steps: [{}] }], correct: true });
    expect(own.explanation).toBe("found: done");
    expect(own.trial).toMatchObject({ verifier: expect.stringContaining("found: done") });
    expect(own.trial?.files).toContainEqual({ path: "/app/answer.txt", change: "added" });
    const [step] = own.trajectories[0]!.steps;
    expect([step?.text, step?.tokens.length]).toEqual(["echo done > /app/answer.txt", 28]);
    for (const { failure, trajectories } of [forged, planted])
      expect([failure, trajectories]).toMatchObject([undefined, [{ reward: 0 }]]);
    expect(late).toMatchObject({ trajectories: [{ reward: 0 }], metrics: { agent_out_of_budget: 1 } });
    expect(late.explanation).toContain("AgentTimeoutError");

    // The bridge is killed while the agent works: the trial is not the agent's failure, and its container is removed.
    const bridge = await openBridge();
    const killed = await run(async (task, context) => {
      const stage = (name: string) => {
        context.stage(name);
        if (name === "agent") process.kill(bridge.pid, "SIGKILL");
      };
      return harbor(options("sleep 30"))(task, { ...context, stage });
    });
    expect(killed.failure).toMatchObject({ kind: "infrastructure", message: expect.stringContaining("SIGKILL") });
    expect(await trials.left()).toEqual([]);
  },
  600_000,
);

test.skipIf(typeof engine === "string" || !nightly)(
  "a check runs the solution, which earns the reward, and agents that must not",
  async () => {
    if (typeof engine === "string") return;
    const image = await hostImage(engine);
    const [good, bad, safe] = [1, 2, 3].map(() => makeTask(temporaryFolder("harbor-check"), image)) as [
      string,
      string,
      string,
    ];
    const test = "#!/bin/bash\necho $(( $(pytest; echo $?) == 0 )) > /logs/verifier/reward.txt\n";
    writeFileSync(join(bad, "tests/test.sh"), test);
    const toml = join(safe, "task.toml");
    writeFileSync(toml, readFileSync(toml, "utf8").replace("[agent]", '[agent]\nuser = "1000"'));
    writeFileSync(
      join(safe, "environment/Dockerfile"),
      `FROM ${image}\nRUN mkdir /app && chmod 777 /app\nWORKDIR /app\n`,
    );
    const options = { environment: "podman", network: "host", signal: new AbortController().signal } as const;
    const check = async (folder: string) => {
      for await (const task of checkTasks(folder, options)) return task;
      return undefined;
    };
    const [asRoot, hackable, fine] = await Promise.all([check(good), check(bad), check(safe)]);
    const hacked = (how: string) => `can be hacked: an agent that ${how} earns 1`;
    const [writes, programs, shell] = [
      "writes the reward file",
      "replaces the verifier's programs",
      "replaces the shell",
    ];
    expect(asRoot).toMatchObject({
      problems: [],
      rewards: { nop: 0, oracle: 1, [writes]: 0, [programs]: 0, [shell]: null },
    });
    expect(hackable).toMatchObject({
      problems: ["its solution earns 0", hacked(programs)],
      rewards: { nop: 0, oracle: 0, [writes]: 0, [programs]: 1, [shell]: null },
    });
    expect(fine).toMatchObject({
      problems: [],
      rewards: { nop: 0, oracle: 1, [writes]: 0, [programs]: 0, [shell]: 0 },
    });
    expect(await trials.left()).toEqual([]);
  },
  600_000,
);

test.skipIf(typeof engine === "string" || !nightly)(
  "a killed container is not the agent's failure, but one that the agent has broken is; nothing is left",
  async () => {
    if (typeof engine === "string") return;
    makeTask(root, await hostImage(engine));
    const broken = await run(harbor(options("rm -rf /usr/bin")));
    expect(broken.failure).toMatchObject({ kind: "agent", message: expect.stringContaining("could not be ended") });
    const lost = await run(async (task, context) => {
      const stage = (name: string) => {
        context.stage(name);
        if (name === "agent") void trials.containers().then((names) => engine.run(["kill", ...names]));
      };
      return harbor(options("sleep 60"))(task, { ...context, stage });
    });
    expect(lost.failure).toMatchObject({ kind: "infrastructure" });
    expect(await trials.left()).toEqual([]);
  },
  600_000,
);
