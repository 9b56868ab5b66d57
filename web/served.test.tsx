// @vitest-environment happy-dom
// Own process: main.tsx draws a page when it is first loaded, and page.test.tsx loads it, too.
import { afterEach, beforeAll, expect, test, vi } from "vitest";
import type { Episode } from "../src/apps/view/queries/episode.ts";
import type { EpisodeRow } from "../src/apps/view/queries/episodes.ts";
import { report } from "./report.fixture.ts";

const api = "/api/runs/toy%20run";
const run = "/runs/toy%20run";
const episode = (key: string) => report[`${api}/episodes/${key}`] as Episode;

/** What the server answers to a path and its query; otherwise as in the report. */
const answers: Record<string, (query: URLSearchParams) => unknown> = {};
const scales = { episodes: 4, ranges: { advantage: [-4, 3] } };
const asked: string[] = [];

/** The page as a viewer serves it. */
beforeAll(async () => {
  vi.stubGlobal("scrollTo", () => {});
  vi.stubGlobal(
    "EventSource",
    class {
      addEventListener() {}
      close() {}
    },
  );
  vi.stubGlobal("fetch", async (path: string) => {
    asked.push(path);
    const { pathname, searchParams } = new URL(path, "http://viewer.invalid");
    const data = answers[pathname]?.(searchParams) ?? { ...report, [`${api}/scales`]: scales }[path];
    if (data === undefined) return new Response('{"error": "not found"}', { status: 404 });
    return new Response(JSON.stringify(data));
  });
  Object.defineProperty(HTMLElement.prototype, "offsetHeight", { get: () => 100 });
  const page = document.createElement("div");
  page.id = "page";
  document.body.append(page);
  history.pushState(null, "", `${run}/config`);
  await import("./main.tsx");
});
afterEach(() => {
  for (const path of Object.keys(answers)) delete answers[path];
});

const main = () => document.querySelector("main")!;
const button = (name: string) =>
  [...document.querySelectorAll("button")].find(
    (one) => (one.getAttribute("aria-label") ?? one.textContent)?.trim() === name,
  )!;

async function open(address: string, text: string) {
  history.pushState(null, "", address);
  dispatchEvent(new Event("popstate"));
  await vi.waitFor(() => expect(main().textContent).toContain(text));
}

async function press(key: string, address: RegExp) {
  document.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
  await vi.waitFor(() => expect(`${location.pathname} ${location.search}`).toMatch(address));
}

const keys = ["t2.1", "t2.0", "t1.1", "t1.0"];
/** A list of these episodes, as the server cuts it. */
const serveList =
  (rows: readonly EpisodeRow[]) =>
  (query: URLSearchParams): unknown => {
    const offset = Number(query.get("offset") ?? 0);
    return { total: rows.length, offset, rows: rows.slice(offset, offset + Number(query.get("limit"))) };
  };

test("a filter of one role shows the reward of that role, not of another", async () => {
  const solver = { role: "solver", reward: 0.75, advantage: 0.5, tokens: 1, turns: 1 };
  const judge = { role: "judge", reward: 0.125, advantage: -0.5, tokens: 1, turns: 1 };
  const row = { ...episode("t1.0"), reward: 0.75, trajectories: [solver, judge, { ...judge, instance: 1 }] };
  answers[`${api}/episodes`] = (query) =>
    serveList([query.get("filter") === "role=judge" ? { ...row, matched: [1, 2] } : row])(query);
  await open(`${run}/episodes?filter=role%3Djudge`, "step 1, judge and 1 more");
  expect(document.querySelector(".list-row:not(.list-head) .reward")?.textContent).toBe("0.125");
  expect(document.querySelector(".list-row .advantage")?.textContent).toBe("−0.5");
  await open(`${run}/episodes?filter=step%3D1`, "step 1, solver");
  expect(document.querySelector(".list-row:not(.list-head) .reward")?.textContent).toBe("0.75");
});

test("] and [ stay in the filtered list, also after it has grown, and u leads back to it", async () => {
  let rows = keys.filter((key) => key !== "t2.0").map(episode);
  answers[`${api}/episodes`] = (query) => serveList(rows)(query);
  await open(`${run}/episodes?filter=reward%3C9&sort=reward&order=asc`, "<b>toy</b>/1:1");
  document.querySelector<HTMLAnchorElement>("a[data-row]")!.click();
  await vi.waitFor(() => expect(main().textContent).toContain("1 of 3 episodes"));
  await press("[", /t2\.1 /);
  await press("]", /t1\.1 .*filter=reward%3C9&sort=reward&order=asc&place=1/);
  await vi.waitFor(() => expect(main().textContent).toContain("2 of 3 episodes"));
  await press("u", /\/episodes \?filter=reward%3C9&sort=reward&order=asc/);

  rows = [...Array.from({ length: 5 }, (_, index) => ({ ...episode("t2.1"), key: `t3.${index}` })), ...rows];
  await open(`${run}/episodes/t1.1?filter=reward%3C8&place=1`, "7 of 8 episodes");
  await press("]", /t1\.0 .*place=7/);
});

