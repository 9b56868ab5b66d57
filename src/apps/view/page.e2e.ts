/** The page in a real browser, beside a run that trains. */
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath, pathToFileURL } from "node:url";
import { type Browser, chromium, type Page } from "playwright-core";
import { build } from "vite";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { findBrowser } from "../../../scripts/maintain/find-browser.mjs";
import { singleTurn } from "../../agents/workflows.ts";
import { temporaryFolder } from "../../temporary-folder.fixture.ts";
import { openToy, type ToyRow, toy } from "../../trainer/toy-experiment.fixture.ts";
import { train } from "../../trainer/train.ts";
import { exportReport } from "./export-report.ts";
import { generateRun, generateStep } from "./generate-run.fixture.ts";
import { type RunningViewer, startViewer } from "./server.ts";

const root = temporaryFolder("page");
const runs = join(root, "runs");
const built = join(root, "page");
const cache = join(root, "cache");
const hostile =
  "<script>window.attacked = true</script><img src=x onerror='window.attacked = true'> \u001b[31m \u202e 😀 שלום \ud800";

let browser: Browser;
let viewer: RunningViewer;
let page: Page;
let training: Promise<unknown>;
/** Errors of the page's console, and failed scripts. */
const errors: string[] = [];

/** Slow enough that a person could watch. */
const slowly = singleTurn<ToyRow>({
  prompt: () => "b",
  reward: async (_row, reply) => {
    await sleep(200);
    return [...reply.text].filter((letter) => letter === "a").length / 4;
  },
});

const start = (name: string, steps: number, workflow?: typeof slowly) =>
  train(toy({ rllm: { trainer: { total_batches: steps } } }, undefined, workflow), {
    engine: openToy(),
    overrides: [`rllm.trainer.run_dir=${join(runs, name)}`],
  });

beforeAll(async () => {
  await build({
    root: fileURLToPath(new URL("../../../web", import.meta.url)),
    logLevel: "warn",
    build: { outDir: built },
  });
  browser = await chromium.launch(await findBrowser());
  await start("finished", 5);
  generateRun(join(runs, "hostile"), { steps: 2, reply: () => hostile });
  generateStep(join(runs, "hostile"), 3, { tasks: 1, rollouts: 1, tokens: 30_000, reply: () => hostile });
  viewer = await startViewer({ path: runs, host: "127.0.0.1", port: 0, page: built, cache });
  page = await browser.newPage();
  page.on("console", (message) => {
    if (message.type() === "error") errors.push(message.text());
  });
  page.on("pageerror", (error) => errors.push(error.message));
  training = start("live", 60, slowly);
  await Promise.race([training, sleep(500)]);
});

afterAll(async () => {
  await training;
  await page?.close();
  await viewer?.close();
  await browser?.close();
});

const open = (path: string) => page.goto(new URL(path, viewer.url).href);
const text = (selector = "main") => page.locator(selector).first().innerText();
const shows = (wanted: string, selector = "main") =>
  expect.poll(() => text(selector), { timeout: 20_000 }).toContain(wanted);

describe("beside a run", () => {
  test("a step arrives without a reload", async () => {
    await open("/runs/live");
    await page.evaluate("window.notReloaded = true");
    const step = async () => Number(/(\d+) of 60/.exec(await text(".facts"))?.[1]);
    await expect.poll(step, { timeout: 30_000 }).toBeGreaterThan(0);
    const before = await step();
    await expect.poll(step, { timeout: 30_000 }).toBeGreaterThan(before);
    const last = async () => Number(/of (\d+)/.exec(await text(".slider"))?.[1]);
    await expect.poll(last, { timeout: 30_000 }).toBeGreaterThan(before);
    expect(await page.evaluate("'notReloaded' in window")).toBe(true);
    expect(await page.locator(".chart canvas").count()).toBeGreaterThan(3);
  });

  test("a script points the open page at a view", async () => {
    const answer = await fetch(new URL("/api/view", viewer.url), {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ url: "/runs/finished/config" }),
    });
    expect(await answer.json()).toEqual({ pages: 1 });
    await page.waitForURL("**/runs/finished/config");
    await shows("training.learning_rate");
    expect(await page.evaluate("'notReloaded' in window")).toBe(true);
  });
});

