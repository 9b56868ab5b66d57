/** The resident process in which Harbor runs trials: `worker/hone_harbor/bridge.py`, one for each process of Hone. */
import { fileURLToPath } from "node:url";
import { RunError, UserError } from "../errors.ts";
import { AnswerError, openResident, type Report, type Resident } from "../processes/resident.ts";
import { prepareEnvironment } from "../python/prepare.ts";

/** What Harbor reports of a trial. */
export interface TrialResult {
  verifier_result: { rewards: Record<string, number> | null } | null;
  exception_info: { exception_type: string; exception_message: string } | null;
  failure_cause: string | null;
  reward_valid: boolean;
}

export type TrialEvent = "environment-start" | "agent-start" | "agent-end" | "verification-start";

interface TrialRequest {
  /** Harbor's TrialConfig. */
  trial: Record<string, unknown>;
  /** End all processes of the agent before the verifier starts. After a time-out they always end. */
  guard: boolean;
  /** The agent's program is already in the container. */
  mounted_agent: boolean;
}

export interface TrialListener {
  event(event: TrialEvent): void;
  /** Output of the agent's set-up, the agent, or the verifier. */
  log(phase: string, text: string): void;
}

const script = fileURLToPath(new URL("../../worker/hone_harbor/bridge.py", import.meta.url));

let current: Promise<Resident> | undefined;

/** Starts the bridge, or returns the running one. */
export function openBridge(): Promise<Resident> {
  const end = () => {
    current = undefined;
  };
  current ??= prepareEnvironment("harbor").then((python) =>
    openResident("Harbor's bridge", [python, script], process.env, end),
  );
  current.catch(end);
  return current;
}

/** Harbor's own errors: of its set-up, of an agent's or task's configuration, of the engine. */
export function toTrialFailure(error: unknown): unknown {
  if (!(error instanceof AnswerError)) return error;
  const { message, kind } = error;
  const isMistake =
    /^(ValidationError|ValueError|TypeError|KeyError|MissingModelCredentialError|SystemExit|FileNotFoundError)$/;
  const text = `Harbor could not run the trial: ${kind}: ${message}`;
  return isMistake.test(kind) ? new UserError(text) : new RunError(text);
}

/** @throws UserError or RunError if Harbor raised an error before or outside of the trial, or the bridge ended */
export async function runInHarbor(
  request: TrialRequest,
  listener: TrialListener,
  signal: AbortSignal,
): Promise<TrialResult> {
  const bridge = await openBridge();
  const onReport = ({ event, log, phase }: Report) => {
    if (event !== undefined) listener.event(event as TrialEvent);
    if (log !== undefined) listener.log(String(phase), String(log));
  };
  return bridge.ask<TrialResult>(request, signal, onReport).catch((error: unknown) => {
    throw toTrialFailure(error);
  });
}
