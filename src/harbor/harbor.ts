/** A workflow that lets a coding agent work on a Harbor task, and gets its reward from the task's verifier. */
import { resolve } from "node:path";
import type { GatewayAccess, Outcome, Workflow } from "../agents/types.ts";
import { findEngine } from "../containers/engine.ts";
import { RunError, UserError } from "../errors.ts";
import { isLoopback } from "../http/web-guard.ts";
import { agentFacts, modelConnection } from "./agents.ts";
import { TrialError, type TrialEvent, type TrialResult } from "./bridge.ts";
import type { HarborTask } from "./harbor-tasks.ts";
import { engineOf, runTrial, type Trial } from "./run-trial.ts";

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
  /** More folders of this machine for the container, read-only, by their path in the container. */
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
 * @throws UserError for an agent that cannot be trained
 * @example
 * harbor({ agent: "pi", environment: "docker" })
 */
export function harbor(options: HarborOptions): Workflow<HarborTask> {
  const { agent, program, network = "bridge", keepProcesses = false, trainSideCalls = false } = options;
  const { withoutTools, withoutModel } = agentFacts(agent);
  const mounts = { ...options.mounts, ...(program ? { [programFolder]: resolve(program.folder) } : {}) };
  const path = [...(program?.path ?? []).map((each) => `${programFolder}/${each}`), systemPath].join(":");
  return async ({ row }, { gateway, signal, stage, tearDown, log }) => {
    stage("set-up");
    const environment = options.environment ?? (await findEngine()).name;
    const separates = !withoutTools && !withoutModel && !trainSideCalls;
    if (!withoutModel) checkAddress(gateway, environment, network, (await engineOf(environment)) !== undefined);
    if (separates) gateway.separateSideCalls();
    const connection = modelConnection(agent, gateway) as { env?: Record<string, string> };
    const seen = new Set<TrialEvent>();
    const onEvent = (event: TrialEvent) => {
      seen.add(event);
      if (event === "agent-start") stage("agent");
      // The agent may go on, but its calls do not count.
      if (event === "agent-end" && !withoutModel) gateway.end();
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
    ).catch((error: unknown) => {
      throw error instanceof TrialError ? toTrialFailure(error) : error;
    });
    const outcome = toOutcome(trial, seen, stage);
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
      ? 'set rllm.gateway.host=0.0.0.0 rllm.gateway.port=4100 rllm.gateway.tunnel=http://host.docker.internal:4100 and rllm.sdk.proxy.admin_token; or harbor({ network: "host" }), without isolation'
      : "set rllm.gateway.tunnel=cloudflared, ngrok, or the address of a tunnel of your own, and rllm.sdk.proxy.admin_token",
  });
}

/** Harbor's own errors: of its set-up, of an agent's or task's configuration, of the engine. */
function toTrialFailure({ message, kind }: TrialError): Error {
  const isMistake = /^(ValidationError|ValueError|TypeError|KeyError|MissingModelCredentialError|SystemExit|FileNotFoundError)$/;
  const text = `Harbor could not run the trial: ${kind}: ${message}`;
  return isMistake.test(kind) ? new UserError(text) : new RunError(text);
}

/**
 * The reward of a finished trial.
 * @throws RunError if the container or Harbor failed; Error in the stage of the part that failed
 */
function toOutcome({ result, verifierOutput }: Trial, seen: ReadonlySet<TrialEvent>, stage: (name: string) => void): Outcome {
  const { exception_info: exception, failure_cause: cause } = result;
  const what = exception && `${exception.exception_type}: ${exception.exception_message}`;
  switch (cause) {
    case null:
    case "agent_exhausted_budget":
    case "agent_refused_task":
      break;
    case "model_provider_failed":
      // The gateway knows why the call failed; the rollout finds it there.
      stage("agent");
      throw new Error(`the agent's model call failed: ${what}`);
    case "verifier_failed":
      throw new Error(`the verifier failed: ${what}${tail(verifierOutput)}`);
    case "unclassified":
      if (seen.has("agent-start") && !isOfVerifier(result, seen)) {
        stage("agent");
        throw new Error(`the agent failed: ${what}`);
      }
      throw diskOr(`the trial failed: ${what}`);
    default:
      throw diskOr(`the sandbox failed (${cause}): ${what}`);
  }
  const graded = rewardOf(result, verifierOutput);
  const timedOut = cause === "agent_exhausted_budget";
  const metrics = { ...graded.metrics, agent_out_of_budget: Number(timedOut) };
  const explanation = [timedOut ? `${what}.` : "", verifierOutput.trim()].filter(Boolean).join("\n");
  return { ...graded, metrics, ...(explanation ? { explanation } : {}) };
}

/** An error after the agent's end that is not the agent's exit code. */
const isOfVerifier = ({ exception_info: exception }: TrialResult, seen: ReadonlySet<TrialEvent>) =>
  seen.has("agent-end") && exception?.exception_type !== "NonZeroAgentExitCodeError";

const diskOr = (message: string) =>
  new RunError(message, /no space left/i.test(message) ? { hint: "the disk is full; free some space" } : {});

const tail = (text: string) => (text.trim() === "" ? "" : `; it wrote:\n${text.trim().split("\n").slice(-10).join("\n")}`);

function rewardOf({ verifier_result: verified }: TrialResult, output: string): Outcome {
  const rewards = verified?.rewards ?? {};
  const names = Object.keys(rewards);
  if (names.length === 0) throw new Error(`the verifier gave no reward${tail(output)}`);
  const { reward = names.length === 1 ? rewards[names[0] ?? ""] : undefined, ...others } = rewards;
  if (reward !== undefined) return { reward, correct: reward >= 1, metrics: names.length === 1 ? {} : others };
  throw new UserError(`the verifier gave the rewards ${names.join(", ")}, but none is named "reward"`, {
    hint: 'write one number, or one of the keys of reward.json as "reward"; the others become metrics',
  });
}
