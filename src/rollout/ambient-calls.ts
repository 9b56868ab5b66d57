/** Which rollout the code that is running belongs to, however deep in libraries it is. */
import { AsyncLocalStorage } from "node:async_hooks";
import type { GatewayAccess } from "../agents/types.ts";

export interface AmbientCalls {
  gateway: GatewayAccess;
  /** Under which role calls are recorded; default: the rollout's own. */
  role?: string;
  instance?: number;
  /** Of each call. */
  metadata?: Readonly<Record<string, unknown>>;
}

export const ambientCalls = new AsyncLocalStorage<AmbientCalls>();
