/**
 * `hone-rl/openenv`: an environment of an OpenEnv server. Each attempt has a WebSocket, which is a session of the server.
 * @module
 */
import type { Socket } from "node:net";
import { setTimeout as sleep } from "node:timers/promises";
import { Agent, buildConnector, WebSocket } from "undici";
import { z } from "zod";
import type { Environment, Observation } from "../agents/types.ts";
import { RunError, UserError } from "../base/errors.ts";
import type { ChatMessage, ToolDefinition } from "../chat/messages.ts";
import type { Task } from "../data/dataset.ts";
import { type Started, startContainer } from "./containers/container.ts";
import { type Engine, findEngine } from "./containers/engine.ts";

export interface OpenEnvOptions<Row> {
  /** Address of the server, e.g. `http://localhost:8000`. Either this or `image`. */
  url?: string;
  /**
   * An image of the environment. It is started with Docker or podman at the first rollout, once for all rollouts, and
   * removed when this process ends.
   */
  image?: string;
  /** Port on which the image's server listens. Default 8000. */
  port?: number;
  /** The image's network. `"bridge"` (default): only its port, on this machine. `"host"`: this machine's network. */
  network?: "bridge" | "host";
  /** Variables for the image's server. */
  env?: Readonly<Record<string, string>>;
  /** What the server's `reset` gets. Without a seed of the task, its rollouts may begin in different states. Default: nothing. */
  reset?: (row: Row) => Record<string, unknown>;
  /** What the model sees of an observation. Default: its JSON. */
  show?: (observation: Record<string, unknown>) => string;
  /** The tool by which the model acts. Default: "act", with the description of the server's schema. */
  tool?: { name?: string; description?: string };
  headers?: Record<string, string>;
  /** Time limit of each answer. Default 60. */
  timeoutSeconds?: number;
  /** How long to wait for a free session. Default 120. */
  waitSeconds?: number;
}

const maxMessageBytes = 16 * 2 ** 20;

const schemas = z.object({ action: z.looseObject({ type: z.literal("object"), description: z.string().optional() }) });
const answers = z.discriminatedUnion("type", [
  z.object({
    type: z.literal("observation"),
    data: z.object({
      observation: z.record(z.string(), z.unknown()),
      reward: z.union([z.number(), z.boolean()]).nullish(),
      done: z.boolean(),
    }),
  }),
  z.object({
    type: z.literal("error"),
    data: z.object({ code: z.string(), message: z.string(), errors: z.unknown().optional() }),
  }),
]);
type Answer = z.output<typeof answers>;
type Refusal = Extract<Answer, { type: "error" }>["data"];

/**
 * The reward is the sum of the rewards that the server gives; an episode that is done without any is unknown. A boolean
 * counts as 0 or 1. An action that the server's schema refuses is answered with the reason.
 *
 * @example
 * multiTurn<Row>({ environment: openEnv({ url: "http://localhost:8000", reset: (row) => ({ seed: row.seed }) }) })
 */
export function openEnv<Row>(options: OpenEnvOptions<Row>): (task: Task<Row>) => Promise<Environment> {
  const { reset = () => ({}), show = showJson, url, image } = options;
  if ((url === undefined) === (image === undefined)) {
    throw new UserError("openEnv needs the url of a server or the image of one, and not both");
  }
  const running = url === undefined ? undefined : openServer({ ...options, url });
  const find = running ? async () => running : imageServer(options);
  let tool: Promise<ToolDefinition> | undefined;
  return async ({ row }) => {
    const server = await find();
    tool ??= actionTool(server, options);
    // The next attempt asks again.
    tool.catch(() => (tool = undefined));
    const { name, ...definition } = await tool;
    const counts = { actions: 0, refused_actions: 0, turns_without_action: 0 };
    let session: Session | undefined;
    let total: number | undefined;
    let done = false;

    async function act(action: unknown, signal: AbortSignal): Promise<{ content: string; reward: number | null }> {
      if (session === undefined) throw new Error("step was called before reset");
      counts.actions++;
      const answer = await session.ask({ type: "step", data: action }, signal);
      if (answer.type === "error") {
        const { code, message, errors } = answer.data;
        if (code !== "VALIDATION_ERROR") throw server.failure(answer.data);
        counts.refused_actions++;
        return {
          content: `Error: ${message}${errors === undefined ? "" : `: ${JSON.stringify(errors)}`}`,
          reward: null,
        };
      }
      done = answer.data.done;
      const { reward } = answer.data;
      return {
        content: show(answer.data.observation),
        reward: typeof reward === "boolean" ? Number(reward) : (reward ?? null),
      };
    }

    return {
      tools: [{ name, ...definition }],
      async reset({ signal }): Promise<Observation> {
        const begun = await server.begin(reset(row), signal);
        session = begun.session;
        return show(begun.observation);
      },
      async step({ toolCalls, problems }, { signal }) {
        const observation: ChatMessage[] = [];
        const rewards: number[] = [];
        // In their order, because each changes the state for the next.
        for (const call of toolCalls) {
          if (done) break;
          const known = call.name === name;
          const { content, reward } = known
            ? await act(call.arguments, signal)
            : { content: `Error: there is no tool "${call.name}". The tool is ${name}.`, reward: null };
          observation.push({ role: "tool", content, toolCallId: call.id, name: call.name });
          if (reward !== null) rewards.push(reward);
        }
        const unread = problems.map(({ message }) => message).join("; ");
        if (unread !== "") observation.push({ role: "user", content: `That could not be read: ${unread}` });
        else if (toolCalls.length === 0) {
          counts.turns_without_action++;
          observation.push({ role: "user", content: `Nothing happened. Call the tool ${name} to act.` });
        }
        const reward = rewards.length > 0 ? rewards.reduce((sum, one) => sum + one, 0) : null;
        if (reward !== null) total = (total ?? 0) + reward;
        return { observation, reward, done };
      },
      score: () => ({ reward: total ?? (done ? null : 0), metrics: counts }),
      close: () => session?.close(),
    };
  };
}

