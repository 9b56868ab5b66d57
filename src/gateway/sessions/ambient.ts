/**
 * Attribution without an address: a client that was created once with `gatewayBaseURL()` calls the model for the rollout
 * whose code is running. The global `fetch` sends its calls to that rollout's own address.
 */
import type { GatewayAddress } from "../../agents/types.ts";
import { ambientCalls } from "../../rollout/attempt/ambient-calls.ts";
import { metadataHeader } from "../requests/http-exchange.ts";

/** A name that no host can have. */
const origin = "http://gateway.hone.invalid";

/**
 * The base URL for clients that are created outside of rollouts. Call it before creating the client, because clients
 * keep the `fetch` that they find.
 *
 * @example
 * const client = new OpenAI({ baseURL: gatewayBaseURL(), apiKey: "any" });
 * export default defineExperiment({
 *   train,
 *   workflow: async ({ row }) => {
 *     const reply = await client.chat.completions.create({ model: "policy", messages: [{ role: "user", content: row.question }] });
 *     return exactMatch(reply.choices[0]?.message.content ?? "", row.answer);
 *   },
 * });
 */
export function gatewayBaseURL(): string {
  patchFetch();
  return `${origin}/v1`;
}

/** The same for Anthropic's clients, which add `/v1` themselves. */
export function anthropicGatewayBaseURL(): string {
  patchFetch();
  return origin;
}

/** How the calls of one part of an agent are recorded. */
export interface GatewayContext {
  /** Records calls under this role. Trajectories are compared only with others of their role. */
  role?: string;
  /** Distinguishes several trajectories of one role within a rollout. */
  instance?: number;
  /** Stored with each call; `rllm.sdk.processing` can group trajectories by it. Inner contexts add to outer ones. */
  metadata?: Readonly<Record<string, unknown>>;
}

/**
 * Records the model calls that `run` makes, directly or not, in this context.
 *
 * @example
 * const verdict = await inGatewayContext({ role: "judge" }, () => judge.review(solution));
 */
export function inGatewayContext<Result>(context: GatewayContext, run: () => Result): Result {
  const outer = ambientCalls.getStore();
  // Outside of rollouts the agent runs as it does without Hone.
  if (outer === undefined) return run();
  const metadata = { ...outer.metadata, ...context.metadata };
  return ambientCalls.run({ ...outer, ...context, metadata }, run);
}

let patched = false;

/** Clients that already hold the former `fetch` keep it. */
export function patchFetch(): void {
  if (patched) return;
  patched = true;
  const plain = globalThis.fetch;
  globalThis.fetch = (input, init) => {
    const url = typeof input === "string" ? input : input instanceof URL ? input.href : input.url;
    if (!url.startsWith(`${origin}/`)) return plain(input, init);
    const own = ownAddress();
    const target = `${own.anthropicBaseURL}${url.slice(origin.length)}`;
    // A Request that is created from another keeps its body and headers.
    const request = new Request(input instanceof Request ? new Request(target, input) : target, init);
    request.headers.set("authorization", `Bearer ${own.apiKey}`);
    if (own.metadata !== undefined) request.headers.set(metadataHeader, own.metadata);
    return plain(request);
  };
}

function ownAddress(): Pick<GatewayAddress, "anthropicBaseURL" | "apiKey"> & { metadata: string | undefined } {
  const ambient = ambientCalls.getStore();
  if (ambient === undefined) {
    throw new Error("a model call through gatewayBaseURL() was made outside of a rollout, so no model can answer it");
  }
  const { gateway, role, instance, metadata } = ambient;
  const { anthropicBaseURL, apiKey } = role === undefined ? gateway : gateway.as(role, instance);
  const hasMetadata = metadata !== undefined && Object.keys(metadata).length > 0;
  return { anthropicBaseURL, apiKey, metadata: hasMetadata ? encodeURIComponent(JSON.stringify(metadata)) : undefined };
}
