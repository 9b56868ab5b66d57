/** How an attempt gets an HTTP address: opened when its workflow first asks for it, closed with the attempt. */
import type { GatewayAccess } from "../agents/types.ts";
import { UserError } from "../errors.ts";
import type { RolloutSession } from "./rollout-session.ts";
import type { Attempt } from "./run-attempt.ts";

export interface AttemptIdentity {
  taskId: string;
  rollout: number;
  /** 0, or how often this rollout has failed before. */
  attempt: number;
  purpose: "train" | "validate";
}

/** What a gateway does for rollouts. */
export interface RolloutGateway {
  open(identity: AttemptIdentity, session: RolloutSession, signal: AbortSignal): OpenedGateway;
}

export interface OpenedGateway {
  access: GatewayAccess;
  /** @param attempt how it ended; undefined where the run was stopped */
  close(attempt: Omit<Attempt, "tearDownProblems"> | undefined): void;
}

export interface GatewayDoor {
  access(session: RolloutSession): GatewayAccess;
  /** Again, it does nothing. */
  close(attempt: Omit<Attempt, "tearDownProblems"> | undefined): void;
}

export function openDoor(
  gateway: RolloutGateway | undefined,
  identity: AttemptIdentity,
  signal: AbortSignal,
): GatewayDoor {
  let opened: OpenedGateway | undefined;
  let closed = false;

  return {
    access(session) {
      const ask = (): GatewayAccess => {
        if (gateway === undefined) {
          throw new UserError("this run has no gateway for its workflow to call", {
            hint: "train() and runWorkflow() open one; runRollouts takes one as `gateway`",
          });
        }
        if (closed) throw new Error("the gateway was asked for after the rollout had ended");
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
