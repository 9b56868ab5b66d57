/** Opens an HTTP address for an attempt when its workflow first asks for one, and closes it with the attempt. */
import type { GatewayAccess, Outcome } from "../../agents/types.ts";
import { UserError } from "../../errors.ts";
import type { Failure, TerminationReason, Trajectory } from "../../trajectories/types.ts";
import type { RolloutSession } from "../session/types.ts";

export interface AttemptIdentity {
  taskId: string;
  rollout: number;
  /** 0, or how often this rollout has failed before. */
  attempt: number;
  purpose: "train" | "validate";
}

/** How an attempt ended. */
export interface EndedAttempt {
  /** The limit that ended it, in words. */
  ended?: string;
  trajectories: Trajectory[];
  termination: TerminationReason;
  /** Undefined when the attempt ended before there was one. */
  outcome?: Outcome;
  failure?: Failure;
  /** What was thrown, when the attempt failed. */
  error?: unknown;
  /** The agent threw after the model had answered, so the error may be due to the reply. */
  agentError?: boolean;
}

/** Gives rollouts HTTP addresses. */
export interface RolloutGateway {
  open(identity: AttemptIdentity, session: RolloutSession, signal: AbortSignal): OpenedGateway;
}

export interface OpenedGateway {
  access: GatewayAccess;
  /** @param attempt undefined when the run was stopped */
  close(attempt: EndedAttempt | undefined): void;
}

export interface LazyGateway {
  access(session: RolloutSession): GatewayAccess;
  /** Only the first call counts. */
  close(attempt: EndedAttempt | undefined): void;
}

export function createLazyGateway(
  gateway: RolloutGateway | undefined,
  identity: AttemptIdentity,
  signal: AbortSignal,
): LazyGateway {
  let opened: OpenedGateway | undefined;
  let closed = false;

  return {
    access(session) {
      const ask = (): GatewayAccess => {
        if (gateway === undefined) {
          throw new UserError("the workflow calls a gateway, but this run has none", {
            hint: "train() and runWorkflow() open one; runRollouts takes one as `gateway`",
          });
        }
        if (closed) throw new Error("the gateway was requested after the rollout had ended");
        opened ??= gateway.open(identity, session, signal);
        return opened.access;
      };
      return {
        get baseURL() {
          return ask().baseURL;
        },
        get anthropicBaseURL() {
          return ask().anthropicBaseURL;
        },
        get apiKey() {
          return ask().apiKey;
        },
        as: (role, instance) => ask().as(role, instance),
        result: () => ask().result(),
      };
    },
    close(attempt) {
      if (closed) return;
      closed = true;
      opened?.close(attempt);
    },
  };
}
