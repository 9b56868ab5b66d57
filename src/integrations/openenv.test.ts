import { afterEach, expect, test } from "vitest";
import { multiTurn } from "../agents/workflows.ts";
import type { Script } from "../testing/scripted.ts";
import { runWorkflow } from "../testing/scripted.ts";
import { type OpenEnvOptions, openEnv } from "./openenv.ts";
import { type Connection, type WebSocketServer, webSocketServer } from "./websocket-server.fixture.ts";

interface Message {
  type: string;
  data: Record<string, unknown>;
}

const servers: WebSocketServer[] = [];
afterEach(async () => {
  await Promise.all(servers.splice(0).map((server) => server.close()));
});

const action = {
  type: "object",
  description: "Adds.",
  properties: { amount: { type: "integer" } },
  required: ["amount"],
};

async function serve(session: (connection: Connection) => (message: Message) => void, schema: unknown = { action }) {
  const text = typeof schema === "string" ? schema : JSON.stringify(schema);
  const server = await webSocketServer(text, (connection) => {
    const onMessage = session(connection);
    return (received) => onMessage(JSON.parse(received) as Message);
  });
  servers.push(server);
  return server;
}

const observe = (observation: Record<string, unknown>, reward: unknown = null, done = false) =>
  JSON.stringify({ type: "observation", data: { observation: { ...observation, metadata: {} }, reward, done } });

const refuse = (code: string, errors?: unknown) =>
  JSON.stringify({ type: "error", data: { message: `is ${code}`, code, errors } });

/** Counts to 3 from the seed: each step gives null, but the last gives true. */
const counter = ({ send, close }: Connection) => {
  let total = 0;
  return ({ type, data }: Message) => {
    if (type === "close") return close();
    if (type === "reset") total = data.seed as number;
    else if (typeof data.amount !== "number") return send(refuse("VALIDATION_ERROR", [{ loc: ["amount"] }]));
    else total += data.amount;
    return send(type === "step" && total >= 3 ? observe({ total }, true, true) : observe({ total }));
  };
};

const add = (amount: unknown, name = "act") => ({ text: "", toolCalls: [{ name, arguments: { amount } }] });

function run(url: string, reply: Script, options: Partial<OpenEnvOptions<{ seed: number }>> = {}, n = 1) {
  const workflow = multiTurn<{ seed: number }>({
    environment: openEnv({ url, reset: ({ seed }) => ({ seed }), ...options }),
    maxSteps: 4,
  });
  return runWorkflow({ rows: [{ seed: 1 }], n, reply, workflow, raiseOnError: false });
}

test("the schema is the tool, the seed goes to reset, rewards are summed, and refused actions are told to the model", async () => {
  const server = await serve(counter);
  const replies = [
    add("1"),
    add(1, "add"),
    "I wait.",
    { text: "", toolCalls: [...add(1).toolCalls, ...add(1).toolCalls, ...add(1).toolCalls] },
  ];
  const [episode] = await run(
    `${server.url}/`,
    (messages) => replies[messages.filter(({ role }) => role === "assistant").length]!,
  );
  expect(episode).toMatchObject({
    termination: "env_done",
    metrics: { turns: 4, actions: 3, refused_actions: 1, turns_without_action: 1 },
    trajectories: [{ reward: 1 }],
  });
  const { steps } = episode!.trajectories[0]!;
  expect(steps.map(({ reward }) => reward)).toEqual([null, null, null, 1]);
  expect(steps[0]!.tools).toEqual([{ name: "act", description: "Adds.", parameters: action }]);
  expect(steps[3]!.messages.filter(({ role }) => role !== "assistant").map(({ content }) => content)).toEqual([
    '{"total":1}',
    'Error: is VALIDATION_ERROR: [{"loc":["amount"]}]',
    'Error: there is no tool "add". The tool is act.',
    "Nothing happened. Call the tool act to act.",
  ]);
  await expect.poll(server.open).toBe(0);
});

test("an episode that is cut off has what it earned, one that is done without a reward is unknown", async () => {
  const { url } = await serve(counter);
  expect((await run(url, () => add(0)))[0]!.trajectories[0]!.reward).toBe(0);
  const silent = await serve(
    ({ send }) =>
      ({ type }) =>
        send(observe({ a: 1 }, null, type === "step")),
  );
  expect((await run(silent.url, () => add(0)))[0]!.trajectories[0]!.reward).toBeNull();
  const paying = await serve(
    ({ send }) =>
      () =>
        send(observe({ a: 1 }, 0.5)),
  );
  expect((await run(paying.url, () => add(0)))[0]!.trajectories[0]!.reward).toBe(2);
});

