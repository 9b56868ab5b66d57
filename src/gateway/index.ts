/** The server through which agents call the model that is being trained, and the store of what they called. */
export { type Gateway, type GatewayOptions, type GatewaySession, openGateway } from "./gateway.ts";
export { type PolicySessionsOptions, policySessions } from "./sessions/policy-sessions.ts";
export { openTraceStore, type TraceStore, type TraceStoreOptions } from "./traces/open-trace-store.ts";
export type { SessionSummary, Trace, TraceSession } from "./traces/types.ts";
