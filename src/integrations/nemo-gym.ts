/**
 * `hone-rl/nemo-gym`: agents and environments of NeMo Gym run as they are; their model calls come to Hone by rollout id.
 * @module
 */
import { randomBytes } from "node:crypto";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import { Readable } from "node:stream";
import { pipeline } from "node:stream/promises";
import { Agent, request } from "undici";
import { z } from "zod";
import type { GatewayAddress, Outcome, Workflow } from "../agents/types.ts";
import { RunError, UserError } from "../base/errors.ts";
import { answerText, listen, webRefusal } from "../base/http.ts";

export interface NemoGymOptions {
  /** Address of an agent server, e.g. `http://127.0.0.1:11001`. */
  agent: string;
  /**
   * Where Hone answers the model server: `{ port: 4200 }` for `policy_base_url: http://127.0.0.1:4200/v1`. Hosts other than
   * this machine's need `host: "0.0.0.0"`; a call is answered only if it names a rollout that runs.
   */
  listen: { port: number; host?: string };
  headers?: Readonly<Record<string, string>>;
}

/** A row of NeMo Gym's JSON Lines. The whole row is sent, and other fields are the verifier's. */
export interface NemoGymRow {
  responses_create_params: Record<string, unknown>;
}

const maxBytes = 32 * 2 ** 20;
const key = "hone_rollout";
const runs = z.looseObject({ reward: z.union([z.number(), z.boolean()]).nullable() });
// An episode may take longer than undici's limits.
const patient = new Agent({ headersTimeout: 0, bodyTimeout: 0 });

/**
 * Each rollout is a `/run` of the agent server, which seeds a session, lets the agent work and verifies. The reward is the
 * one of its answer, whose other numbers are metrics.
 *
 * The rollout's id is in the row (`_ng_rollout_id`, which NeMo Gym 0.7 repeats in the path of model calls) and in the
 * `metadata` of its model calls, which agents of the Responses API repeat in every version.
 *
 * @example
 * defineExperiment({
 *   train: await openDataset("data/train.jsonl"),
 *   workflow: nemoGym({ agent: "http://127.0.0.1:11001", listen: { port: 4200 } }),
 * })
 */
export function nemoGym<Row extends NemoGymRow>({ agent, listen, headers = {} }: NemoGymOptions): Workflow<Row> {
  if (!/^https?:$/.test(URL.canParse(agent) ? new URL(agent).protocol : "")) {
    throw new UserError(`nemoGym: ${agent} is not an address`, { hint: "for example http://127.0.0.1:11001" });
  }
  const url = `${agent.replace(/\/+$/, "")}/run`;
  return async ({ row }, { gateway, signal, stage }) => {
    stage("set-up");
    const params = row.responses_create_params;
    if (typeof params !== "object" || params === null) {
      throw new UserError("the row has no responses_create_params", { hint: "use a JSON Lines file of NeMo Gym" });
    }
    const id = randomBytes(16).toString("hex");
    const close = await joinCalls(listen, id, gateway);
    try {
      stage("agent");
      const metadata = { ...(params.metadata as object | undefined), [key]: id };
      const body = { ...row, responses_create_params: { ...params, metadata }, _ng_rollout_id: id };
      const answer = await post(url, body, headers, signal);
      stage("reward");
      return toOutcome(answer, url);
    } finally {
      close();
    }
  };
}

async function post(url: string, body: unknown, headers: Readonly<Record<string, string>>, signal: AbortSignal) {
  const sent = { method: "POST", body: JSON.stringify(body), signal, dispatcher: patient } as const;
  const response = await request(url, {
    ...sent,
    headers: { "content-type": "application/json", ...headers },
  }).catch((cause: Error) => {
    signal.throwIfAborted();
    throw new RunError(`the NeMo Gym agent at ${url} did not answer: ${cause.message}`, { cause });
  });
  const text = await answerText(response.body, url);
  if (response.statusCode === 200) return text;
  const message = `the NeMo Gym agent at ${url} answered ${response.statusCode}: ${text.slice(0, 500)}`;
  if (response.statusCode === 404 || response.statusCode === 422) {
    throw new UserError(message, { hint: "check the address, which must be an agent server's, and the row" });
  }
  // A model call that failed comes back as 500, and the gateway knows its cause.
  throw response.statusCode === 500 ? new Error(message) : new RunError(message);
}