test("] stays among the results of a text search; without a list it goes through the step", async () => {
  answers[`${api}/search`] = (query) => {
    const { total, rows } = serveList(["t2.1", "t1.1"].map(episode))(query) as { total: number; rows: EpisodeRow[] };
    return { total, hits: rows.map((row) => ({ episode: row, snippet: "a cat", match: [2, 5] })) };
  };
  await open(`${run}/episodes/t2.1?q=cat`, "1 of 2 episodes");
  await press("]", /t1\.1 .*q=cat/);
  await open(`${run}/episodes/t1.0`, "<b>toy</b>/1:0");
  await press("]", /t1\.1 $/);
});

test("a bar of the rewards filters the list, and a second click shows all again", async () => {
  answers[`${api}/episodes`] = serveList(keys.map(episode));
  answers[`${api}/rewards`] = () => ({
    bins: [
      { low: -0.5, high: 0.25, count: 3 },
      { low: 0.25, high: 1, count: 1 },
    ],
    unknown: 2,
  });
  asked.length = 0;
  await open(`${run}/episodes?filter=step%3C3`, "−0.5");
  button("reward 0.25 to 1: 1 episodes (16.7%)").click();
  const filter = () => new URLSearchParams(location.search).get("filter");
  await vi.waitFor(() => expect(filter()).toBe("reward>=0.25 and reward<=1 and (step<3)"));
  await vi.waitFor(() =>
    expect(button("reward 0.25 to 1: 1 episodes (16.7%)").getAttribute("aria-pressed")).toBe("true"),
  );
  button("reward unknown: 2 episodes (33.3%)").click();
  await vi.waitFor(() => expect(filter()).toBe("reward=unknown and (step<3)"));
  button("reward unknown: 2 episodes (33.3%)").click();
  await vi.waitFor(() => expect(filter()).toBe("step<3"));
  expect(asked.filter((path) => path.includes("/rewards"))).toEqual([`${api}/rewards?filter=step%3C3`]);
});

test("metrics become columns of the list of runs, which the address keeps", async () => {
  answers["/api/columns"] = (query) => ({
    names: ["actor/entropy", "perf/throughput"],
    values: query.get("names") === null ? {} : { "toy run": { "actor/entropy": 0.625 } },
  });
  await open("/", "toy run");
  await vi.waitFor(() => expect(document.querySelectorAll("#metric-names option").length).toBe(2));
  const field = document.querySelector<HTMLInputElement>("[aria-label='add a metric as column']")!;
  const type = (name: string) => {
    field.value = name;
    field.dispatchEvent(new Event("change", { bubbles: true }));
  };
  type("actor/entropi");
  await vi.waitFor(() => expect(field.getAttribute("aria-invalid")).toBe("true"));
  type("actor/entropy");
  await vi.waitFor(() => expect(location.search).toBe("?columns=actor%2Fentropy"));
  const cells = () => [...document.querySelectorAll("[data-label='actor/entropy']")].map((cell) => cell.textContent);
  await vi.waitFor(() => expect(cells()).toEqual(["0.625", "–"]));
  button("remove the column actor/entropy").click();
  await vi.waitFor(() => expect(location.search).toBe(""));
});

test("colors have the scale of the run until the reader chooses that of the episode", async () => {
  await open(`${run}/episodes/t2.0?tokens=exact`, "attacked");
  const strongest = () => document.querySelector(".token-legend li")?.textContent;
  await vi.waitFor(() => expect(strongest()).toBe("−4"));
  button("episode").click();
  await vi.waitFor(() => expect(strongest()).toBe("−0.8"));
  expect(location.search).toContain("scale=episode");
});

test("a reply without texts of its tokens says why it has no colors", async () => {
  const { detail, ...shown } = episode("t1.0");
  const bare = structuredClone(detail);
  for (const { turnList } of bare) for (const { sampled } of turnList) delete sampled.pieces;
  answers[`${api}/episodes/t9.9`] = () => ({ ...shown, key: "t9.9", detail: bare });
  await open(`${run}/episodes/t9.9`, "The run folder has no tokenizer, so the text has no colors.");
  button("Show token ids in color").click();
  await vi.waitFor(() => expect(main().textContent).not.toContain("no tokenizer"));
});
