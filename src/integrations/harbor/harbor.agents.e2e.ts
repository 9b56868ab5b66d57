/** Coding agents as users install them, in containers, with a scripted model: their tokens and rewards. Only in nightly. */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, expect, test } from "vitest";
import { runCommandOnce } from "../../gateway/recorded-agents.fixture.ts";
import { nightly } from "../../nightly.fixture.ts";
import { characterChat, runWorkflow } from "../../testing/scripted.ts";
import { testEngine } from "../containers/host-image.fixture.ts";
import { debianImage, installAgents } from "./agents.fixture.ts";
import { type HarborOptions, harbor, harborTasks } from "./index.ts";
import { makeTask } from "./make-tasks.fixture.ts";

const engine = nightly ? await testEngine() : "only in nightly";
const made = typeof engine === "string" ? { problem: engine } : await debianImage(engine);
if (nightly && "problem" in made) console.warn(`NOT RUN: coding agents in containers (${made.problem})`);
const root = mkdtempSync(join(tmpdir(), "agents-e2e-"));
afterAll(() => rmSync(root, { recursive: true, force: true }));

const agents: [agent: string, options: Partial<HarborOptions>, roles: Record<string, number>][] = [
  ["mini-swe-agent", {}, { agent: 2 }],
  ["pi", { agentEnv: { PI_OFFLINE: "1" } }, { agent: 2 }],
  ["opencode", {}, { agent: 2, side: 1 }],
  ["claude-code", {}, { agent: 2 }],
  ["codex", {}, { agent: 2 }],
];

test.skipIf("problem" in made).each(agents)(
  "%s completes a task with the tokens that were sent and sampled, and no reward for its side calls",
  async (agent, options, roles) => {
    if ("problem" in made) return;
    const task = makeTask(root, made.image);
    const chat = characterChat();
    const calls: { prompt: string; reply: string }[] = [];
    const [episode] = await runWorkflow({
      workflow: harbor({
        agent,
        environment: "podman",
        network: "host",
        program: installAgents(),
        timeoutSeconds: 600,
        ...options,
      }),
      rows: [harborTasks(task).task(0).row],
      reply: async (messages, call) => {
        const reply = (await runCommandOnce(messages, call)) as string;
        calls.push({ prompt: chat.decode(call.prompt), reply });
        return reply;
      },
      timeoutSeconds: 900,
    });
    const { trajectories, correct } = episode!;
    expect([correct, trajectories[0]?.name]).toEqual([true, "agent"]);
    expect(Object.fromEntries(trajectories.map(({ name, steps }) => [name, steps.length]))).toEqual(roles);
    for (const { name, reward } of trajectories) expect([name, reward]).toEqual([name, name === "agent" ? 1 : null]);
    const recorded = trajectories.flatMap(({ steps }) =>
      steps.map(({ promptTokens, tokens }) => ({
        prompt: chat.decode(promptTokens),
        reply: chat.decode(tokens, { skipSpecial: true }),
      })),
    );
    const inOrder = <T extends { prompt: string }>(each: T[]) =>
      [...each].sort((a, b) => (a.prompt < b.prompt ? -1 : 1));
    expect(inOrder(recorded)).toEqual(inOrder(calls));
    const [first] = trajectories.find(({ name }) => name === "agent")!.steps;
    expect(chat.decode(first!.promptTokens)).toContain("Write the word done into the file /app/answer.txt.");
  },
  1_000_000,
);
