/** What all parts of the server share. */

import type { Log } from "./log.ts";
import type { Metrics } from "./metrics.ts";
import type { BaseModel } from "./models/base-models.ts";
import type { FutureStore } from "./queue/futures.ts";
import type { Store } from "./state/store.ts";

/** Tokens or checkpoints that a client used; `session` is null if it has none. */
export type UseListener = (
  kind: "training" | "sampling_prefill" | "sampling_sample" | "checkpoint",
  session: string | null,
  baseModel: string,
  amount: number,
) => void;

export interface ServerContext {
  store: Store;
  models: readonly BaseModel[];
  futures: FutureStore;
  metrics: Metrics;
  log: Log;
  /** Reports what a client used to `useListeners`. */
  use: UseListener;
  useListeners: UseListener[];
  /** Identifies this start of the server. Ids of futures contain it, so ids from before a restart are recognized. */
  boot: string;
  /** How long to wait for a missing sequence id. */
  gapMs: number;
  /** How long a poll is held open. */
  pollMs: number;
  /** Sessions without a request for this long free their memory. */
  sessionTimeoutMs: number;
  /** How many unused models stay in memory. */
  maxIdleModels: number;
  /** The most waiting operations of one model. */
  maxWaitingOperations: number;
  now: () => Date;
}
