/** Images from everywhere, and hostile ones: each ends with a sentence. */
import { createHash } from "node:crypto";
import { readdirSync, writeFileSync } from "node:fs";
import { createServer, type Server } from "node:http";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import fc from "fast-check";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { UserError } from "../base/errors.ts";
import { listen } from "../base/http.ts";
import { temporaryFolder } from "../temporary-folder.fixture.ts";
import { hostileFiles } from "./hostile-files.fixture.ts";
import type { ImageSource } from "./images.ts";
import { folderStore, imageLimits, memoryStore, readImageHeader } from "./images.ts";
import { addressRules, imageLoader } from "./load-image.ts";
import { chunk, dataUrl, jpeg, png } from "./pictures.fixture.ts";

const folder = temporaryFolder("images");
const asked: string[] = [];
let server: Server;
let origin: string;

beforeAll(async () => {
  writeFileSync(join(folder, "a.png"), png(3, 5));
  writeFileSync(join(folder, "text.png"), "not an image");
  writeFileSync(join(folder, "large.png"), Buffer.alloc(imageLimits.bytes + 1));
  server = createServer((request, response) => {
    asked.push(request.url!);
    if (request.url === "/a.png") response.end(png(3, 5));
    else if (request.url === "/page") response.end("<!doctype html><p>Log in");
    else if (request.url === "/busy") response.writeHead(503).end();
    else if (request.url === "/moved") response.writeHead(302, { location: "/a.png" }).end();
    else if (request.url === "/turning") response.writeHead(302, { location: "/turning" }).end();
    else if (request.url === "/cut")
      response.writeHead(200, { "content-length": "1000" }).write("x", () => response.destroy());
    else if (request.url === "/endless") {
      const send = () => response.write(Buffer.alloc(2 ** 20), () => response.destroyed || setImmediate(send));
      send();
    } else response.writeHead(404).end("no such file");
  });
  origin = await listen(server);
});

afterAll(async () => {
  server.closeAllConnections();
  await new Promise((resolve) => server.close(resolve));
});

const here = { own: addressRules(["*", "127.0.0.1"]) };
const load = (source: ImageSource, signal?: AbortSignal) => imageLoader(memoryStore(), here).load(source, signal);

