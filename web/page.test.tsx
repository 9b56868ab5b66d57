// @vitest-environment happy-dom
import { beforeAll, describe, expect, test, vi } from "vitest";
import { report } from "./report.fixture.ts";

/** The page as a report that was opened from a file. Charts draw on a canvas that ignores them. */
beforeAll(async () => {
  const canvas = new Proxy({}, { get: () => () => ({ width: 0 }), set: () => true });
  HTMLCanvasElement.prototype.getContext = (() => canvas) as never;
  vi.stubGlobal("Path2D", function Path2D() {
    return canvas;
  });
  vi.stubGlobal("scrollTo", () => {});
  // There is no layout: each block of a virtual list is this high.
  Object.defineProperty(HTMLElement.prototype, "offsetHeight", { get: () => 100 });
  const data = document.createElement("script");
  data.type = "application/json";
  data.id = "hone-data";
  data.textContent = JSON.stringify(report);
  const page = document.createElement("div");
  page.id = "page";
  document.body.append(data, page);
  await import("./main.tsx");
});

const page = () => document.getElementById("page")!;
const main = () => document.querySelector("main")!;

async function open(address: string, text: string) {
  location.hash = `#${address}`;
  dispatchEvent(new Event("hashchange"));
  await vi.waitFor(() => expect(main().textContent).toContain(text));
}

async function press(key: string) {
  document.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
  await new Promise((resolve) => setTimeout(resolve, 20));
}

const run = "/runs/toy%20run";
const task = "%3Cb%3Etoy%3C%2Fb%3E%2F1";

describe.each([
  ["/", "toy run", "other"],
  [`/compare?runs=toy%20run,toy%20run`, "Compare 2 runs", "The configurations are the same."],
  [run, "step 3", "the entropy <collapsed>"],
  [`${run}/anatomy`, "Slowest", "mostly model"],
  [`${run}/groups?step=1`, "zero signal", "all rewards are <equal>"],
  [`${run}/group?step=1&task=${task}`, "the <dog>", "all rewards are <equal>"],
  [`${run}/group?step=1&task=${task}&base=t1.0`, "difference from 0", "<dog>"],
  [`${run}/task?task=${task}`, "across steps", "before: step 1, rollout 0"],
  [`${run}/task?task=${task}&diff=tokens`, "across steps", "attacked"],
  [`${run}/episodes`, "<b>toy</b>/1:0", "workflow failed"],
  [`${run}/episodes?q=cat`, "1 episode", "<cat>"],
  [`${run}/episodes/t1.0`, "the answer is <b>wrong</b>", "<script>", "<helpful> 0.25"],
  [
    `${run}/episodes/t1.0`,
    "3 commands, 1 failed",
    "ls <app>",
    "2 files changed",
    "/app/<b>main</b>.py",
    "found: <nothing>",
  ],
  [`${run}/episodes/t1.0?tokens=ids`, "100", "<img src=x>"],
  [`${run}/episodes/t2.1`, "attempt 1 failed", "no <answer>"],
  [`${run}/failures`, "How episodes ended", "agent, step 2"],
  [`${run}/config`, "training.learning_rate", "command line"],
  [`${run}/nonsense`, "There is no view at this address.", "Start at the list of runs."],
])("the view %s", (address, ...texts) => {
  test("shows its data as text", async () => {
    await open(address, texts[0]!);
    for (const text of texts) expect(main().textContent).toContain(text);
    expect(page().querySelector("script, img, b b, main iframe")).toBeNull();
    expect("attacked" in window).toBe(false);
    expect(document.querySelectorAll("h1, [role=alert]").length).toBeGreaterThan(0);
  });
});

describe("an episode", () => {
  test("does not put a line of a megabyte into the document, nor reorder the page's own text", async () => {
    await open(`${run}/episodes/t1.0`, "turn");
    expect(main().textContent!.length).toBeLessThan(50_000);
    expect(main().textContent).not.toContain("\u202e");
    expect(main().textContent).toContain("‹U+202E›");
  });

  test("shows the pictures of a message, and says which ones the report does not contain", async () => {
    await open(`${run}/episodes/t1.1`, "[image 1x1 png]");
    const [picture, ...others] = main().querySelectorAll("img");
    expect([picture?.getAttribute("alt"), others.length]).toEqual(["image 1, 1 x 1 pixels", 0]);
    expect(picture?.getAttribute("src")).toMatch(/^data:image\/png;base64,/);
    expect(main().textContent).toContain("image 2, 9000 x 900 pixels: not in this report");
  });

  test("shows the numbers of the token under the pointer, and moves with the arrow keys", async () => {
    await open(`${run}/episodes/t2.0?color=logprob`, "turn");
    // The first message is a megabyte, so the reply is far below: the exact prompt is short.
    await open(`${run}/episodes/t2.0?color=logprob&tokens=exact`, "attacked");
    const block = document.querySelector<HTMLElement>("[aria-label^='sampled tokens']")!;
    block.querySelector("[data-token='2']")!.dispatchEvent(new Event("pointerover", { bubbles: true }));
    const numbers = () => document.querySelector(".numbers")!.textContent!;
    await vi.waitFor(() => expect(numbers()).toContain("3 of 10"));
    expect(numbers()).toContain("id102");
    expect(numbers()).toContain("log-prob−1");
    block.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight", bubbles: true }));
    await vi.waitFor(() => expect(numbers()).toContain("4 of 10"));
    expect(block.querySelector("[data-current]")?.getAttribute("data-token")).toBe("3");
  });

  test("leaves a token that is not trained on without color, in each coloring", async () => {
    for (const color of ["advantage", "logprob", "entropy", "mismatch", "version", "mask"]) {
      await open(`${run}/episodes/t2.0?color=${color}&tokens=exact`, "attacked");
      const masked = document.querySelector<HTMLElement>("[aria-label^='sampled tokens'] [data-token='9']")!;
      expect(masked.className).toContain("masked");
      expect(masked.style.getPropertyValue("--strength")).toBe("");
      expect(document.querySelector(".coloring [aria-pressed=true]")).not.toBeNull();
    }
  });

  test("opens its neighbors with [ and ], changes the coloring with c, and goes up with u", async () => {
    await open(`${run}/episodes`, "<b>toy</b>/1:0");
    await open(`${run}/episodes/t1.1`, "toy</b>/1:1");
    await press("]");
    expect(location.hash).toContain("t2.0");
    await press("[");
    await press("c");
    expect(location.hash).toMatch(/t1\.1.*color=logprob/);
    await press("u");
    expect(location.hash).toBe(`#${run}/episodes?step=1`);
  });
});