function toOutcome(text: string, url: string): Outcome {
  const { success, data } = runs.safeParse(parse(text));
  if (!success) throw new Error(`the answer of ${url} has no reward: ${text.slice(0, 200)}`);
  const { reward, ...others } = data;
  const numbers = Object.entries(others).flatMap(([name, value]) =>
    typeof value === "number" || typeof value === "boolean" ? [[name, Number(value)] as const] : [],
  );
  const metrics = Object.fromEntries(numbers.filter(([name]) => !name.startsWith("_")));
  return { reward: reward === null ? null : Number(reward), metrics };
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

interface Joint {
  server: Server;
  /** The addresses of the rollouts that run, by id. */
  rollouts: Map<string, GatewayAddress>;
}

const joints = new Map<string, Promise<Joint>>();

/** @returns a function that ends the rollout's calls */
async function joinCalls(listen: NemoGymOptions["listen"], id: string, address: GatewayAddress): Promise<() => void> {
  const { port, host = "127.0.0.1" } = listen;
  const name = `${host}:${port}`;
  const opened = joints.get(name) ?? openJoint(host, port);
  joints.set(name, opened);
  opened.catch(() => joints.delete(name));
  const { rollouts, server } = await opened;
  rollouts.set(id, address);
  server.ref();
  return () => {
    rollouts.delete(id);
    // The port stays this run's, so that another one does not get its calls between two steps.
    if (rollouts.size === 0) server.unref();
  };
}

async function openJoint(host: string, port: number): Promise<Joint> {
  const rollouts: Joint["rollouts"] = new Map();
  const server = createServer({ requestTimeout: 0 }, (incoming, outgoing) => {
    forward(rollouts, incoming, outgoing).catch((error: Error) => {
      if (!outgoing.headersSent) refuse(outgoing, 502, error.message);
      outgoing.destroy();
    });
  });
  await listen(server, { host, port }).catch((cause: Error) => {
    throw new UserError(`nemoGym cannot listen on ${host}:${port}: ${cause.message}`, { cause });
  });
  return { server, rollouts };
}

function refuse(outgoing: ServerResponse, status: number, message: string): void {
  outgoing.writeHead(status, { "content-type": "application/json", "x-should-retry": "false" });
  outgoing.end(JSON.stringify({ error: { message, type: "invalid_request_error" } }));
}

async function forward(rollouts: Joint["rollouts"], incoming: IncomingMessage, outgoing: ServerResponse) {
  const { host, origin } = incoming.headers;
  // The id of a rollout is its key.
  const refusal = webRefusal({ host, origin }, { keyRequired: true });
  if (refusal) return refuse(outgoing, 403, refusal);
  const text = await readText(incoming);
  if (text === undefined) return refuse(outgoing, 413, "the request is larger than 32 MiB");
  const path = /^(?:\/ng-rollout\/([^/]+)(?:\/[^/]+)?)?\/v1(\/[a-z_/]+)$/.exec(incoming.url ?? "");
  const body = parse(text) as { metadata?: Record<string, unknown> } | null | undefined;
  const id = path?.[1] ?? body?.metadata?.[key];
  const address = typeof id === "string" ? rollouts.get(id) : undefined;
  if (path === null || address === undefined) {
    return refuse(
      outgoing,
      404,
      "the call names no rollout that runs: not in its path, and not in metadata.hone_rollout",
    );
  }
  if (body?.metadata) delete body.metadata[key];
  const gone = new AbortController();
  outgoing.once("close", () => gone.abort());
  const answer = await request(`${address.baseURL}${path[2]}`, {
    method: "POST",
    headers: { "content-type": "application/json", authorization: `Bearer ${address.apiKey}` },
    body: JSON.stringify(body),
    dispatcher: patient,
    signal: gone.signal,
  });
  const { "content-type": type = "application/json", "x-should-retry": retry } = answer.headers;
  outgoing.writeHead(answer.statusCode, { "content-type": type, ...(retry ? { "x-should-retry": retry } : {}) });
  await pipeline(Readable.from(answer.body), outgoing);
}

async function readText(incoming: IncomingMessage): Promise<string | undefined> {
  const chunks: Buffer[] = [];
  let bytes = 0;
  for await (const chunk of incoming as AsyncIterable<Buffer>) {
    bytes += chunk.length;
    if (bytes > maxBytes) return undefined;
    chunks.push(chunk);
  }
  return Buffer.concat(chunks).toString();
}
