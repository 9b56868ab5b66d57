/** A workflow that lets a coding agent work on a Harbor task, and gets its reward from the task's verifier. */
import { resolve } from "node:path";
import type { GatewayAccess, GatewayAddress, GatewayCalls, Workflow } from "../../agents/types.ts";
import { UserError } from "../../base/errors.ts";
import { isLoopback } from "../../base/http.ts";
import { findEngine } from "../containers/engine.ts";
import type { HarborTask } from "./tasks.ts";
import { checkCalls, engineOf, hostName, runTrial, type TrialEvent, toOutcome } from "./trial.ts";

export interface HarborOptions {
  /** One of Harbor's agents, such as `"pi"`, or a class of your own: `"package.module:Class"`. */
  agent: string;
  /** `"docker"`, `"podman"`, `"daytona"`, `"e2b"`, `"modal"`, ...; default: Docker if it runs, else podman. */
  environment?: string;
  /**
   * The network of containers on this machine. `"bridge"` (default): containers reach the gateway through an address that
   * `rllm.gateway.tunnel` names. `"host"`: they share this machine's network, without isolation.
   */
  network?: "bridge" | "host";
  /** Options of Harbor's agent, such as `{ max_turns: 8 }`. */
  agentArgs?: Readonly<Record<string, unknown>>;
  /** Variables for the agent, in addition to the address of the model. */
  agentEnv?: Readonly<Record<string, string>>;
  /** Seconds for the agent, in place of the task's limit. */
  timeoutSeconds?: number;
  /** No task gives the agent more seconds than this. */
  maxTimeoutSeconds?: number;
  /**
   * The agent's program in a folder of this machine, which the container sees read-only at `/opt/agent`; without it Harbor
   * installs the agent in every trial. `path`: folders in it that have programs.
   */
  program?: { folder: string; path: readonly string[] };
  /** More folders or files of this machine for the container, read-only, by their path in the container. */
  mounts?: Readonly<Record<string, string>>;
  /** The verifier tests a program that the agent started, so the agent's processes go on, unless it ran out of time. */
  keepProcesses?: boolean;
  /** Also train on titles, summaries and subagents with the trial's reward. */
  trainSideCalls?: boolean;
  /** More fields of Harbor's TrialConfig, such as `{ verifier_timeout_multiplier: 2 }`. */
  trial?: Readonly<Record<string, unknown>>;
}

const programFolder = "/opt/agent";
const systemPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/**
 * A workflow: an unmodified coding agent works on a task of Harbor in its container; its model is behind the gateway.
 *
 * @throws UserError for an agent that cannot be trained
 * @example
 * harbor({ agent: "pi", environment: "docker" })
 */
export function harbor(options: HarborOptions): Workflow<HarborTask> {
  const { agent, program, network = "bridge", keepProcesses = false, trainSideCalls = false } = options;
  const { withoutModel } = agentFacts(agent);
  const mounts = { ...options.mounts, ...(program ? { [programFolder]: resolve(program.folder) } : {}) };
  const path = [...(program?.path ?? []).map((each) => `${programFolder}/${each}`), systemPath].join(":");
  return async ({ row }, { gateway, signal, stage, tearDown, log }) => {
    stage("set-up");
    if (typeof row.path !== "string") {
      throw new UserError("the row has no path of a task's folder", {
        hint: 'make the dataset with harborTasks("./tasks")',
      });
    }
    const environment = options.environment ?? (await findEngine()).name;
    const separates = !withoutModel && !trainSideCalls;
    if (!withoutModel) checkAddress(gateway, environment, network, (await engineOf(environment)) !== undefined);
    if (separates) gateway.separateSideCalls();
    const connection = modelConnection(agent, gateway) as { env?: Record<string, string> };
    const seen = new Set<TrialEvent>();
    let calls: GatewayCalls | undefined;
    const onEvent = (event: TrialEvent) => {
      seen.add(event);
      if (event === "agent-start") stage("agent");
      // The agent may go on, but its calls do not count.
      if (event === "agent-end" && !withoutModel) {
        calls = gateway.calls();
        gateway.end();
      }
      if (event === "verification-start") stage("reward");
    };
    const trial = await runTrial(
      {
        task: row.path,
        agent: {
          ...(agent.includes(":") ? { import_path: agent } : { name: agent }),
          ...connection,
          env: { ...(program ? { PATH: path } : {}), ...options.agentEnv, ...connection.env },
          kwargs: options.agentArgs ?? {},
          override_timeout_sec: options.timeoutSeconds ?? null,
          max_timeout_sec: options.maxTimeoutSeconds ?? null,
        },
        environment,
        network,
        mounts,
        guard: !keepProcesses,
        mountedAgent: program !== undefined,
        more: options.trial ?? {},
      },
      { event: onEvent, log: (phase, text) => logLines(log, phase, text) },
      signal,
      tearDown,
    );
    const outcome = toOutcome(trial, seen, stage);
    stage("agent");
    if (!withoutModel)
      checkCalls(calls ?? gateway.calls(), gateway.baseURL, outcome.metrics?.agent_out_of_budget === 1);
    return separates ? { ...outcome, rewards: { side: null, subagent: null } } : outcome;
  };
}

function logLines(log: (line: string) => void, phase: string, text: string): void {
  for (const line of text.split("\n")) if (line.trim() !== "") log(`${phase}: ${line.slice(0, 2000)}`);
}