test("group, episode, token: with the keyboard alone", async () => {
  await open("/runs/finished/groups?step=3");
  await page.waitForSelector("[data-row]");
  await page.keyboard.press("j");
  await page.keyboard.press("Enter");
  await page.waitForURL("**/group?*");
  await shows("4 rollouts");
  await page.keyboard.press("j");
  await page.keyboard.press("Enter");
  await page.waitForURL("**/episodes/t3.*");
  await page.locator(".tokens, .message.assistant").first().waitFor();
  await page.keyboard.press("c");
  await page.waitForURL("**color=*");
  const first = page.url();
  await page.keyboard.press("]");
  await expect.poll(() => page.url()).not.toBe(first);
  await page.goto(`${page.url()}&tokens=ids`);
  await page.locator("[aria-label^='sampled tokens']").first().focus();
  await page.keyboard.press("ArrowRight");
  await shows("log-prob", ".numbers");
  await page.keyboard.press("ArrowRight");
  await shows("2 of", ".numbers");
  await page.keyboard.press("?");
  expect(await page.locator("dialog[open]").isVisible()).toBe(true);
  await page.keyboard.press("Escape");
  expect(await page.locator("dialog[open]").count()).toBe(0);
});

test("words are found in an episode of which a part is in the document, and an address leads to a token", async () => {
  await open("/runs/hostile/episodes/t3.0?tokens=ids");
  await page.locator("[data-token]").first().waitFor();
  await page.keyboard.press("/");
  await page.keyboard.type("⟨149⟩");
  await shows("1 of ", ".find");
  expect(await page.evaluate("CSS.highlights.get('found-current').size")).toBe(1);
  const before = await page.evaluate<number>("scrollY");
  await page.keyboard.press("Shift+Enter");
  await expect.poll(() => page.evaluate<number>("scrollY")).toBeGreaterThan(before + 10_000);
  await open("/runs/hostile/episodes/t3.0?tokens=ids&at=0.1.14000");
  await shows("14,001 of 15,000", ".numbers");
  const token = page.locator("[data-current]");
  await token.waitFor();
  expect(await token.getAttribute("data-token")).toBe("14000");
  await token.evaluate((element) => element.nextElementSibling?.scrollIntoView({ block: "center" }));
  await page.locator("[data-token='14001']").click();
  await page.waitForURL("**at=0.1.14001*");
});

test("30,000 tokens open fast, because only the visible ones are in the document", async () => {
  await open("/runs/hostile/episodes/t3.0?tokens=ids");
  await page.locator("[data-token]").first().waitFor();
  expect(await page.locator("[data-token]").count()).toBeLessThan(5000);
});

test("episodes are filtered, and a mistake is shown where it is", async () => {
  await open("/runs/finished/episodes");
  await page.waitForSelector("[data-row]");
  await page.keyboard.press("/");
  await page.keyboard.type("step=2 and kind=train");
  await page.waitForURL("**filter=*");
  await shows("16", ".head");
  await page.getByLabel("filter episodes").fill("rewrd<1");
  await shows("rewrd", ".filter .note");
  expect(await text(".filter mark")).toBe("rewrd");
});

test("two runs are compared", async () => {
  await open("/");
  await page.getByLabel("compare finished").check();
  await page.getByLabel("compare live").check();
  await page.getByText("Compare 2").click();
  await page.waitForURL("**/compare?*");
  await shows("rllm.trainer.total_batches");
  expect(await page.locator(".chart").count()).toBeGreaterThan(2);
});

test("steps are chosen with the slider, and the address keeps them", async () => {
  await open("/runs/finished?step=2");
  await shows("step 2", ".slider");
  await page.keyboard.press("]");
  await page.waitForURL("**step=3");
  await page.reload();
  await shows("step 3", ".slider");
});

test("a drag across a chart zooms all charts, a double click shows all steps, and neither chooses a step", async () => {
  await open("/runs/finished?step=2&smooth=0.5");
  const over = page.locator(".chart .u-over").first();
  const { x, y, width } = (await over.boundingBox())!;
  await page.mouse.move(x + width * 0.2, y + 40);
  await page.mouse.down();
  await page.mouse.move(x + width * 0.8, y + 60, { steps: 4 });
  await page.mouse.up();
  await page.waitForURL("**zoom=2-4*");
  expect(await page.getByLabel("last step shown").inputValue()).toBe("4");
  await over.dblclick();
  await expect.poll(() => page.url()).not.toContain("zoom");
  expect(page.url()).toMatch(/step=2(?!\d)/);
  await page.getByLabel("last step shown").fill("3");
  await page.keyboard.press("Tab");
  await page.waitForURL("**zoom=1-3*");
});

