// Slow: uploads whole checkpoints.

import { execFile } from "node:child_process";
import { createHash } from "node:crypto";
import { mkdirSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, describe, expect, test } from "vitest";
import { listen } from "../../base/http.ts";
import { parseLines } from "../../json-lines.fixture.ts";
import { temporaryFolder } from "../../temporary-folder.fixture.ts";

const folder = temporaryFolder("push");
mkdirSync(join(folder, "model"));
writeFileSync(join(folder, "model", "README.md"), "# card");
writeFileSync(join(folder, "model", "config.json"), "{}");
const weights = Buffer.alloc(5000, 7);
writeFileSync(join(folder, "model", "model.safetensors"), weights);

/** The part of the hub's API that an upload uses: repositories, LFS, commits. */
const seen: { created: object[]; lfs: Record<string, Buffer>; commits: Record<string, unknown>[][] } = {
  created: [],
  lfs: {},
  commits: [],
};
let exists = false;
const server = createServer(async (request, response) => {
  const pieces: Buffer[] = [];
  for await (const piece of request) pieces.push(piece as Buffer);
  const body = Buffer.concat(pieces);
  const url = request.url ?? "";
  const send = (status: number, value: unknown) => {
    response.writeHead(status, { "content-type": "application/json" });
    response.end(JSON.stringify(value));
  };
  if (request.headers.authorization !== "Bearer hf_write" && !url.startsWith("/upload"))
    return send(401, { error: "no" });
  if (url === "/api/whoami-v2")
    return send(200, { type: "user", name: "me", id: "1", auth: { type: "access_token" }, orgs: [] });
  if (url === "/api/repos/create") {
    if (exists) return send(409, { error: "exists" });
    exists = true;
    seen.created.push(JSON.parse(String(body)));
    return send(200, { url: `${base}/me/model`, id: "1" });
  }
  if (url.includes("/preupload/")) {
    const { files } = JSON.parse(String(body)) as { files: { path: string }[] };
    return send(200, {
      files: files.map(({ path }) => ({ path, uploadMode: path.endsWith(".safetensors") ? "lfs" : "regular" })),
    });
  }
  if (url.endsWith("/objects/batch")) {
    const { objects } = JSON.parse(String(body)) as { objects: { oid: string; size: number }[] };
    return send(200, {
      transfer: "basic",
      objects: objects.map(({ oid, size }) => ({ oid, size, actions: { upload: { href: `${base}/upload/${oid}` } } })),
    });
  }
  if (url.startsWith("/upload/")) {
    seen.lfs[url.slice("/upload/".length)] = body;
    return send(200, {});
  }
  if (url.includes("/commit/")) {
    seen.commits.push(parseLines(String(body)));
    return send(200, { success: true, commitOid: "abc", commitUrl: `${base}/me/model/commit/abc`, hookOutput: "" });
  }
  return send(404, { error: url });
});
const base = await listen(server);
afterAll(() => server.close());

const main = fileURLToPath(new URL("./main.ts", import.meta.url));
const push = (token: string, ...args: string[]) =>
  new Promise<{ code: number; output: string }>((resolve) => {
    const env = { ...process.env, HF_TOKEN: token, HF_ENDPOINT: base };
    execFile(
      process.execPath,
      ["--import", "tsx", main, "push", ...args],
      { env, cwd: fileURLToPath(new URL("../../..", import.meta.url)) },
      (error, out, errors) => {
        resolve({ code: typeof error?.code === "number" ? error.code : 0, output: out + errors });
      },
    );
  });

describe("hone push", () => {
  test("uploads weights, files and the model card to a new private repository, by the hub's client", async () => {
    const { code, output } = await push("hf_write", join(folder, "model"), "model", "--message", "first");
    expect([code, output]).toEqual([0, expect.stringContaining(`3 files uploaded to ${base}/me/model`)]);
    expect(seen.created).toMatchObject([{ name: "model", organization: "me", type: "model" }]);
    expect(JSON.stringify(seen.created)).toMatch(/"(private":true|visibility":"private)"?/);
    const oid = createHash("sha256").update(weights).digest("hex");
    expect(seen.lfs[oid]?.equals(weights)).toBe(true);
    const [header, ...files] = seen.commits[0]!;
    expect(header).toMatchObject({ key: "header", value: { summary: "first" } });
    expect(files).toEqual(
      expect.arrayContaining([
        expect.objectContaining({ key: "lfsFile", value: expect.objectContaining({ path: "model.safetensors", oid }) }),
        expect.objectContaining({ key: "file", value: expect.objectContaining({ path: "README.md" }) }),
      ]),
    );
    // A repository that exists gets another commit.
    expect((await push("hf_write", join(folder, "model"), "me/model")).code).toBe(0);
    expect(seen.commits).toHaveLength(2);
  });

  test.each([
    ["no token", "", "model", "HF_TOKEN is not set"],
    ["a token that may not write", "hf_read", "me/model", "denied access to me/model (401)"],
    ["a folder without weights", "hf_write", "me/model", "is not an export"],
    ["a name that is not a repository", "hf_write", "a/b/c", "is not a repository"],
  ])("%s is refused", async (what, token, name, message) => {
    const given = what === "a folder without weights" ? folder.replace(/$/, "/none") : join(folder, "model");
    mkdirSync(join(folder, "none"), { recursive: true });
    const { code, output } = await push(token, given, name);
    expect([code, output]).toEqual([2, expect.stringContaining(message)]);
  });
});
