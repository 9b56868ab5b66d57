/** What all parts of the server share. */

import type { Log } from "./log.ts";
import type { Metrics } from "./metrics.ts";
import type { BaseModel } from "./models/base-models.ts";
import type { FutureStore } from "./queue/futures.ts";
import type { Store } from "./state/store.ts";
import type { Usage } from "./state/usage.ts";

export interface ServerContext {
  store: Store;
  usage: Usage;
  models: readonly BaseModel[];
  futures: FutureStore;
  metrics: Metrics;
  log: Log;
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