test("a bar of the histogram filters, and ] stays in the list", async () => {
  await open("/runs/hostile/episodes");
  await page.getByLabel("reward 0.75: ").click();
  await page.waitForURL("**filter=reward*");
  const total = Number(await text(".head .muted"));
  expect(total).toBeGreaterThan(1);
  await page.locator("[data-row]").first().click();
  await shows(`1 of ${total} episodes`, ".head");
  for (let place = 2; place <= total; place++) {
    await page.keyboard.press("]");
    await shows(`${place} of ${total} episodes`, ".head");
    expect(await text(".facts")).toContain("0.75");
  }
  await page.keyboard.press("]");
  await page.keyboard.press("u");
  await page.waitForURL("**/episodes?*filter=reward%3D0.75*");
});

test("text from a model stays text", async () => {
  for (const path of ["episodes", "episodes/t1.0", "group?step=1&task=arith%2F0", "failures", "groups?step=1"]) {
    await open(`/runs/hostile/${path}`);
    await page.waitForSelector("main h1");
    await sleep(200);
    expect(await page.locator("main script, main img").count()).toBe(0);
  }
  await open("/runs/hostile/episodes/t1.0");
  await shows("<script>window.attacked = true</script>");
  expect(await text()).toMatch(/␛\[31m ‹U\+202E› 😀 שלום/);
  expect(await page.evaluate("'attacked' in window")).toBe(false);
});

test.each([360, 390, 1440])("no view is wider than a window of %i pixels", async (width) => {
  await page.setViewportSize({ width, height: 800 });
  for (const path of [
    "/",
    "/compare?runs=finished,hostile",
    ...["", "/anatomy", "/groups", "/episodes", "/episodes/t1.0", "/failures", "/config"].map(
      (view) => `/runs/hostile${view}`,
    ),
  ]) {
    await open(path);
    await page.waitForSelector("main h1, main [role=alert]");
    await sleep(150);
    const wide = await page.evaluate<number>("document.documentElement.scrollWidth");
    expect(wide, path).toBeLessThanOrEqual(width);
    if (path !== "/") continue;
    const reward = await page.locator("tr", { hasText: "finished" }).locator(".reward").boundingBox();
    expect(reward!.x + reward!.width, "the list shows more than names").toBeLessThanOrEqual(width);
  }
  await page.setViewportSize({ width: 1280, height: 800 });
});

test("a report opens from a file without a network", async () => {
  const output = join(root, "report.html");
  expect(await exportReport({ run: join(runs, "hostile"), output, limit: 5, page: built, cache })).toMatchObject({
    episodes: 5,
  });
  const requests: string[] = [];
  const report = await browser.newPage();
  report.on("request", (request) => requests.push(request.url()));
  report.on("pageerror", (error) => errors.push(error.message));
  await report.goto(pathToFileURL(output).href);
  await report.waitForURL("**#/runs/hostile");
  await report.getByRole("link", { name: "Episodes", exact: true }).click();
  await report.locator("[data-row]").first().click();
  await report.getByText("<script>window.attacked = true</script>").first().waitFor();
  expect(await report.evaluate("'attacked' in window")).toBe(false);
  expect(requests).toEqual([pathToFileURL(output).href]);
  await report.close();
});

test("nothing failed in the page", () => expect(errors.filter((text) => !/status of 40[04]/.test(text))).toEqual([]));

test("the page says that the viewer is gone, and continues when it is back", async () => {
  await open("/runs/finished");
  await shows("5 of 5", ".facts");
  const port = Number(new URL(viewer.url).port);
  await viewer.close();
  await shows("reconnecting", ".tools");
  expect(await text(".facts")).toContain("5 of 5");
  viewer = await startViewer({ path: runs, host: "127.0.0.1", port, page: built, cache });
  await expect.poll(() => text(".tools"), { timeout: 30_000 }).not.toContain("reconnecting");
  await page.getByRole("link", { name: "Groups", exact: true }).first().click();
  await shows("4 groups");
});
