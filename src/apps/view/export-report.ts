/** A report: the page with a run's curves and chosen episodes inside, in one file that opens without a server or a network. */
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { HoneError, RunError, readable, UserError } from "../../base/errors.ts";
import { writeWhole } from "../../base/files.ts";
import { toJson } from "../../tracking/json-lines.ts";
import { type OpenedRun, openViewer } from "./live.ts";
import type { Episode } from "./queries/episode.ts";
import { mediaFile } from "./queries/parameters.ts";
import { runSummary } from "./queries/run.ts";
import { runAnswer, type runRoutes, type TextParameters } from "./routes.ts";
import { builtPage } from "./server.ts";

export interface ReportOptions {
  /** A run folder. */
  run: string;
  /** The file to write. */
  output: string;
  /** The report contains the newest `limit` episodes that match this filter. */
  filter?: string | undefined;
  limit: number;
  /** The page's files. Default: those of the package. */
  page?: string;
  /** The folder of the indexes. Default: in the user's cache. */
  cache?: string;
}

export interface ExportedReport {
  /** The number of episodes in the file, and of matching episodes. */
  episodes: number;
  total: number;
  /** The number of images in the file, and of images that are too large or missing. */
  images: number;
  imagesLeftOut: number;
  /** What of the run cannot be read, as a sentence. */
  problem: string | undefined;
}

/** The most bytes of an image, and of all images, that a report contains. */
const maxImageBytes = { each: 512 * 1024, together: 16 * 1024 * 1024 };

/**
 * @throws UserError if the folder is not a run, or the filter cannot be read
 */
export async function exportReport(options: ReportOptions): Promise<ExportedReport> {
  const { run, output, filter, limit, page = builtPage, cache } = options;
  const viewer = openViewer(run, cache);
  try {
    if (!viewer.single)
      throw new UserError(`${run} is a folder of runs`, { hint: "a report contains one run: name its folder" });
    const opened = viewer.open(viewer.names()[0]!);
    if (!(await opened.index.refresh(Number.POSITIVE_INFINITY))) throw new RunError(`${run} cannot be read completely`);
    const { answers, hashes, episodes, total } = collect(opened, { filter, limit });
    const images = addImages(opened, hashes, answers);
    writeWhole(output, [reportHtml(page, answers)]);
    return { episodes, total, ...images, problem: runSummary(opened.index).problem };
  } finally {
    viewer.close();
  }
}

type RunRoute = keyof typeof runRoutes;

/** The API requests that the page makes for these episodes. */
function collect(run: OpenedRun, { filter = "", limit }: { filter?: string | undefined; limit: number }) {
  const answers: Record<string, unknown> = {};
  const hashes = new Set<string>();
  const ask = <R extends RunRoute>(route: R, given: TextParameters = {}) => runAnswer(route, run, given);
  const put = (route: RunRoute | "/api/runs", given: TextParameters, answer: unknown) => {
    answers[addressOf(route, { run: run.name, ...given })] = answer;
  };
  const add = (route: RunRoute, given: TextParameters = {}) => put(route, given, ask(route, given));
  /** A run of an earlier version has no journal, and a journal may be damaged. */
  const addIfKnown = (route: RunRoute, given: TextParameters) => orNone(() => add(route, given));

  const { total, rows } = ask("/api/runs/:run/episodes", { filter, limit: String(limit) });
  put("/api/runs", {}, { folder: run.name, single: true, runs: [runSummary(run.index)] });
  const detail = ask("/api/runs/:run");
  const stored = (step: number, kind: string) => rows.filter((row) => row.step === step && row.kind === kind).length;
  const steps = detail.steps.map((step) => ({
    ...step,
    train: stored(step.step, "train"),
    validation: stored(step.step, "validation"),
  }));
  put("/api/runs/:run", {}, { ...detail, path: run.name, steps });
  add("/api/runs/:run/curves", { kind: "train" });
  add("/api/runs/:run/curves", { kind: "validation" });
  addIfKnown("/api/runs/:run/config", {});
  add("/api/runs/:run/failures");
  const listed = { sort: "newest", order: "desc", limit: "100" };
  put("/api/runs/:run/episodes", listed, { total: rows.length, offset: 0, rows });
  add("/api/runs/:run/scales");
  for (const [index, { key, step, kind, task }] of rows.entries()) {
    const answer = ask("/api/runs/:run/episodes/:episode", { episode: key });
    for (const hash of imageHashes(answer)) hashes.add(hash);
    const neighbors = { previous: rows[index + 1]?.key ?? null, next: rows[index - 1]?.key ?? null };
    put("/api/runs/:run/episodes/:episode", { episode: key }, { ...answer, ...neighbors });
    add("/api/runs/:run/groups", { step: String(step), kind });
    addIfKnown("/api/runs/:run/anatomy", { step: String(step), kind });
    add("/api/runs/:run/group", { step: String(step), task, kind });
    add("/api/runs/:run/task", { task, kind });
  }
  return { answers, hashes, episodes: rows.length, total };
}

