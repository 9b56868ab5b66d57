/** Whose failure an error is: the model's, the agent's, the reward's, or that of what all of them run on. */
import { RunError, UserError } from "../errors.ts";
import type { FailureBoundary, FailureKind } from "../trajectories/types.ts";

/** @param fault what is wrong with the model's last reply, where something is */
export function failureKind(error: unknown, boundary: FailureBoundary, fault: string | undefined): FailureKind {
  if (boundary === "engine" || isInfrastructure(error)) return "infrastructure";
  if (boundary === "reward") return "reward";
  if (isMistake(error)) return "agent";
  return fault !== undefined || blamesReply(error) ? "model" : "agent";
}

/** A mistake that the user must fix: it fails the same way however often it is tried. */
export const isMistake = (error: unknown): error is UserError => error instanceof UserError;

/** An error with the errors that caused it, the outermost first. */
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

/** The network, a server that is overloaded or down, or this machine. */
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
 * The errors with which agent frameworks say that they could not use a reply: the OpenAI Agents SDK, the AI SDK, LangChain
 * and LangGraph, the clients of OpenAI and Anthropic.
 */
const replyErrors =
  /ModelBehavior|MaxTurnsExceeded|ToolCallError|NoObjectGenerated|NoOutputGenerated|InvalidToolInput|NoSuchTool|TypeValidation|JSONParse|OutputPars|GraphRecursion|LengthFinishReason|ContentFilterFinishReason/;

const blamesReply = (error: unknown) =>
  causes(error).some((each) => each instanceof Error && namesOf(each).some((name) => replyErrors.test(name)));

/** Some libraries set `name`, others only name the class. */
const namesOf = (error: Error) => [error.name, error.constructor.name];
