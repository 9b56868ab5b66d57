/** A workflow that lets a coding agent work on a Harbor task, and gets its reward from the task's verifier. */
import { resolve } from "node:path";
import type { GatewayAccess, GatewayCalls, Workflow } from "../agents/types.ts";
import { findEngine } from "../containers/engine.ts";
import { UserError } from "../errors.ts";
import { isLoopback } from "../http/web-guard.ts";
import { agentFacts, modelConnection } from "./agents.ts";
import type { TrialEvent } from "./bridge.ts";
import type { HarborTask } from "./harbor-tasks.ts";
import { checkCalls, toOutcome } from "./outcome.ts";
import { engineOf, hostName, runTrial } from "./run-trial.ts";

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