describe("an image is read from", () => {
  const whole = { type: "image/png", width: 3, height: 5, bytes: png(3, 5).length };
  const hash = createHash("sha256").update(png(3, 5)).digest("hex");

  test.each<[string, () => ImageSource]>([
    ["bytes", () => png(3, 5)],
    ["a part of a buffer", () => Buffer.concat([Buffer.alloc(7), png(3, 5)]).subarray(7)],
    ["a data URL", () => dataUrl(png(3, 5))],
    [
      "a data URL with parameters and line breaks",
      () =>
        dataUrl(png(3, 5))
          .replace(";base64", ";charset=x;base64")
          .replace(/.{60}$/, "\n$&"),
    ],
    ["a path", () => join(folder, "a.png")],
    ["a file URL", () => pathToFileURL(join(folder, "a.png"))],
    ["an address", () => `${origin}/a.png`],
    ["an address that is redirected", () => new URL(`${origin}/moved`)],
    ["a Parquet file's bytes", () => ({ bytes: new Uint8Array(png(3, 5)), path: "a.png" })],
    ["an ArrayBuffer", () => new Uint8Array(png(3, 5)).buffer],
    ["a Blob", () => new Blob([new Uint8Array(png(3, 5))])],
    ["base64", () => png(3, 5).toString("base64")],
    ["the base64 of a row of JSON", () => ({ bytes: png(3, 5).toString("base64") })],
    ["the path of a row of JSON", () => ({ path: join(folder, "a.png") })],
    ["a Parquet file's path", () => ({ bytes: null, path: join(folder, "a.png") })],
    ["an image that is stored", () => ({ ...whole, type: "image/png", hash })],
  ])("%s", async (_, source) => {
    expect(await load(source())).toEqual({ ...whole, hash });
  });

  test("a JPEG in base64, which looks like a path", async () => {
    expect(await load(jpeg(300, 7).toString("base64"))).toMatchObject({ type: "image/jpeg", width: 300 });
  });

  test("a JPEG", async () => {
    expect(await load(dataUrl(jpeg(300, 7), "image/jpeg"))).toMatchObject({
      type: "image/jpeg",
      width: 300,
      height: 7,
    });
    expect(await load(dataUrl(jpeg(), "image/jpg"))).toMatchObject({ type: "image/jpeg" });
    // A camera's preview after the end, padding between segments.
    expect(readImageHeader(Buffer.concat([jpeg(9, 8), Buffer.alloc(30, 0xff)]))).toMatchObject({ width: 9, height: 8 });
    expect(
      readImageHeader(Buffer.concat([jpeg().subarray(0, 2), Buffer.from([0xff]), jpeg(6, 5).subarray(2)])),
    ).toMatchObject({ width: 6 });
  });

  test("a progressive JPEG, and files in many pieces", () => {
    const scan = jpeg().subarray(23, -2);
    const scans = Array.from({ length: 100 }, () => scan);
    const progressive = Buffer.concat([jpeg(5, 4).subarray(0, 23), ...scans, jpeg().subarray(-2)]);
    expect(readImageHeader(progressive)).toMatchObject({ width: 5, height: 4 });
    const piece = chunk("IDAT", Buffer.alloc(0));
    const pieces = Buffer.concat([
      png().subarray(0, 33),
      ...Array.from({ length: 9000 }, () => piece),
      png().subarray(33),
    ]);
    expect(readImageHeader(pieces)).toMatchObject({ width: 2 });
  });

  test("an address only once, and again after a failure", async () => {
    const { load } = imageLoader(memoryStore(), here);
    asked.length = 0;
    const all = await Promise.all([load(`${origin}/a.png`), load(`${origin}/a.png`), load(`${origin}/a.png`)]);
    expect(new Set(all.map((image) => image.hash)).size).toBe(1);
    await load(`${origin}/a.png`);
    await expect(load(`${origin}/busy`)).rejects.toThrow("it answered 503");
    await expect(load(`${origin}/busy`)).rejects.toThrow("it answered 503");
    expect(asked).toEqual(["/a.png", "/busy", "/busy"]);
  });

  test("an address again if the image was dropped from memory", async () => {
    const store = memoryStore(2 * png(3, 5).length);
    const { load } = imageLoader(store, here);
    const { hash } = await load(`${origin}/a.png`);
    for (const width of [4, 6]) await load(png(width, 5));
    await expect(store.read(hash)).rejects.toThrow("no longer in memory");
    await load(`${origin}/a.png`);
    expect(Buffer.from(await store.read(hash))).toEqual(png(3, 5));
  });
});