/** Adds the images of the episodes as data URLs. */
function addImages({ name, index }: OpenedRun, hashes: ReadonlySet<string>, answers: Record<string, unknown>) {
  let [images, together] = [0, 0];
  for (const hash of hashes) {
    const file = orNone(() => mediaFile(index.folder, hash));
    const { length = Number.POSITIVE_INFINITY } = file?.bytes ?? {};
    if (file === undefined || length > maxImageBytes.each || together + length > maxImageBytes.together) continue;
    const address = addressOf("/api/runs/:run/media/:hash", { run: name, hash });
    answers[address] = `data:${file.type};base64,${Buffer.from(file.bytes).toString("base64")}`;
    images++;
    together += length;
  }
  return { images, imagesLeftOut: hashes.size - images };
}

/** Undefined for what the run does not have, or what cannot be read. */
function orNone<Result>(read: () => Result): Result | undefined {
  try {
    return read();
  } catch (error) {
    if (readable(error) instanceof HoneError) return undefined;
    throw error;
  }
}

function* imageHashes({ detail }: Episode): Generator<string> {
  for (const { turnList } of detail) {
    for (const { messages } of turnList) for (const { images = [] } of messages) yield* images.map(({ hash }) => hash);
  }
}

/** The address of an API request, as the page writes it: path parameters filled in, query parameters sorted. */
function addressOf(route: string, given: TextParameters): string {
  const rest = { ...given };
  const path = route.replace(/:(\w+)/g, (_, name: string) => {
    const value = rest[name] ?? "";
    delete rest[name];
    return encodeURIComponent(value);
  });
  delete rest.run;
  const query = new URLSearchParams(rest);
  query.sort();
  return query.size === 0 ? path : `${path}?${query}`;
}

/** Content security policy: the file can run its own script, but load nothing. */
const policy = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:";

function reportHtml(page: string, answers: Record<string, unknown>): string {
  if (!existsSync(join(page, "index.html"))) {
    throw new RunError("the page is not built", { hint: "npm run build builds it in a checkout" });
  }
  const [html, script, style] = ["index.html", "page.js", "page.css"].map((file) =>
    readFileSync(join(page, file), "utf8"),
  );
  // A model's text must not be able to end the script element that contains it.
  const data = toJson(answers).replaceAll("<", "\\u003c");
  const parts = [
    `<meta http-equiv="Content-Security-Policy" content="${policy}">`,
    `<style>${style!.replaceAll("</style", "<\\/style")}</style>`,
    `<script type="application/json" id="hone-data">${data}</script>`,
    `<script type="module">${script!.replaceAll("</script", "<\\/script")}</script>`,
  ];
  const bare = html!.replace(/\s*<script type="module"[^>]*><\/script>|\s*<link rel="stylesheet"[^>]*>/g, "");
  return bare.replace("</head>", () => `${parts.join("\n")}\n</head>`);
}
