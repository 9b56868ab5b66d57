#!/usr/bin/env node
/**
 * Takes a picture of every view of a viewer's page, in light and dark, 1440 and 390 pixels wide:
 *   npm run screenshots -- http://127.0.0.1:7700 pictures
 * The viewer must show a folder of two or more runs; the one with the most episodes is looked at.
 */
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { chromium } from "playwright-core";
import { findBrowser } from "./find-browser.mjs";

const [server = "http://127.0.0.1:7700", folder = "screenshots"] = process.argv.slice(2);

/**
 * @param {string} path
 * @returns {Promise<any>}
 */
const get = async (path) => (await fetch(`${server}/api/${path}`)).json();

/**
 * The last step with a group whose rewards differ, and the task of this group.
 * @param {string} run
 * @param {{step: number, train: number}[]} steps
 */
async function signal(run, steps) {
  for (const { step } of steps.filter(({ train }) => train > 0).reverse()) {
    const { groups } = await get(`runs/${run}/groups?step=${step}`);
    const found = groups.find((/** @type {{zeroSignal: string | null}} */ { zeroSignal }) => zeroSignal === null);
    if (found) return { step, task: encodeURIComponent(found.task) };
  }
  throw new Error(`run ${run} has no group with a signal`);
}

/** @returns {Promise<Record<string, string>>} the address of each view */
async function views() {
  const { runs } = await get("runs");
  const most = Math.max(...runs.map((/** @type {{episodes: number}} */ { episodes }) => episodes));
  const run = encodeURIComponent(runs.find((/** @type {{episodes: number}} */ { episodes }) => episodes === most).id);
  const { steps } = await get(`runs/${run}`);
  const { step, task } = await signal(run, steps);
  const { members } = await get(`runs/${run}/group?step=${step}&task=${task}`);
  const validation = await get(`runs/${run}/episodes?filter=${encodeURIComponent("kind=validation")}&limit=1`);
  const repeated = validation.rows?.[0];
  const base = `/runs/${run}`;
  return {
    runs: "/",
    compare: `/compare?runs=${runs.map((/** @type {{id: string}} */ { id }) => encodeURIComponent(id)).join(",")}`,
    run: base,
    anatomy: `${base}/anatomy?step=${step}`,
    groups: `${base}/groups?step=${step}`,
    group: `${base}/group?step=${step}&task=${task}`,
    episodes: `${base}/episodes`,
    episode: `${base}/episodes/${members[0].key}?color=logprob`,
    tokens: `${base}/episodes/${members[0].key}?color=advantage&tokens=ids`,
    task: repeated
      ? `${base}/task?task=${encodeURIComponent(repeated.task)}&kind=validation`
      : `${base}/task?task=${task}`,
    failures: `${base}/failures`,
    configuration: `${base}/config`,
  };
}

mkdirSync(folder, { recursive: true });
const browser = await chromium.launch(await findBrowser());
try {
  const addresses = await views();
  for (const colorScheme of /** @type {const} */ (["light", "dark"])) {
    for (const width of [1440, 390]) {
      const page = await browser.newPage({ colorScheme, viewport: { width, height: width > 800 ? 900 : 844 } });
      for (const [name, address] of Object.entries(addresses)) {
        await page.goto(server + address);
        await page.waitForSelector("main h1");
        await page.waitForTimeout(400); // Charts draw after their data has arrived.
        await page.screenshot({ path: join(folder, `${name}-${colorScheme}-${width}.png`) });
      }
      await page.close();
    }
  }
} finally {
  await browser.close();
}
console.log(`The pictures are in ${folder}.`);
