/** Images of messages: in the API, as files, in the terminal and in reports. */
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import type { StoredImage } from "../../images/images.ts";
import { folderStore, mediaFolder } from "../../images/images.ts";
import { jpeg, png } from "../../images/pictures.fixture.ts";
import { temporaryFolder } from "../../temporary-folder.fixture.ts";
import { readEpisode } from "../../tracking/episodes.ts";
import { exportReport } from "./export-report.ts";
import { generateRun } from "./generate-run.fixture.ts";
import { createLive, openViewer, type Viewer } from "./live.ts";
import type { Episode } from "./queries/episode.ts";
import { createApp } from "./server.ts";
import { rowText, transcript } from "./terminal.ts";

const root = temporaryFolder("viewer-media");
const run = join(root, "runs", "toy");
const media = join(run, mediaFolder);
let viewer: Viewer;
let images: StoredImage[];

const open = (token: string | null) => createApp({ viewer, live: createLive(viewer), token, page: join(root, "page") });

beforeAll(() => {
  const store = folderStore(media);
  const large = Buffer.concat([png(5, 5).subarray(0, -12), noise(600_000), png(5, 5).subarray(-12)]);
  images = [store.add(png(20, 28)), store.add(jpeg(64, 48)), store.add(large)];
  generateRun(run, { steps: 1, tasks: 1, rollouts: 2, images });
  viewer = openViewer(join(root, "runs"), join(root, "cache"));
});
afterAll(() => viewer.close());

/** A chunk that decoders skip. */
function noise(length: number): Buffer {
  const chunk = Buffer.alloc(length + 12);
  chunk.writeUInt32BE(length);
  chunk.write("noIs", 4, "latin1");
  return chunk;
}

const address = (hash: string) => `/api/runs/toy/media/${hash}`;

test("an episode names its images, and their files are served as images", async () => {
  const app = open(null);
  const response = await app.request("/api/runs/toy/episodes/t1.0");
  const { detail } = (await response.json()) as Episode;
  const [message] = detail[0]!.turnList[0]!.messages;
  expect(message).toEqual({
    role: "user",
    content: "[image 20x28 png][image 64x48 jpeg][image 5x5 png]question 0",
    images: images.map(({ hash, width, height }) => ({ hash, width, height })),
  });
  for (const { hash, type, bytes } of images) {
    const file = await app.request(address(hash));
    expect(Object.fromEntries(file.headers)).toMatchObject({
      "content-type": type,
      "x-content-type-options": "nosniff",
      "content-security-policy": expect.stringContaining("default-src 'none'"),
    });
    expect((await file.arrayBuffer()).byteLength).toBe(bytes);
  }
});

test("nothing else is served", async () => {
  const app = open(null);
  const [page, text] = ["1".repeat(64), "2".repeat(64)];
  writeFileSync(join(media, `${page}.png`), "<script>alert(1)</script>");
  writeFileSync(join(media, `${text}.txt`), "text");
  const answer = async (hash: string) => {
    const response = await app.request(address(hash));
    return [response.status, ((await response.json()) as { error: string }).error];
  };
  expect(await answer(page)).toEqual([400, "the image is in an unknown format, not PNG or JPEG"]);
  expect(await answer(text)).toEqual([404, `the run has no image ${text}`]);
  expect(await answer("0".repeat(64))).toEqual([404, `the run has no image ${"0".repeat(64)}`]);
  for (const hash of [
    "config.yaml",
    "..%2Fconfig.yaml",
    "..%2F..%2Ftoy%2Fconfig.yaml",
    images[0]!.hash.toUpperCase(),
  ]) {
    expect(await answer(hash)).toEqual([400, `${decodeURIComponent(hash)} is not the hash of an image`]);
  }
  expect((await open("secret").request(address(images[0]!.hash))).status).toBe(401);
});

test("the terminal names them", () => {
  const [file] = readdirSync(join(run, "episodes"));
  const [line] = readFileSync(join(run, "episodes", file!), "utf8").split("\n");
  const rows = transcript(readEpisode(line!), { coloring: "mask", width: 80, pieces: undefined });
  expect(rows.map((row) => rowText(row, false))).toContain(
    "[image 20x28 png][image 64x48 jpeg][image 5x5 png]question 0",
  );
});

test("a report contains small images once, and counts the others", async () => {
  const page = join(root, "built");
  mkdirSync(page);
  for (const name of ["index.html", "page.js", "page.css"]) writeFileSync(join(page, name), "<head></head>");
  const output = join(root, "report.html");
  const cache = join(root, "cache-2");
  expect(await exportReport({ run, output, limit: 5, page, cache })).toEqual({
    ...{ episodes: 2, total: 2 },
    ...{ images: 2, imagesLeftOut: 1 },
  });
  const html = readFileSync(output, "utf8");
  expect(html.split(png(20, 28).toString("base64"))).toHaveLength(2);
  expect(html).toContain(`"${address(images[1]!.hash)}":"data:image/jpeg;base64,`);
  expect(html).not.toContain(address(images[2]!.hash));
});
