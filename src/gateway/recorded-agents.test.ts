/** Requests that coding agents sent, recorded by `scripts/proofs/coding-agents/record.ts`, are answered as they were then. */
import { expect, test } from "vitest";
import { rawRequest } from "../http/raw-request.fixture.ts";
import { readLines } from "../json-lines.fixture.ts";
import { toSequences } from "../trajectories/to-sequences.ts";
import { testGateway } from "./open-gateway.fixture.ts";
import { runCommandOnce } from "./recorded-agents.fixture.ts";

interface Recorded {
  method: string;
  path: string;
  upgrade?: string;
  status: number;
  body?: { tools?: unknown[] };
}

async function replay(agent: string) {
  const file = new URL(`recorded-agents/${agent}.jsonl`, import.meta.url);
  const [{ version }, ...requests] = readLines(file) as [{ version: string }, ...Recorded[]];
  const opened = await testGateway({ reply: runCommandOnce, enforceSampling: true });
  try {
    opened.entry.separateSideCalls();
    const statuses: number[] = [];
    for (const { method, path, upgrade, body } of requests) {
      const answer = await rawRequest(`${opened.entry.anthropicBaseURL}${path}`, {
        method,
        headers: { "content-type": "application/json", ...(upgrade ? { upgrade, connection: "upgrade" } : {}) },
        ...(body ? { body: JSON.stringify(body) } : {}),
      });
      statuses.push(answer.status);
    }
    expect(statuses).toEqual(requests.map(({ status }) => status));
    const trajectories = opened.session.trajectories();
    const [own] = trajectories.filter(({ name }) => name === "agent");
    const sequences = toSequences({
      ...own!,
      steps: own!.steps.map((step) => ({ ...step, policyVersion: 0 })),
    });
    return {
      version,
      calls: Object.fromEntries(trajectories.map(({ name, steps }) => [name, steps.length])),
      sequences: sequences.sequences.length,
      said: own!.steps.flatMap(({ reply }) => reply?.toolCalls.map(({ name }) => name) ?? []),
      ignored: Object.keys(opened.gateway.counts()).filter((name) => name.includes("ignored_parameter/tools")),
    };
  } finally {
    await opened.close();
  }
}

test.each([
  ["mini-swe-agent", { version: "2.4.6", calls: { agent: 2 }, said: ["bash"], ignored: [] }],
  ["pi", { version: "0.85.1", calls: { agent: 2 }, said: ["bash"], ignored: [] }],
  ["opencode", { version: "1.18.33", calls: { side: 1, agent: 2 }, said: ["bash"], ignored: [] }],
  ["claude-code", { version: "2.1.330", calls: { agent: 2 }, said: ["Bash"], ignored: [] }],
  [
    "codex",
    {
      version: "0.169.0",
      calls: { agent: 2 },
      said: ["exec_command"],
      ignored: ["gateway/ignored_parameter/tools.namespace", "gateway/ignored_parameter/tools.web_search"],
    },
  ],
])(
  "%s: every request is answered, its own calls are one sequence, others have another role",
  async (agent, expected) => {
    expect(await replay(agent)).toEqual({ ...expected, sequences: 1 });
  },
);
