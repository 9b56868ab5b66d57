/** A coding agent that starts a subagent, and goes on from a summary when its context is full. Only in nightly. */
import { expect, test } from "vitest";
import { nightly } from "../../nightly.fixture.ts";
import { temporaryFolder } from "../../temporary-folder.fixture.ts";
import type { Script } from "../../testing/scripted.ts";
import { runWorkflow } from "../../testing/scripted.ts";
import { testEngine } from "../containers/host-image.fixture.ts";
import { debianImage, installAgents } from "./agents.fixture.ts";
import { harbor, harborTasks } from "./index.ts";
import { makeTask } from "./make-tasks.fixture.ts";

const engine = nightly ? await testEngine() : "only in nightly";
const made = typeof engine === "string" ? { problem: engine } : await debianImage(engine);
if (nightly && "problem" in made) console.warn(`NOT RUN: compaction in containers (${made.problem})`);

const summary = "Many letters were printed. The word done must still be written into /app/answer.txt.";
const asked = "Say hello to the other agent.";
const call = (name: string, args: object) => ({
  toolCalls: [{ name, arguments: { description: "Runs it.", ...args } }],
});
const run = (command: string) => call("bash", { command });

/** Asks a subagent, prints more than the context has room for, and does the task only after the summary. */
const script: Script = (messages) => {
  const prompt = messages.map(({ content }) => content).join("\n");
  const last = messages.at(-1);
  if (!prompt.includes('"name":"bash"')) return /summar/i.test(prompt) ? summary : "A title";
  if (last?.role === "user" && String(last.content).includes(asked)) return "Hello, other agent.";
  if (prompt.includes(summary))
    return last?.role === "tool" ? "The file is written." : run("echo done > /app/answer.txt");
  const turns = messages.filter(({ role }) => role === "tool").length;
  if (turns === 0) return call("task", { prompt: asked, subagent_type: "general" });
  return run(turns === 1 ? "printf '%020000d' 0" : "true");
};

test.skipIf("problem" in made)(
  "opencode's subagent has no reward; after a compaction, recorded as such, its conversation has one",
  async () => {
    if ("problem" in made) return;
    const task = makeTask(temporaryFolder("compaction"), made.image);
    // In tokens, which are characters here: its first prompt has about 30,000.
    const limits = { provider: { hone: { models: { policy: { limit: { context: 45_000, output: 1_000 } } } } } };
    const [episode] = await runWorkflow({
      workflow: harbor({
        ...{ agent: "opencode", environment: "podman", network: "host", program: installAgents() },
        agentArgs: { opencode_config: limits },
        timeoutSeconds: 600,
      }),
      rows: [harborTasks(task).task(0).row],
      reply: script,
      timeoutSeconds: 900,
    });
    const found = episode!.trajectories.map(({ name, reward, steps }) => [name, reward, steps.length]);
    expect(Object.fromEntries(found.map(([name, ...rest]) => [name, rest]))).toEqual({
      ...{ agent: [1, 5], side: [null, 2], subagent: [null, 1] },
    });
    const own = episode!.trajectories.find(({ name }) => name === "agent")!;
    expect(own.steps.findIndex(({ starts }) => starts === "compacted")).toBe(3);
  },
  1_000_000,
);