/** Metadata is for programs, and mostly empty. */
function showJson({ metadata: _, ...observation }: Record<string, unknown>): string {
  return JSON.stringify(observation);
}

interface Session {
  /** @throws RunError if the server does not answer as it should; the signal's reason when aborted */
  ask(message: { type: string; data: unknown }, signal: AbortSignal): Promise<Answer>;
  close(): void;
}

interface Server extends ReturnType<typeof openServer> {}

/** @returns a function that starts the image, once as long as it runs */
function imageServer<Row>(options: OpenEnvOptions<Row>): () => Promise<Server> {
  const { image = "", port = 8000, network = "bridge", env = {}, timeoutSeconds = 60 } = options;
  let started: Promise<{ server: Server; box: Started }> | undefined;
  async function start() {
    const engine = await findEngine();
    const variables = Object.entries(env).flatMap(([name, value]) => ["-e", `${name}=${value}`]);
    const net = network === "host" ? ["--network", "host"] : ["-p", `127.0.0.1::${port}`];
    const box = await startContainer(engine, image, [...net, ...variables], [image]);
    try {
      const mapped = network === "host" ? `127.0.0.1:${port}` : await mappedPort(engine, box.id, port);
      const server = openServer({ ...options, url: `http://${mapped}` });
      await untilReady(`http://${mapped}`, box, timeoutSeconds);
      return { server, box };
    } catch (error) {
      await box.remove();
      throw error;
    }
  }
  return async () => {
    // A server that ended is started again; what ran in it has failed.
    if (started && !(await started.then(({ box }) => box.isRunning()))) started = undefined;
    started ??= start();
    started.catch(() => (started = undefined));
    return (await started).server;
  };
}

async function mappedPort(engine: Engine, id: string, port: number): Promise<string> {
  const { stdout, stderr } = await engine.run(["port", id, `${port}/tcp`]);
  const line = stdout.split("\n").find((each) => /^127\.0\.0\.1:\d+$/.test(each.trim()));
  if (line === undefined) throw new RunError(`${engine.name} opened no port to the image: ${stderr.trim()}`);
  return line.trim();
}

/** Waits until the server in the container answers. */
async function untilReady(base: string, box: Started, seconds: number): Promise<void> {
  const until = performance.now() + seconds * 1000;
  for (;;) {
    const signal = AbortSignal.timeout(2000);
    if (
      await fetch(`${base}/schema`, { signal }).then(
        ({ ok }) => ok,
        () => false,
      )
    )
      return;
    const runs = await box.isRunning();
    if (runs && performance.now() < until) {
      await sleep(1000);
      continue;
    }
    const { stdout, stderr } = await box.engine.run(["logs", "--tail", "10", box.id]);
    const said = `${stdout}${stderr}`.trim();
    throw new UserError(
      `the image ${box.image} ${runs ? `did not answer within ${seconds} seconds` : "ended"}${said ? `:\n  ${said.replaceAll("\n", "\n  ")}` : ""}`,
      { hint: "does its server listen on the port that openEnv's `port` names, on all addresses?" },
    );
  }
}