describe("a hostile image", () => {
  test.each<[name: string, source: () => ImageSource, sentence: string]>([
    ...hostileFiles,
    ["a Parquet file's empty cell", () => ({ bytes: null, path: null }), "the image has neither bytes nor a path"],
    ["a number", () => 7 as never, "the image is a number"],
    [
      "a list of images",
      () => [{ bytes: png() }, { bytes: png() }] as never,
      "the image is a list of 2; each image needs its own part",
    ],
    ["an object", () => ({ url: "a.png", width: 3 }) as never, "the image is an object with the keys url, width"],
    ["bytes as a list of numbers", () => ({ bytes: [137, 80] }) as never, "the image's bytes are a list of 2"],
    ["null", () => null as never, "the image is null"],
    ["a large file", () => join(folder, "large.png"), "large.png: the image has 21.0 MB; the limit is 21.0 MB"],
    ["a missing file", () => join(folder, "b.png"), `the image file ${folder}/b.png does not exist`],
    ["a file of text", () => join(folder, "text.png"), "text.png: the image is in an unknown format"],
    ["a folder", () => folder, `${folder} is not an image file, but a folder or a device`],
    ["a device", () => "/dev/zero", "/dev/zero is not an image file, but a folder or a device"],
    ["a file in a file", () => join(folder, "a.png", "b.png"), "b.png does not exist"],
    [
      "a data URL of SVG",
      () => "data:image/svg+xml,<svg/>",
      "the data URL is of type image/svg+xml, not image/png or image/jpeg",
    ],
    ["a data URL of text", () => "data:,hello", "the data URL is of type text/plain, not image/png"],
    ["a data URL in percent encoding", () => "data:image/png,%89PNG", "the data URL of an image must be in base64"],
    ["a data URL without a comma", () => "data:image/png;base64", "has no comma after its type"],
    ["a data URL of no base64", () => "data:image/png;base64,!!!!", "the image is not valid base64"],
    ["a data URL of half a byte", () => "data:image/png;base64,AAAAA", "the image is not valid base64"],
    ["a data URL with nothing", () => "data:image/png;base64,", "the image is empty"],
    [
      "a data URL of another type than it says",
      () => dataUrl(png(), "image/jpeg"),
      "the data URL says image/jpeg, but the image is image/png",
    ],
    [
      "a large data URL",
      () => `data:image/png;base64,${"A".repeat(30 * 2 ** 20)}`,
      "the image has 23.6 MB; the limit is 21.0 MB",
    ],
    ["another protocol", () => "ftp://example.com/a.png", "ftp://example.com/a.png is not the address of an image"],
    ["a script", () => "javascript:alert(1)", "javascript:alert(1) is not the address of an image"],
    ["a file on another machine", () => "file://other/a.png", "file://other/a.png: "],
    ["a missing address", () => `${origin}/none`, "/none: it answered 404 instead of an image"],
    ["a web page", () => `${origin}/page`, "/page: the image is a web page, not PNG or JPEG"],
    ["a server that is busy", () => `${origin}/busy`, "/busy: it answered 503 instead of an image"],
    ["an answer that is cut off", () => `${origin}/cut`, "/cut: it cannot be fetched: "],
    ["an endless answer", () => `${origin}/endless`, "/endless: the image has"],
    ["a redirection to itself", () => `${origin}/turning`, "/turning: it has more than 5 redirects"],
    [
      "a machine that is not there",
      () => "http://127.0.0.1:1/a.png",
      "http://127.0.0.1:1/a.png: it cannot be fetched: ",
    ],
  ])("%s", async (_, source, sentence) => {
    await expect(load(source())).rejects.toThrow(sentence);
    await expect(load(source())).rejects.toMatchObject({ exitCode: expect.any(Number) });
  });

  test("of any bytes is refused or has a size", () => {
    const mutated = fc.tuple(
      fc.constantFrom(png(9, 9), jpeg(9, 9)),
      fc.array(fc.tuple(fc.nat(60), fc.nat(255))),
      fc.nat(90),
    );
    fc.assert(
      fc.property(mutated, ([image, changes, length]) => {
        const bytes = Buffer.from(image.subarray(0, length));
        for (const [at, value] of changes) if (at < bytes.length) bytes[at] = value;
        try {
          const { width, height } = readImageHeader(bytes);
          expect(width * height).toBeGreaterThan(0);
        } catch (error) {
          expect(error).toBeInstanceOf(UserError);
        }
      }),
      { numRuns: 500, seed: 3 },
    );
  });
});

test("a caller that gives up does not wait", async () => {
  const stop = new AbortController();
  const loading = load(`${origin}/endless`, stop.signal);
  stop.abort(new Error("enough"));
  await expect(loading).rejects.toThrow("enough");
});

describe("a store keeps each image once", () => {
  test("in memory, up to a limit", async () => {
    const [red, blue, green] = [png(2, 2, [255, 0, 0]), png(2, 2, [0, 0, 255]), png(2, 2, [0, 255, 0])];
    const store = memoryStore(red.length + blue.length);
    const first = store.add(red);
    expect(store.add(Buffer.from(red))).toEqual(first);
    store.add(blue);
    expect(await store.read(first.hash)).toEqual(new Uint8Array(red));
    store.add(green);
    await expect(store.read(first.hash)).rejects.toThrow("is no longer in memory");
  });

  test("in memory, as it was when it was added", async () => {
    const store = memoryStore();
    const bytes = png();
    const { hash } = store.add(bytes);
    bytes.fill(0);
    expect(await store.read(hash)).toEqual(new Uint8Array(png()));
  });

  test("in a folder, which another process can read", async () => {
    const path = join(folder, "run", "media");
    const store = folderStore(path);
    await expect(store.read("0".repeat(64))).rejects.toThrow(`${path} does not contain the image 000`);
    const images = [store.add(png()), store.add(png()), store.add(jpeg())];
    expect(readdirSync(path).sort()).toEqual([`${images[0]!.hash}.png`, `${images[2]!.hash}.jpg`].sort());
    for (const image of images) expect((await folderStore(path).read(image.hash)).length).toBe(image.bytes);
    expect(folderStore(path).add(png())).toEqual(images[0]);
  });

  test("in a folder, which replaces files that were copied in part", async () => {
    const path = join(folder, "copied");
    const { hash } = folderStore(path).add(png());
    writeFileSync(join(path, `${hash}.png`), png().subarray(0, 20));
    const store = folderStore(path);
    store.add(png());
    expect(Buffer.from(await store.read(hash))).toEqual(png());
  });
});
