/**
 * The sessions of the gateway, each one attempt of a rollout: how calls find them, which calls are the agent's own, and what rollouts and
 * gateways without a run do with them. Answers no request itself.
 */
import { createHash, randomBytes, timingSafeEqual } from "node:crypto";
import type { GatewayAddress } from "../agents/types.ts";
import { ownDistribution } from "../backends/engine-parts.ts";
import { deriveSeed } from "../base/values.ts";
import type { NoVision, Vision } from "../chat/images.ts";
import { type ChatMessage, type ToolDefinition, textOf } from "../chat/messages.ts";
import type { Chat } from "../chat/types.ts";
import { labelOf } from "../rollout/outcome.ts";
import { ambientCalls, type OpenedGateway, type RolloutGateway } from "../rollout/rollouts.ts";
import type { SampleSource } from "../rollout/sample-queue.ts";
import { createSamplingClient } from "../rollout/session.ts";
import { defaultRole, type SamplingDefaults, type SamplingLimits } from "../rollout/types.ts";
import { sideRoles } from "../trajectories/types.ts";
import { type CallSource, GatewayError, metadataHeader } from "./http.ts";
import type { Gateway, LiveSession, OpenSession, SideCalls } from "./types.ts";

type SessionName = Pick<CallSource, "session" | "attempt">;

export interface Sessions {
  open(options: OpenSession): void;
  /** Later calls get the error `session_ended`. */
  close(name: string, attempt: number): void;
  /** @throws GatewayError when the session does not exist or has ended */
  get(source: SessionName): LiveSession;
  separateSideCalls(source: SessionName): void;
  readonly live: readonly LiveSession[];
  /** Part of the address of a session's result. Only the agent's program learns it, not the model that it calls. */
  resultSecret(source: SessionName): string;
  /**
   * Receives the result of an agent on another server.
   * @throws GatewayError if no session has this secret, or its result was posted before
   */
  postResult(secret: string, result: unknown): void;
  /** Resolves with the posted result, whenever it was posted. Rejects with the signal's reason. */
  result(source: SessionName, signal: AbortSignal): Promise<unknown>;
}

/** Older ended sessions are reported as unknown. */
const maxEnded = 10_000;

/** Sessions that a call opened are never closed. The one without calls for the longest time is forgotten. */
const maxUnknown = 10_000;

interface Entry {
  session: LiveSession;
  secret: string;
  isPosted: boolean;
  post: (result: unknown) => void;
  posted: Promise<unknown>;
}

/** @param openUnknown opens a session for the first call to its name; without it such a call is refused */
export function createSessions(openUnknown?: (source: SessionName) => OpenSession): Sessions {
  const entries = new Map<string, Entry>();
  const ended = new Set<string>();
  /** The sessions that a call opened, with their `onForgotten`; the one called last is last. */
  const unknown = new Map<string, () => void>();

  function open({ name, attempt, session, metadata = {}, enforceSampling = false }: OpenSession): Entry {
    const { generate, reportProblem } = session;
    const startedMs = Date.now();
    const live: LiveSession = {
      ...{ name, attempt, startedMs, defaultRole, metadata, enforceSampling, generate, reportProblem },
      sideCalls: undefined,
    };
    let post: Entry["post"] = () => {};
    const posted = new Promise<unknown>((resolve) => {
      post = resolve;
    });
    const secret = randomBytes(24).toString("base64url");
    const entry = { session: live, secret, isPosted: false, post, posted };
    entries.set(keyOf(name, attempt), entry);
    return entry;
  }

  function entryOf({ session, attempt }: SessionName): Entry {
    const key = keyOf(session, attempt);
    const entry = entries.get(key);
    if (entry !== undefined) {
      const onForgotten = unknown.get(key);
      if (onForgotten) remember(key, onForgotten);
      return entry;
    }
    if (ended.has(key)) {
      throw new GatewayError("session_ended", `attempt ${attempt} of the session ${session} has ended`);
    }
    if (openUnknown === undefined) {
      throw new GatewayError("not_found", `attempt ${attempt} of the session ${session} does not exist`);
    }
    const opened = openUnknown({ session, attempt });
    remember(key, opened.onForgotten ?? (() => {}));
    return open(opened);
  }

  function remember(key: string, onForgotten: () => void): void {
    unknown.delete(key);
    unknown.set(key, onForgotten);
    if (unknown.size <= maxUnknown) return;
    for (const [oldest, forget] of unknown) {
      unknown.delete(oldest);
      entries.delete(oldest);
      forget();
      return;
    }
  }

  return {
    open: (options) => void open(options),
    close(name, attempt) {
      const key = keyOf(name, attempt);
      if (!entries.delete(key)) return;
      unknown.delete(key);
      ended.add(key);
      if (ended.size <= maxEnded) return;
      for (const oldest of ended) {
        ended.delete(oldest);
        return;
      }
    },
    get: (source) => entryOf(source).session,
    separateSideCalls(source) {
      entryOf(source).session.sideCalls ??= createSideCalls();
    },
    get live() {
      return Array.from(entries.values(), ({ session }) => session);
    },
    resultSecret: (source) => entryOf(source).secret,
    postResult(secret, result) {
      const digest = digestOf(secret);
      const entry = [...entries.values()].find((each) => timingSafeEqual(digestOf(each.secret), digest));
      if (entry === undefined) throw new GatewayError("not_found", "no session waits for a result at this address");
      if (entry.isPosted) throw new GatewayError("invalid_request", "the result of this session was posted before");
      entry.isPosted = true;
      entry.post(result);
    },
    result(source, signal) {
      const { isPosted, posted } = entryOf(source);
      if (isPosted) return posted;
      return new Promise((resolve, reject) => {
        const stop = () => reject(signal.reason);
        if (signal.aborted) stop();
        signal.addEventListener("abort", stop, { once: true });
        void posted.then((result) => {
          signal.removeEventListener("abort", stop);
          resolve(result);
        });
      });
    },
  };
}