test("rollouts wait while the server has no free session, up to a limit", async () => {
  let sessions = 0;
  const server = await serve((connection) => {
    if (sessions >= 1) {
      connection.send(refuse("CAPACITY_REACHED"));
      connection.close();
      return () => {};
    }
    sessions++;
    const onMessage = counter(connection);
    return (message) => {
      if (message.type === "close") sessions--;
      onMessage(message);
    };
  });
  const episodes = await run(server.url, () => add(1), {}, 4);
  expect(episodes.map(({ trajectories }) => trajectories[0]?.reward)).toEqual([1, 1, 1, 1]);
  sessions = 100;
  const [episode] = await run(server.url, () => add(1), { waitSeconds: 0.2 });
  expect(episode!.failure).toMatchObject({ kind: "infrastructure" });
  expect(episode!.failure!.message).toMatch(/no free session for 0.2 seconds.*max_concurrent_envs/);
});

const huge = Buffer.from([0x81, 127, 0, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff]);

test.each<[string, (connection: Connection) => unknown, string, RegExp]>([
  ["what is not JSON", ({ send }) => send("{"), "infrastructure", /does not define: \{/],
  ["an unknown type", ({ send }) => send('{"type":"__proto__","data":{}}'), "infrastructure", /does not define/],
  ["a reward of text", ({ send }) => send(observe({}, "1")), "infrastructure", /does not define/],
  [
    "an infinite reward",
    ({ send }) => send(observe({}, 1).replace('"reward":1', '"reward":1e999')),
    "infrastructure",
    /does not/,
  ],
  ["deep nesting", ({ send }) => send("[".repeat(1e6)), "infrastructure", /does not define/],
  ["a message of 2 GB", ({ raw }) => raw(huge), "infrastructure", /broke|closed the connection/],
  ["nothing", () => {}, "infrastructure", /did not answer within 0.3 seconds/],
  ["a close", ({ close }) => close(), "infrastructure", /closed the connection \(1000\)/],
  ["a broken connection", ({ destroy }) => destroy(), "infrastructure", /broke|closed the connection/],
  ["half a frame", ({ raw, close }) => [raw(huge.subarray(0, 3)), close()], "infrastructure", /broke|closed/],
  ["a lost session", ({ send }) => send(refuse("SESSION_ERROR")), "infrastructure", /SESSION_ERROR: is/],
  ["an error of its own", ({ send }) => send(refuse("EXECUTION_ERROR")), "agent", /EXECUTION_ERROR: is/],
])("a step that is answered with %s", async (what, answer, kind, message) => {
  const server = await serve((connection) => ({ type }) => {
    if (type === "step") answer(connection);
    else if (type === "reset") connection.send(observe({ a: 1 }));
    else connection.close();
  });
  const [episode] = await run(server.url, () => add(1), { timeoutSeconds: what === "nothing" ? 0.3 : 8 });
  expect(episode!.failure).toMatchObject({ kind, boundary: "environment", message: expect.stringMatching(message) });
  expect(episode!.trajectories[0]!.reward).toBeNull();
  await expect.poll(server.open, { timeout: 5000 }).toBe(0);
});

test("a second answer to one message fails the rollout, because later ones would be taken for others", async () => {
  const server = await serve(({ send }) => () => {
    send(observe({ a: 1 }));
    send(observe({ a: 2 }));
  });
  const [episode] = await run(server.url, () => add(1));
  expect(episode!.failure).toMatchObject({
    kind: "infrastructure",
    message: expect.stringContaining("answers nothing"),
  });
});

test("an address that is no OpenEnv server, a server that is down, and arguments of reset that are refused", async () => {
  expect(() => openEnv({ url: "localhost:8000" })).toThrow("is not an address");
  for (const schema of ["<html>", {}, { action: { type: "string" } }]) {
    const { url } = await serve(counter, schema);
    const [refused] = await run(url, () => add(1));
    expect(refused!.failure!.message).toContain("has no /schema of an action");
  }
  const gone = await serve(counter);
  await servers.pop()!.close();
  const [episode] = await run(gone.url, () => add(1));
  expect(episode!.failure).toMatchObject({
    kind: "infrastructure",
    message: expect.stringContaining("did not answer"),
  });
  const { url } = await serve(
    ({ send }) =>
      () =>
        send(refuse("VALIDATION_ERROR")),
  );
  const [refused] = await run(url, () => add(1));
  expect(refused!.failure!.message).toContain("refuses what openEnv's reset returns");
});

test("either the url of a server or an image", () => {
  expect(() => openEnv({})).toThrow(/the url of a server or the image of one/);
  expect(() => openEnv({ url: "http://localhost:8000", image: "echo" })).toThrow(/and not both/);
});