test("tabs keep the step, and each what it showed", async () => {
  const tab = (name: string) => [...document.querySelectorAll(".tabs a")].find((link) => link.textContent === name)!;
  await open(`${run}?curves=actor%2Fentropy&step=1`, "All 2 metrics");
  for (const name of ["Anatomy", "Groups", "Configuration", "Failures"]) {
    expect(tab(name).getAttribute("href")).toMatch(/\?step=1$/);
  }
  await open(`${run}/episodes/t2.0`, "attacked");
  expect(tab("Groups").getAttribute("href")).toBe(`#${run}/groups?step=2`);
  expect(tab("Overview").getAttribute("href")).toBe(`#${run}?curves=actor%2Fentropy&step=2`);
  await press("u");
  await press("u");
  expect(location.hash).toBe(`#${run}?curves=actor%2Fentropy&step=2`);
  await open(`${run}/groups?step=7`, "This report does not contain this part.");
  expect(document.querySelector(".slider output")?.textContent).toContain("step 2");
});

test("a phase that ends after its step stays in its card", async () => {
  await open(`${run}/anatomy?step=2`, "logging");
  const percentOf = (style: CSSStyleDeclaration, name: string) =>
    Number(/([\d.]+)%/.exec(style.getPropertyValue(name))?.[1]);
  const places = [...document.querySelectorAll<HTMLElement>(".phase")].map(({ style }) => [
    percentOf(style, "inset-inline-start"),
    percentOf(style, "inline-size"),
  ]);
  expect(places).toEqual([
    [0, 90],
    [95, expect.closeTo(5)],
  ]);
});

test.each([
  ["/", "Runs - Hone"],
  ["/compare?runs=toy%20run,other", "Compare toy run, other - Hone"],
  [run, "toy run: overview - Hone"],
  [`${run}/groups?step=1`, "toy run: groups, step 1 - Hone"],
  [`${run}/group?step=1&task=${task}`, "toy run: <b>toy</b>/1, step 1 - Hone"],
  [`${run}/episodes/t1.0`, "toy run: episode t1.0 - Hone"],
])("the title of %s is %s", async (address, title) => {
  await open(address, "");
  await vi.waitFor(() => expect(document.title).toBe(title));
});

test("charts are smoothed, logarithmic and zoomed as the address says", async () => {
  await open(`${run}?smooth=0.5&log=Entropy&x=tokens&zoom=1-2`, "Entropy");
  const control = (label: string) => document.querySelector<HTMLInputElement>(`[aria-label='${label}']`)!;
  expect(control("logarithmic axis of Entropy").getAttribute("aria-pressed")).toBe("true");
  expect(control("logarithmic axis of Reward").getAttribute("aria-pressed")).toBe("false");
  expect([control("first step shown").value, control("last step shown").value]).toEqual(["1", "2"]);
  expect(document.querySelector(".chart-controls output")?.textContent).toBe("0.5");
  // The run did not record how many tokens it sampled.
  const pressed = () =>
    [...document.querySelectorAll(".chart-controls [aria-pressed=true]")].map((one) => one.textContent);
  expect(pressed()).toEqual(["step"]);
  control("logarithmic axis of Reward").click();
  await vi.waitFor(() => expect(location.hash).toContain("log=Entropy%2CReward"));
  const reset = [...document.querySelectorAll("button")].find(({ textContent }) => textContent === "Reset zoom");
  reset?.click();
  await vi.waitFor(() => expect(location.hash).not.toContain("zoom"));
});

test("j and k move between rows, / goes to the search field, ? shows the keys", async () => {
  await open(`${run}/groups?step=1`, "zero signal");
  await press("j");
  await press("j");
  const rows = [...document.querySelectorAll("[data-row]")];
  expect(document.activeElement).toBe(rows[1]);
  await press("k");
  expect(document.activeElement).toBe(rows[0]);
  await open(`${run}/config`, "training");
  await press("/");
  expect(document.activeElement?.getAttribute("type")).toBe("search");
  (document.activeElement as HTMLElement).blur();
  await press("?");
  expect(document.querySelector("dialog")?.open).toBe(true);
  document.querySelector("dialog")?.close();
});

test("a report says what it does not contain", async () => {
  await open(`${run}/episodes?filter=reward%3C1`, "This report does not contain this part.");
  expect(document.querySelector("[role=alert]")).not.toBeNull();
});