const keyOf = (name: string, attempt: number) => `${attempt} ${name}`;
const digestOf = (text: string) => createHash("sha256").update(text).digest();

// Tells an agent's own conversation from the other calls of its program: titles and summaries, which offer no tools, and subagents, which
// have another system prompt or other tools. An agent that never offers tools has only its own calls.

/** Shorter replies may be in a prompt by chance. In characters. */
const shortestSummary = 40;

export function createSideCalls(): SideCalls {
  /** The system prompt and the tools of the agent's own first call. */
  let own: string | undefined;
  const ownReplies = new Set<string>();
  /** Texts of all replies, which may be summaries, and whether a side call gave them. */
  const texts = new Map<string, boolean>();

  return {
    classify(messages, tools) {
      if (tools.length === 0) return { role: sideRoles.side, presumedSide: true };
      const replies = messages.filter(({ role }) => role === "assistant").map(signature);
      const continues = replies.some((reply) => ownReplies.has(reply));
      const identity = identityOf(messages, tools);
      own ??= identity;
      if (!continues && identity !== own) return { role: sideRoles.subagent };
      if (continues || ownReplies.size === 0) return {};
      // A reply of the agent's own among the replies is no summary: its calls were changed.
      const quotes = [...texts].some(([text, isSide]) =>
        messages.some(({ role, content }) => (isSide || role !== "assistant") && textOf(content).includes(text)),
      );
      return quotes ? { compacted: true } : {};
    },
    answered(role, reply) {
      if (role === undefined) ownReplies.add(signature(reply));
      const text = reply.content.trim();
      if (text.length >= shortestSummary) texts.set(text, role !== undefined);
    },
  };
}

const signature = ({ content, toolCalls = [] }: Pick<ChatMessage, "content" | "toolCalls">) =>
  JSON.stringify([textOf(content).trim(), toolCalls.map((call) => [call.name, call.arguments])]);

function identityOf(messages: readonly ChatMessage[], tools: readonly ToolDefinition[]): string {
  const [first] = messages;
  return JSON.stringify([first?.role === "system" ? textOf(first.content) : "", tools.map(({ name }) => name).sort()]);
}

// Attribution without an address: a client that was created once with `gatewayBaseURL()` calls the model for the rollout
// whose code is running. The global `fetch` sends its calls to that rollout's own address.

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

/** Clients that already hold the former `fetch` keep it, so this must run before workflows do. */
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

// The gateway for rollouts: each attempt is a session, and the trace store learns how it ended.

export interface RolloutGatewayOptions {
  /** Prefix of session names, e.g. `"train-17/"`, because `"{task}:{rollout}"` repeats in every epoch. */
  prefix: string;
  /** The run's own sampling parameters replace the agents'. */
  enforceSampling: boolean;
  metadata?: Readonly<Record<string, unknown>>;
}

export function rolloutGateway(gateway: Gateway, options: RolloutGatewayOptions): RolloutGateway {
  const { prefix, enforceSampling, metadata = {} } = options;
  patchFetch();
  return {
    open({ taskId, rollout, attempt, purpose }, session, signal): OpenedGateway {
      const name = `${prefix}${taskId}:${rollout}`;
      const entry = gateway.open({ name, attempt, session, enforceSampling });
      const running = {
        session: name,
        attempt,
        startedMs: Date.now(),
        taskId,
        metadata: { ...metadata, purpose, rollout },
        endedMs: null,
        termination: null,
        reward: null,
        correct: null,
        failure: null,
      };
      gateway.store?.session(running);
      return {
        access: {
          baseURL: entry.baseURL,
          anthropicBaseURL: entry.anthropicBaseURL,
          apiKey: entry.apiKey,
          as: (role, instance) => entry.as(labelOf({ name: role, instance })),
          separateSideCalls: entry.separateSideCalls,
          end: entry.close,
          get resultURL() {
            return entry.resultURL;
          },
          result: () => entry.result(signal),
        },
        close(ended) {
          entry.close();
          gateway.store?.session({
            ...running,
            endedMs: Date.now(),
            termination: ended?.termination ?? "stopped",
            reward: ended?.outcome?.reward ?? null,
            correct: ended?.outcome?.correct ?? null,
            failure: ended?.failure?.message ?? null,
          });
        },
      };
    },
  };
}

// Sessions for a gateway without a run: the first call to a name opens its session.

export interface PolicySessionsOptions {
  sampler: SampleSource;
  chat: Chat;
  /** How the model sees images; default: it reads only text. */
  vision?: Vision | NoVision;
  limits: SamplingLimits;
  defaults?: Partial<SamplingDefaults>;
  /** Calls without a seed get one derived from this seed, their session and their position in it. */
  seed?: number;
}

/** The option `openUnknown` of `openGateway`: opens the sessions that agents name in their address. */
export function policySessions(options: PolicySessionsOptions) {
  const { sampler, chat, vision, limits, defaults, seed = 0 } = options;
  const client = createSamplingClient({
    sampler,
    chat,
    ...(vision === undefined ? {} : { vision }),
    limits,
    defaults: { ...ownDistribution, ...defaults },
    seedFor: ({ taskId, attempt, turn }) => deriveSeed(seed, "gateway", taskId, attempt, turn),
    // Calls are independent: waiting for others would gain nothing.
    flushMs: 0,
  });
  return ({ session: name, attempt }: { session: string; attempt: number }): OpenSession => {
    const session = client.open({ taskId: name, order: 0, rollout: 0, attempt, keepSteps: false });
    return { name, attempt, session, onForgotten: session.close };
  };
}
