/** A server that behaves like the hub: revision, tree and resolve URLs, pages, ranges, tokens, and faults on demand. */
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import { join } from "node:path";
import { listen } from "../base/http.ts";

const jsonl = (...rows: unknown[]) => rows.map((row) => `${JSON.stringify(row)}\n`).join("");
export const parquet = readFileSync(join(import.meta.dirname, "fixtures", "groups-zstd.parquet"));
const big = jsonl(...Array.from({ length: 4000 }, (_, index) => ({ question: `q${index}`, pad: "x".repeat(40) })));

export const card = `---
configs:
- config_name: main
  data_files:
  - split: train
    path: main/train-*
  - split: test
    path: main/test-*
- config_name: socratic
  data_files: socratic/*.jsonl
---
# A dataset`;

type Files = Record<string, string | Buffer>;
interface Repository {
  revisions: Record<string, Files>;
  gated?: boolean;
}

const converted: Files = { "default/train/0000.parquet": parquet, "default/test/0000.parquet": parquet };
export const repositories: Record<string, Repository> = {
  "org/card": {
    revisions: {
      main: {
        "README.md": card,
        "main/train-00000-of-00002.parquet": parquet,
        "main/train-00001-of-00002.parquet": parquet,
        "main/test-00000-of-00001.parquet": parquet,
        "socratic/train.jsonl": jsonl({ question: "why?" }),
      },
    },
  },
  "org/plain": {
    revisions: {
      main: {
        "train.jsonl": jsonl({ n: 1 }, { n: 2 }),
        "data/valid.jsonl": jsonl({ n: 3 }),
        "notes.txt": "x",
        "empty.txt": "",
      },
      v2: { "train.jsonl": jsonl({ n: 20 }) },
    },
  },
  "org/big": { revisions: { main: { "train.jsonl": big } } },
  "org/csv": { revisions: { main: { "train.csv": "a,b\n" }, "refs/convert/parquet": converted } },
  "org/images": { revisions: { main: { "a.png": "x" } } },
  "org/gated": { gated: true, revisions: { main: { "train.jsonl": jsonl({ n: 1 }) } } },
};

export const commitOf = (files: Files) =>
  createHash("sha1")
    .update(JSON.stringify(Object.entries(files)))
    .digest("hex");
export const gitOid = (bytes: Buffer) =>
  createHash("sha1").update(`blob ${bytes.length}\0`).update(bytes).digest("hex");
export const sha256 = (bytes: Buffer) => createHash("sha256").update(bytes).digest("hex");

/** Faults that the server simulates, and the requests that it received. */
export const fault = { cutAfter: 0, cuts: 0, corrupt: 0, status: 0, ignoreRange: false };
export const asked: { path: string; range: string | undefined; token: string | undefined }[] = [];
/** Starts the server; returns its URL and a function that closes it. */
export async function startHubServer(): Promise<{ url: string; close: () => void }> {
  const server = createServer(answer);
  const url = await listen(server);
  const close = () => {
    server.closeAllConnections();
    server.close();
  };
  return { url, close };
}

function answer(request: IncomingMessage, response: ServerResponse): unknown {
  const { pathname } = addressOf(request);
  const token = request.headers.authorization?.replace("Bearer ", "");
  asked.push({ path: pathname, range: request.headers.range, token });
  const json = (status: number, body: unknown, headers: Record<string, string> = {}) => {
    response.writeHead(status, { "content-type": "application/json", ...headers });
    return response.end(JSON.stringify(body));
  };
  if (fault.status > 0) return json(fault.status, { error: "out of order" });
  const match = /^(?:\/api)?\/datasets\/([^/]+\/[^/]+)\/(revision|tree|resolve)\/([^/]+)(?:\/(.*))?$/.exec(pathname);
  const repository = repositories[match?.[1] ?? ""];
  if (!match || !repository) return json(token ? 404 : 401, { error: "Repository not found" });
  if (repository.gated && token !== "hf_good") return json(token ? 403 : 401, { error: "gated" });
  const revision = decodeURIComponent(match[3]!);
  const files =
    repository.revisions[revision] ?? Object.values(repository.revisions).find((each) => commitOf(each) === revision);
  if (!files) return json(404, { error: "Invalid rev id" });
  if (match[2] === "revision")
    return json(200, { _id: "1", id: match[1], sha: commitOf(files), lastModified: "2024-01-01" });
  if (match[2] === "tree") return tree(files, request, json);
  const path = match[4]!;
  if (!(path in files)) return json(404, { error: "Entry not found" }, { "X-Error-Code": "EntryNotFound" });
  file(Buffer.from(files[path]!), request, response);
}

/** Returns three entries per page, with a Link header to the next page. */
function tree(
  files: Files,
  request: IncomingMessage,
  json: (status: number, body: unknown, headers?: Record<string, string>) => void,
): void {
  const url = addressOf(request);
  const from = Number(url.searchParams.get("cursor") ?? 0);
  const entries = Object.entries(files).map(([path, content]) => {
    const bytes = Buffer.from(content);
    const large = path.endsWith(".parquet")
      ? { lfs: { oid: sha256(bytes), size: bytes.length, pointerSize: 130 } }
      : {};
    return { type: "file", path, size: bytes.length, oid: gitOid(bytes), ...large };
  });
  const all = [{ type: "directory", path: "main", size: 0, oid: "0".repeat(40) }, ...entries];
  url.searchParams.set("cursor", String(from + 3));
  json(200, all.slice(from, from + 3), from + 3 < all.length ? { Link: `<${url.href}>; rel="next"` } : {});
}

function file(content: Buffer, request: IncomingMessage, response: ServerResponse): void {
  const bytes = fault.corrupt-- > 0 ? Buffer.from(content).fill(0x20) : content;
  const range = /^bytes=(\d+)-(\d*)$/.exec(request.headers.range ?? "");
  const probe = request.headers.range === "bytes=0-0";
  const from = range && (probe || !fault.ignoreRange) ? Number(range[1]) : 0;
  const to = range?.[2] ? Math.min(Number(range[2]) + 1, bytes.length) : bytes.length;
  const headers = {
    etag: '"x"',
    "content-length": to - from,
    "content-range": `bytes ${from}-${to - 1}/${bytes.length}`,
  };
  response.writeHead(range ? 206 : 200, headers);
  if (probe || fault.cuts === 0) return void response.end(bytes.subarray(from, to));
  fault.cuts--;
  response.write(bytes.subarray(from, from + fault.cutAfter), () => setTimeout(() => response.destroy(), 20));
}

const addressOf = (request: IncomingMessage) => new URL(request.url ?? "/", `http://${request.headers.host}`);