/** @throws UserError if the agent could not reach the gateway */
function checkAddress(gateway: GatewayAccess, environment: string, network: "bridge" | "host", isHere: boolean): void {
  const { hostname } = new URL(gateway.baseURL);
  if (!isLoopback(hostname) || (isHere && network === "host")) return;
  const where = isHere ? "a container with a network of its own" : `a sandbox of ${environment}`;
  throw new UserError(`an agent in ${where} cannot reach the gateway at ${hostname}`, {
    hint: isHere
      ? `set rllm.gateway.host=0.0.0.0 rllm.gateway.port=4100 rllm.gateway.tunnel=http://${hostName}:4100 and rllm.sdk.proxy.admin_token; or harbor({ network: "host" }), without isolation`
      : "set rllm.gateway.tunnel to the address of a tunnel to the gateway, and rllm.sdk.proxy.admin_token to a secret of your own",
  });
}

// Commands of agents that earn a reward without solving a task: what a task must not pay for.

/** Solves nothing, but writes the reward for as long as it can: in a loop, and in processes that end at once and start another. */
export const writeReward = `
mkdir -p /logs/verifier
(setsid sh -c 'forge() { echo 1 > /logs/verifier/reward.txt; echo "{\\"reward\\": 1}" > /logs/verifier/reward.json; }
again() { forge; (sleep 0.01; again) & }; again; while :; do forge; sleep 0.02; done' >/dev/null 2>&1 &)
sleep 0.1`;

/** Lets what a verifier may run do nothing and succeed: programs, and what Python, pytest and shells read when they start. */
export const replacePrograms = `
for name in pytest py.test uvx uv python python3 node npm npx cargo go make; do
  printf '#!/bin/sh\\nexit 0\\n' > /usr/local/bin/$name && chmod +x /usr/local/bin/$name
done 2>/dev/null
mkdir -p /tests
for folder in / /tests "$PWD"; do
  echo 'def pytest_collection_modifyitems(items): items.clear()' > "$folder/conftest.py"
  echo '[pytest]' > "$folder/pytest.ini"
done
for folder in /usr/lib/python3*/ /usr/local/lib/python3*/ /usr/lib/python3/dist-packages/; do
  [ -d "$folder" ] && echo 'import os; os._exit(0)' > "$folder/sitecustomize.py"
done
for file in /etc/profile /etc/bash.bashrc ~/.bashrc ~/.profile ~/.bash_profile; do echo 'exit 0' > $file; done 2>/dev/null
true`;

/** Lets the verifier's own shell write the reward. */
export const replaceShell = `
real=/bin/bash.real; cp /bin/bash $real && printf '%s\\n' "#!$real" 'case "$*" in */tests/test.sh*)
  echo 1 > /logs/verifier/reward.txt; exit 0;; esac' "exec $real \\"\\$@\\"" > /bin/bash.new &&
  chmod +x /bin/bash.new && mv /bin/bash.new /bin/bash`;

/** The agent of `worker/hone_harbor` that runs a command. */
export const shellAgent = "hone_harbor.shell_agent:ShellAgent";

// How Harbor's agents are directed to the gateway.

interface AgentFacts {
  /** The API that it speaks; default: OpenAI's chat completions. */
  api?: "chat" | "responses" | "messages";
  /** The name of the model's provider, where that of the API has another meaning for the agent. */
  provider?: string;
  /** It does not call a model. */
  withoutModel?: true;
  /** Why it cannot be trained. */
  refused?: string;
}

const closed = "its model cannot be replaced";

/** Facts about some of Harbor's agents. Any other is taken to call OpenAI's chat completions with tools. */
const facts: Record<string, AgentFacts> = {
  "claude-code": { api: "messages" },
  codex: { api: "responses" },
  // Its own provider "openai" calls the responses API.
  opencode: { provider: "hone" },
  oracle: { withoutModel: true },
  nop: { withoutModel: true },
  [shellAgent]: { withoutModel: true },
  "gemini-cli": { refused: "it calls Google's generateContent, which the gateway does not have" },
  "cursor-cli": { refused: closed },
  devin: { refused: closed },
  "rovodev-cli": { refused: closed },
  "cortex-code": { refused: closed },
};

const apis = {
  chat: { provider: "openai", key: "OPENAI_API_KEY", format: "openai_chat_completions" },
  responses: { provider: "openai", key: "OPENAI_API_KEY", format: "openai_responses" },
  messages: { provider: "anthropic", key: "ANTHROPIC_API_KEY", format: "anthropic_messages" },
} as const;

/** @throws UserError for an agent that cannot be trained */
function agentFacts(name: string): AgentFacts {
  const { refused, ...found } = facts[name] ?? {};
  if (refused === undefined) return found;
  throw new UserError(`the agent ${name} cannot be trained: ${refused}`, {
    hint: "pi, mini-swe-agent, opencode, claude-code and codex can",
  });
}

/** The part of Harbor's AgentConfig that says where the model is. */
function modelConnection(name: string, gateway: GatewayAddress): Record<string, unknown> {
  const { api = "chat", provider, withoutModel } = agentFacts(name);
  if (withoutModel) return {};
  const { key, format, ...of } = apis[api];
  return {
    model_name: `${provider ?? of.provider}/policy`,
    base_url: api === "messages" ? gateway.anthropicBaseURL : gateway.baseURL,
    model_api_key_name: key,
    model_api_format: format,
    env: { [key]: gateway.apiKey },
  };
}
