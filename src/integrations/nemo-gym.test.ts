import { createServer } from "node:http";
import { text } from "node:stream/consumers";
import { afterEach, expect, test } from "vitest";
import { listen } from "../base/http.ts";
import { freePort } from "../base/processes.ts";
import { runWorkflow } from "../testing/scripted.ts";
import { type NemoGymRow, nemoGym } from "./nemo-gym.ts";

interface Run extends NemoGymRow {
  _ng_rollout_id: string;
  responses_create_params: { input: string; metadata: Record<string, string> };
}

const closes: (() => void)[] = [];
afterEach(() => {
  for (const close of closes.splice(0)) close();
});

/** An agent server: what it answers to `/run`, as NeMo Gym's do. */
async function serve(run: (body: Run) => Promise<[status: number, body: unknown]>): Promise<string> {
  const server = createServer(async (incoming, outgoing) => {
    const [status, body] = await run(JSON.parse(await text(incoming)) as Run);
    outgoing.writeHead(status, { "content-type": "application/json" }).end(JSON.stringify(body));
  });
  closes.push(() => server.close());
  return await listen(server);
}

const rows = [{ responses_create_params: { input: "one" }, answer: 1 }];

/** Calls the model as the model server does: by the path of NeMo Gym 0.7, or only with the agent's parameters. */
async function call(port: number, body: Run, byPath: boolean, headers: Record<string, string> = {}) {
  const path = byPath ? `/ng-rollout/${body._ng_rollout_id}/v1/responses` : "/v1/responses";
  const { metadata, ...params } = body.responses_create_params;
  const response = await fetch(`http://127.0.0.1:${port}${path}`, {
    method: "POST",
    headers: { "content-type": "application/json", ...headers },
    body: JSON.stringify({ ...params, model: "policy", ...(byPath ? {} : { metadata }) }),
  });
  return { status: response.status, body: (await response.json()) as Record<string, unknown> };
}

test.each([true, false])("model calls join their rollouts, which run at once (by path: %s)", async (byPath) => {
  const port = await freePort();
  const answers: Record<string, unknown>[] = [];
  const agent = await serve(async (run) => {
    expect(run).toMatchObject({
      answer: 1,
      responses_create_params: { metadata: { hone_rollout: run._ng_rollout_id } },
    });
    const { body } = await call(port, run, byPath);
    answers.push(body);
    const said = JSON.stringify(body).includes("reply 2") ? 0.5 : 0;
    return [200, { ...run, response: body, reward: said, passed: true, _internal: 3, note: "text" }];
  });
  let replies = 0;
  const episodes = await runWorkflow({
    workflow: nemoGym({ agent, listen: { port } }),
    ...{ rows, n: 4, reply: () => `reply ${replies++}` },
  });
  const seen = episodes.map(({ trajectories: [trajectory], metrics }) => ({
    said: trajectory?.steps.map(({ text }) => text),
    reward: trajectory?.reward,
    passed: metrics.passed,
    internal: metrics._internal,
  }));
  expect(seen.map(({ said }) => said?.[0]).sort()).toEqual(["reply 0", "reply 1", "reply 2", "reply 3"]);
  for (const { said, reward, passed, internal } of seen) {
    expect([reward, passed, internal]).toEqual([said?.[0] === "reply 2" ? 0.5 : 0, 1, undefined]);
  }
  // The agent does not see its own metadata changed, and the model's answer is a Response.
  expect(answers).toHaveLength(4);
  expect(answers[0]).toMatchObject({ object: "response", metadata: {} });
});

test("calls of other rollouts, of web pages and of those that ended are refused", async () => {
  const port = await freePort();
  const seen: number[] = [];
  let ended: Run | undefined;
  const agent = await serve(async (run) => {
    ended = run;
    seen.push((await call(port, { ...run, _ng_rollout_id: "0".repeat(32) }, true)).status);
    seen.push((await call(port, run, true, { origin: "https://page.example" })).status);
    const other = { ...run, responses_create_params: { ...run.responses_create_params, metadata: {} } };
    seen.push((await call(port, other, false)).status);
    await call(port, run, true);
    return [200, { reward: null }];
  });
  const [episode] = await runWorkflow({ workflow: nemoGym({ agent, listen: { port } }), rows, reply: () => "yes" });
  expect(seen).toEqual([404, 403, 404]);
  expect(episode?.trajectories).toMatchObject([{ reward: null, steps: [{ text: "yes" }] }]);
  expect((await call(port, ended!, true)).status).toBe(404);
});

test.each([
  [200, { score: 1 }, "workflow", /has no reward/],
  [500, "Internal Server Error", "workflow", /answered 500/],
  [503, "busy", "infrastructure", /answered 503/],
])("an answer of %i %j fails the rollout", async (status, body, kind, message) => {
  const agent = await serve(async () => [status, body]);
  const workflow = nemoGym({ agent, listen: { port: await freePort() } });
  const [episode] = await runWorkflow({ workflow, rows, reply: () => "x", raiseOnError: false });
  expect(episode?.failure?.message).toMatch(message);
  expect(episode?.failure?.kind === "infrastructure").toBe(kind === "infrastructure");
});

test("mistakes are named", async () => {
  expect(() => nemoGym({ agent: "localhost:1", listen: { port: 1 } })).toThrow(/is not an address/);
  const agent = await serve(async () => [422, { detail: "field required" }]);
  const workflow = nemoGym({ agent, listen: { port: await freePort() } });
  await expect(runWorkflow({ workflow, rows, reply: () => "x" })).rejects.toThrow(/answered 422/);
  const none = [{ question: "?" }] as unknown as NemoGymRow[];
  await expect(runWorkflow({ workflow, rows: none, reply: () => "x" })).rejects.toThrow(/no responses_create_params/);
});
