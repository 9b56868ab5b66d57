/** Finds the rollout that the running code belongs to, also deep inside libraries. */
import { AsyncLocalStorage } from "node:async_hooks";
import type { GatewayAccess } from "../../agents/types.ts";

export interface AmbientCalls {
  gateway: GatewayAccess;
  /** For messages: which rollout this is. */
  rollout: string;
  /** Fails the attempt with an error that nothing awaited. Returns false if the attempt has already ended. */
  fail(error: unknown): boolean;
  /** Under which role calls are recorded; default: the rollout's own. */
  role?: string;
  instance?: number;
  /** Recorded with each call. */
  metadata?: Readonly<Record<string, unknown>>;
}

export const ambientCalls = new AsyncLocalStorage<AmbientCalls>();
