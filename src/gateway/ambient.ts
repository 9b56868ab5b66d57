/**
 * Attribution without an address: a client that was made anywhere, once, with `gatewayBaseURL()`, calls the model as the
 * rollout whose code is running. What passes through the global `fetch` is sent to that rollout's own address.
 */
import type { GatewayAddress } from "../agents/types.ts";
import { ambientCalls } from "../rollout/ambient-calls.ts";
import { metadataHeader } from "./call-source.ts";

/** No host has a name that ends so. */
const origin = "http://gateway.hone.invalid";

/**
 * The base URL for clients that are made outside of rollouts. To be called before the client is made, since clients
 * remember the `fetch` that they found.
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

/** Likewise for Anthropic's clients, which add `/v1` themselves. */
export function anthropicGatewayBaseURL(): string {
  patchFetch();
  return origin;
}

export interface GatewayContext {
  /** Records calls under this role; roles are compared with themselves only. */
  role?: string;
  /** Tells several attempts of one role within a rollout apart. */
  instance?: number;
  /** Kept with each call; `rllm.sdk.processing` may group trajectories by it. Inner contexts add to outer ones. */
  metadata?: Readonly<Record<string, unknown>>;
}

/**
 * What `run` and all that it calls ask of the model is recorded so.
 *
 * @example
 * const verdict = await inGatewayContext({ role: "judge" }, () => judge.review(solution));
 */
export function inGatewayContext<Result>(context: GatewayContext, run: () => Result): Result {
  const outer = ambientCalls.getStore();
  // Outside of rollouts there is nobody to tell; the agent runs as it does without Hone.
  if (outer === undefined) return run();
  const metadata = { ...outer.metadata, ...context.metadata };
  return ambientCalls.run({ ...outer, ...context, metadata }, run);
}

let patched = false;

/** From here on; what was given out before stays as it was. */
export function patchFetch(): void {
  if (patched) return;
  patched = true;
  const plain = globalThis.fetch;
  globalThis.fetch = (input, init) => {
    const url = typeof input === "string" ? input : input instanceof URL ? input.href : input.url;
    if (!url.startsWith(`${origin}/`)) return plain(input, init);
    const own = ownAddress();
    const target = `${own.anthropicBaseURL}${url.slice(origin.length)}`;
    // A Request keeps its body and headers when another is made of it.
    const request = new Request(input instanceof Request ? new Request(target, input) : target, init);
    request.headers.set("authorization", `Bearer ${own.apiKey}`);
    if (own.metadata !== undefined) request.headers.set(metadataHeader, own.metadata);
    return plain(request);
  };
}

function ownAddress(): GatewayAddress & { metadata: string | undefined } {
  const ambient = ambientCalls.getStore();
  if (ambient === undefined) {
    throw new Error("a model call through gatewayBaseURL() was made outside of any rollout, so nothing can answer it");
  }
  const { gateway, role, instance, metadata } = ambient;
  const address = role === undefined ? gateway : gateway.as(role, instance);
  const known = metadata !== undefined && Object.keys(metadata).length > 0;
  return {
    ...{ baseURL: address.baseURL, anthropicBaseURL: address.anthropicBaseURL, apiKey: address.apiKey },
    metadata: known ? encodeURIComponent(JSON.stringify(metadata)) : undefined,
  };
}
