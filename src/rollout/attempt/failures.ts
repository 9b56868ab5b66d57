/** Describes what ended an attempt: whose failure it is, where it happened, and the message. */
import { BadOutcome, ModelCallError } from "../../agents/control-flow.ts";
import { HoneError, RunError, UserError } from "../../errors.ts";
import { maskUrls } from "../../mask-urls.ts";
import { own } from "../../own.ts";
import type { Failure, FailureBoundary, FailureKind } from "../../trajectories/types.ts";

const boundaries: Record<string, FailureBoundary> = {
  "set-up": "set_up",
  environment: "environment",
  reward: "reward",
};

/**
 * Describes an error that was thrown at this stage of a workflow.
 * @param fault what is wrong with the model's last reply, if anything
 */
export function toFailure(error: unknown, stage: string, fault?: string): Failure {
  const boundary = error instanceof ModelCallError ? "engine" : (own(boundaries, stage) ?? "workflow");
  const kind = failureKind(error, boundary, fault);
  const failure: Failure = { kind, boundary, message: maskUrls(describe(error, stage)) };
  if (kind === "model" && fault !== undefined) failure.message += `${aboutReply}${fault}`;
  if (error instanceof Error && error.stack !== undefined && !(error instanceof BadOutcome)) {
    failure.stack = maskUrls(error.stack);
  }
  return failure;
}

const aboutReply = "; the model's last reply ";

/** A failure's message without what is wrong with the model's last reply. */
export const withoutFault = (message: string): string => message.split(aboutReply, 1).join();

function describe(error: unknown, stage: string): string {
  if (error instanceof ModelCallError) return error.message;
  if (error instanceof BadOutcome) return `${stage} ${error.message}`;
  // The message of a HoneError is complete without the class name.
  if (error instanceof HoneError) return `${stage}: ${error.message}`;
  return `${stage} threw ${describeThrown(error)}`;
}

function describeThrown(error: unknown): string {
  if (!(error instanceof Error)) return `a value that is not an Error: ${String(error)}`;
  // fetch puts the reason into the cause.
  const cause = error.message === "fetch failed" && error.cause instanceof Error ? `: ${error.cause.message}` : "";
  // Some libraries only name the class.
  return `${error.name === "Error" ? error.constructor.name : error.name}: ${error.message}${cause}`;
}

/** @param fault what is wrong with the model's last reply, if anything */
function failureKind(error: unknown, boundary: FailureBoundary, fault: string | undefined): FailureKind {
  if (boundary === "engine" || isInfrastructure(error)) return "infrastructure";
  if (boundary === "reward") return "reward";
  if (isMistake(error)) return "agent";
  return fault !== undefined || blamesReply(error) ? "model" : "agent";
}

/** A mistake that the user must fix: a retry would fail again. */
export const isMistake = (error: unknown): error is UserError => error instanceof UserError;

/** An error and its causes, the outermost first. */
export function causes(error: unknown): unknown[] {
  const chain: unknown[] = [];
  for (let each = error; each !== undefined && each !== null && !chain.includes(each); ) {
    chain.push(each);
    each = typeof each === "object" && "cause" in each ? each.cause : undefined;
  }
  return chain;
}

const brokenConnection =
  /^(E(CONN|NET|HOST|AI_)|ENOTFOUND$|ETIMEDOUT$|EPIPE$|EMFILE$|ENFILE$|ENOMEM$|ENOSPC$|UND_ERR_)/;
const timedOut = /Timeout|APIConnectionError|^FetchError$/;

/** The network, an overloaded server, a server that is down, or this machine. */
const isInfrastructure = (error: unknown) =>
  causes(error).some((each) => {
    if (each instanceof RunError) return true;
    if (!(each instanceof Error)) return false;
    const { code, status, statusCode } = each as { code?: unknown; status?: unknown; statusCode?: unknown };
    const http = Number(status ?? statusCode);
    return (
      (typeof code === "string" && brokenConnection.test(code)) ||
      [408, 429].includes(http) ||
      http >= 500 ||
      namesOf(each).some((name) => timedOut.test(name))
    );
  });

/**
 * Errors of agent frameworks that could not use a reply: the OpenAI Agents SDK, the AI SDK, LangChain and LangGraph, the
 * clients of OpenAI and Anthropic.
 */
const replyErrors =
  /ModelBehavior|MaxTurnsExceeded|ToolCallError|NoObjectGenerated|NoOutputGenerated|InvalidToolInput|NoSuchTool|TypeValidation|JSONParse|OutputPars|GraphRecursion|LengthFinishReason|ContentFilterFinishReason/;

const blamesReply = (error: unknown) =>
  causes(error).some((each) => each instanceof Error && namesOf(each).some((name) => replyErrors.test(name)));

/** Some libraries set `name`, others only the class's name. */
const namesOf = (error: Error) => [error.name, error.constructor.name];

/** What is kept of an attempt that is retried. */
export function withoutStack({ stack: _, ...rest }: Failure): Omit<Failure, "stack"> {
  return rest;
}