function openServer<Row>({
  url,
  headers = {},
  timeoutSeconds = 60,
  waitSeconds = 120,
}: OpenEnvOptions<Row> & { url: string }) {
  if (!/^https?:$/.test(URL.canParse(url) ? new URL(url).protocol : "")) {
    throw new UserError(`openEnv: ${url} is not an address`, { hint: "for example http://localhost:8000" });
  }
  const base = url.replace(/\/+$/, "");
  const socketUrl = `${base.replace(/^http/, "ws")}/ws`;
  const who = `the OpenEnv server at ${base}`;
  const connector = buildConnector({});

  function failure({ code, message }: Refusal): Error {
    const text = `${who} answered ${code.slice(0, 50)}: ${message.slice(0, 500)}`;
    return code === "EXECUTION_ERROR" ? new Error(text) : new RunError(text);
  }

  function connect(): Session {
    let link: Socket | null = null;
    const dispatcher = new Agent({
      webSocket: { maxPayloadSize: maxMessageBytes },
      connect: (options, done) =>
        connector(options, (...connected) => {
          link = connected[1];
          done(...connected);
        }),
    });
    const socket = new WebSocket(socketUrl, { headers, dispatcher });
    let waiting: { resolve(answer: Answer): void; reject(error: unknown): void } | undefined;
    let failed: { error: unknown } | undefined;
    const end = (error: unknown) => {
      // A server that does not close its side would keep this process alive.
      if (failed === undefined) setTimeout(() => link?.destroy(), 1000).unref();
      failed ??= { error };
      waiting?.reject(failed.error);
      waiting = undefined;
      socket.close();
    };
    const fail = (what: string) => end(new RunError(`${who} ${what}`));
    socket.addEventListener("error", ({ message }) => fail(`broke the connection: ${message || "no reason given"}`));
    socket.addEventListener("close", ({ code }) => fail(`closed the connection (${code})`));
    socket.addEventListener("message", ({ data }) => {
      const answer = readAnswer(data);
      if (waiting === undefined) fail("sent a message that answers nothing");
      else if (answer === undefined) fail(`answered what OpenEnv does not define: ${String(data).slice(0, 200)}`);
      else {
        waiting.resolve(answer);
        waiting = undefined;
      }
    });
    return {
      async ask(message, signal) {
        signal.throwIfAborted();
        if (failed) throw failed.error;
        const answer = new Promise<Answer>((resolve, reject) => {
          waiting = { resolve, reject };
        });
        const send = () => socket.send(JSON.stringify(message));
        if (socket.readyState === WebSocket.OPEN) send();
        else socket.addEventListener("open", send, { once: true });
        const stop = () => end(signal.reason);
        signal.addEventListener("abort", stop, { once: true });
        const timer = setTimeout(() => fail(`did not answer within ${timeoutSeconds} seconds`), timeoutSeconds * 1000);
        try {
          return await answer;
        } finally {
          clearTimeout(timer);
          signal.removeEventListener("abort", stop);
        }
      },
      close() {
        if (socket.readyState === WebSocket.OPEN) socket.send(JSON.stringify({ type: "close" }));
        end(new Error("the session has ended"));
      },
    };
  }

  /** Waits while the server has no session free. */
  async function begin(data: Record<string, unknown>, signal: AbortSignal) {
    const until = performance.now() + waitSeconds * 1000;
    for (let pause = 50; ; pause = Math.min(2 * pause, 2000)) {
      const session = connect();
      const answer = await session.ask({ type: "reset", data }, signal);
      if (answer.type === "observation") return { session, observation: answer.data.observation };
      session.close();
      const { code, message } = answer.data;
      if (code === "VALIDATION_ERROR") throw new UserError(`${who} refuses what openEnv's reset returns: ${message}`);
      if (code !== "CAPACITY_REACHED") throw failure(answer.data);
      if (performance.now() + pause > until) {
        throw new RunError(
          `${who} had no free session for ${waitSeconds} seconds: raise its max_concurrent_envs to the rollouts that run at once`,
        );
      }
      await sleep(pause, undefined, { signal });
    }
  }

  async function schema(): Promise<z.output<typeof schemas>> {
    const signal = AbortSignal.timeout(timeoutSeconds * 1000);
    const response = await fetch(`${base}/schema`, { headers, signal }).catch((cause: unknown) => {
      throw new RunError(`${who} did not answer`, { cause });
    });
    if (response.status >= 500) throw new RunError(`${who} answered ${response.status} for its schema`);
    const { success, data } = schemas.safeParse(await readJson(response));
    if (!success) throw new UserError(`${base} has no /schema of an action`, { hint: "is it an OpenEnv server?" });
    return data;
  }

  return { begin, failure, schema };
}

async function actionTool<Row>(server: Server, { tool = {} }: OpenEnvOptions<Row>): Promise<ToolDefinition> {
  const { action } = await server.schema();
  const { name = "act", description = action.description ?? "Takes an action." } = tool;
  return { name, description, parameters: action };
}

function readAnswer(data: unknown): Answer | undefined {
  try {
    return answers.safeParse(JSON.parse(String(data))).data;
  } catch {
    return undefined;
  }
}

/** @returns undefined for what is not JSON, or too much */
async function readJson(response: Response): Promise<unknown> {
  const chunks: Uint8Array[] = [];
  let bytes = 0;
  for await (const chunk of response.body ?? []) {
    bytes += chunk.length;
    if (bytes > maxMessageBytes) return undefined;
    chunks.push(chunk);
  }
  try {
    return JSON.parse(Buffer.concat(chunks).toString());
  } catch {
    return undefined;
  }
}
