/** A program for packages.e2e.ts: scorers of packages as rewards, and Braintrust's dataset as rows. @argument the folder with the packages */
import { createServer } from "node:http";
import module, { createRequire } from "node:module";
import { pathToFileURL } from "node:url";
import { singleTurn } from "../agents/workflows.ts";
import { listen } from "../base/http.ts";
import { fromAsync } from "../data/from-async.ts";
import { runWorkflow } from "../testing/index.ts";
import { asScorer, assertion, scorers } from "./scorers.ts";

const load = createRequire(`${process.argv[2]}/`);

/** Stands in for the packages that promptfoo loads and that are not installed: whatever is called gives it again. */
const anything: unknown = new Proxy(class {}, {
  get: (target, key) => {
    if (key === Symbol.toPrimitive) return () => "";
    return key === "prototype" ? target.prototype : key === "then" || key === "__esModule" ? undefined : anything;
  },
  apply: () => anything,
  construct: () => anything as object,
});
const loader = module as unknown as { _load: (request: string, ...rest: unknown[]) => unknown };
const { _load: really } = loader;
loader._load = function (request, ...rest) {
  try {
    return really.call(this, request, ...rest);
  } catch (error) {
    if ((error as { code?: string }).code !== "MODULE_NOT_FOUND" || request.startsWith(".")) throw error;
    return anything;
  }
};

async function promptfoo() {
  const { assertions } = load("promptfoo");
  const list = [
    { type: "contains", value: "{{expected}}" },
    { type: "levenshtein", value: "{{expected}}", threshold: 3 },
    { type: "is-json" },
  ];
  const workflow = singleTurn<{ expected: string }>({
    prompt: () => "What is the capital of France?",
    reward: scorers(list.map((options) => assertion(assertions.runAssertion, options))),
  });
  const replies = ["Paris", "Rome", '{"city": "Paris"}'];
  const rows = replies.map(() => ({ expected: "Paris" }));
  let asked = 0;
  const episodes = await runWorkflow({ workflow, rows, reply: () => replies[asked++]! });
  return episodes.map(({ metrics }) => list.map(({ type }) => metrics[`reward/${type}`]));
}

/** evalite's scorer, vitest-evals' judge, and a reward of Hone as a scorer of evalite. */
async function evals() {
  const from = createRequire(`${process.argv[2]}/evals/`);
  const { createScorer } = await import(pathToFileURL(from.resolve("evalite")).href);
  const { ToolCallJudge } = await import(pathToFileURL(from.resolve("vitest-evals/judges")).href);
  type Row = { expected: string };
  const contains = ({ output, expected }: { output: string; expected: string }) => Number(output.includes(expected));
  const exact = asScorer<Row>((row, reply) => Number(reply.text === row.expected), {
    name: "exact",
    row: ({ expected }) => ({ expected: String(expected) }),
  });
  const list = [
    createScorer({ name: "contains", description: "d", scorer: contains }),
    ToolCallJudge(),
    createScorer({ name: "exact", description: "d", scorer: exact }),
  ];
  const reward = scorers<Row>(list);
  const replies = ["Paris", "Rome"];
  let asked = 0;
  const episodes = await runWorkflow({
    workflow: singleTurn<Row>({ prompt: () => "What is the capital of France?", reward }),
    rows: replies.map(() => ({ expected: "Paris" })),
    reply: () => replies[asked++]!,
  });
  return episodes.map(({ metrics }) => ["contains", "ToolCallJudge", "exact"].map((name) => metrics[`reward/${name}`]));
}

/** The part of Braintrust's API that reads a dataset. */
async function braintrust() {
  const id = (last: string) => `00000000-0000-0000-0000-00000000000${last}`;
  const events = [
    { id: "1", input: { question: "2 + 2?" }, expected: 4, metadata: { email: "a@b.c" } },
    { id: "2", input: { question: "3 + 3?" }, expected: 6, metadata: {} },
  ];
  const seen: string[] = [];
  const server = createServer((request, response) => {
    const url = request.url ?? "";
    seen.push(url);
    const answer = url.includes("/api/apikey/login")
      ? { org_info: [{ id: id("1"), name: "org", api_url: address, proxy_url: address, git_metadata: null }] }
      : url.includes("/api/dataset/register")
        ? { project: { id: id("2"), name: "support" }, dataset: { id: id("3"), name: "questions" } }
        : url.includes("/btql")
          ? {
              data: events.map((event) => ({ ...event, _xact_id: "1", created: "2026-01-01T00:00:00Z" })),
              cursor: null,
            }
          : {};
    response.writeHead(200, { "content-type": "application/json" }).end(JSON.stringify(answer));
  });
  const address = await listen(server);
  const { initDataset } = load("braintrust");
  const dataset = initDataset({ project: "support", dataset: "questions", appUrl: address, apiKey: "key" });
  type Item = { id: string; input: { question: string }; expected: number };
  try {
    const rows = await fromAsync(
      "questions",
      () => dataset as AsyncIterable<Item>,
      ({ id, input, expected }) => ({ id, question: input.question, answer: expected }),
    );
    return Array.from({ length: rows.size }, (_, index) => rows.task(index)).map(({ id, row }) => [
      id,
      row.question,
      row.answer,
    ]);
  } catch (error) {
    throw new Error(`requests: ${seen.join(" ")}`, { cause: error });
  }
}

console.log(JSON.stringify({ promptfoo: await promptfoo(), evals: await evals(), braintrust: await braintrust() }));
process.exit(0);
