/** Reads an image from bytes, a data URL, a file, or an address, which is fetched once. */
import { readFile, stat } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { RunError, UserError } from "../errors.ts";
import { imageLimits, requireSize } from "./image-limits.ts";
import type { MediaStore } from "./media-store.ts";
import type { ImageSource, ParquetImage, StoredImage } from "./types.ts";

export interface ImageLoader {
  /**
   * @throws UserError if it cannot be read or is not an image within the limits; RunError if a server fails; the signal's
   * reason if aborted
   */
  load(source: ImageSource, signal?: AbortSignal): Promise<StoredImage>;
}

/** Results are cached by address, so that each address is fetched once. */
export function imageLoader(store: MediaStore): ImageLoader {
  const fetched = new Map<string, Promise<StoredImage>>();

  function fetchOnce(url: string): Promise<StoredImage> {
    const image = fetchUnlessStored(url, fetched.get(url));
    fetched.set(url, image);
    image.catch(() => fetched.delete(url));
    return image;
  }

  async function fetchUnlessStored(url: string, earlier: Promise<StoredImage> | undefined): Promise<StoredImage> {
    const known = await earlier;
    return known !== undefined && store.has(known) ? known : add(await download(url), url);
  }

  function add(bytes: Uint8Array, where: string): StoredImage {
    return located(where, () => store.add(bytes));
  }

  return {
    async load(source, signal) {
      signal?.throwIfAborted();
      if (source instanceof Uint8Array) return store.add(source);
      if (isStored(source)) return source;
      if (isParquetImage(source)) return this.load(fromParquet(source), signal);
      if (typeof source !== "string" && !(source instanceof URL)) {
        throw new UserError(`the image is ${source === null ? "null" : typeof source}`, { hint: forms });
      }
      const address = String(source);
      if (/^https?:/i.test(address)) return unlessAborted(fetchOnce(address), signal);
      if (/^data:/i.test(address)) return addDataUrl(store, address);
      if (/^[a-z][a-z0-9+.-]+:/i.test(address) && !/^file:/i.test(address)) {
        throw new UserError(`${shorten(address)} is not the address of an image`, {
          hint: forms,
        });
      }
      const path = /^file:/i.test(address) ? located(address, () => fileURLToPath(address)) : address;
      return add(await readImageFile(path), path);
    },
  };
}

export const isStored = (source: unknown): source is StoredImage =>
  typeof source === "object" && source !== null && !(source instanceof URL) && "hash" in source;

const forms = "use bytes, a data URL, an http(s) URL, a file, or a Parquet file's { bytes, path }";

const isParquetImage = (source: unknown): source is ParquetImage =>
  typeof source === "object" && source !== null && !(source instanceof URL) && "bytes" in source && "path" in source;

function fromParquet({ bytes, path }: ParquetImage): Uint8Array | string {
  if (bytes instanceof Uint8Array) return bytes;
  if (typeof path === "string") return path;
  throw new UserError("the image has neither bytes nor a path");
}

/** Puts the place before a sentence that begins with "the image". */
function located<T>(where: string, run: () => T): T {
  try {
    return run();
  } catch (error) {
    if (error instanceof RunError) throw error;
    const message = error instanceof Error ? error.message : String(error);
    throw new UserError(`${shorten(where)}: ${message}`, error instanceof UserError ? { hint: error.hint } : {});
  }
}

const shorten = (text: string) => (text.length > 200 ? `${text.slice(0, 200)}...` : text);

const dataUrl = /^data:([^;,]*)((?:;[^;,]*)*),/i;

function addDataUrl(store: MediaStore, url: string): StoredImage {
  const match = dataUrl.exec(url.slice(0, 1000));
  if (match === null) throw new UserError("the data URL of an image has no comma after its type");
  const [head, mediaType = "", parameters = ""] = match;
  const type = mediaType.toLowerCase();
  if (type !== "image/png" && type !== "image/jpeg" && type !== "image/jpg") {
    throw new UserError(`the data URL is of type ${type === "" ? "text/plain" : type}, not image/png or image/jpeg`);
  }
  if (!/;base64$/i.test(parameters)) throw new UserError("the data URL of an image must be in base64");
  const image = store.add(decodeBase64(url.slice(head.length)));
  const stated = type === "image/jpg" ? "image/jpeg" : type;
  if (image.type === stated) return image;
  throw new UserError(`the data URL says ${type}, but the image is ${image.type}`);
}

/** @throws UserError if the text is not base64, or is longer than an image may be */
function decodeBase64(text: string): Uint8Array {
  requireSize(Math.floor((text.length * 3) / 4) - 2);
  const compact = /\s/.test(text) ? text.replace(/\s/g, "") : text;
  if (!/^[A-Za-z0-9+/]*={0,2}$/.test(compact) || compact.replace(/=+$/, "").length % 4 === 1) {
    throw new UserError("the image is not valid base64");
  }
  return Buffer.from(compact, "base64");
}

async function readImageFile(path: string): Promise<Uint8Array> {
  try {
    const found = await stat(path);
    // Reading a pipe or a device might never end.
    if (!found.isFile()) throw new UserError(`${shorten(path)} is not an image file, but a folder or a device`);
    located(path, () => requireSize(found.size));
    return await readFile(path);
  } catch (error) {
    if (error instanceof UserError) throw error;
    const { code } = error as NodeJS.ErrnoException;
    if (code === "ENOENT" || code === "ENOTDIR") throw new UserError(`the image file ${shorten(path)} does not exist`);
    throw new UserError(`${shorten(path)} cannot be read as an image file: ${code ?? (error as Error).message}`);
  }
}

async function download(url: string): Promise<Uint8Array> {
  const { fetchSeconds } = imageLimits;
  try {
    const response = await fetch(url, {
      headers: { accept: "image/png, image/jpeg" },
      signal: AbortSignal.timeout(fetchSeconds * 1000),
    });
    if (!response.ok) {
      await response.body?.cancel();
      const text = `${shorten(url)} answered ${response.status} instead of an image`;
      throw response.status >= 500 || response.status === 429 ? new RunError(text) : new UserError(text);
    }
    const pieces: Uint8Array[] = [];
    let bytes = 0;
    for await (const piece of response.body ?? []) {
      bytes += piece.length;
      located(url, () => requireSize(bytes));
      pieces.push(piece);
    }
    return Buffer.concat(pieces);
  } catch (error) {
    if (error instanceof UserError || error instanceof RunError) throw error;
    const timedOut = error instanceof Error && error.name === "TimeoutError";
    const cause = error instanceof Error && error.cause instanceof Error ? error.cause.message : String(error);
    throw new RunError(
      timedOut
        ? `${shorten(url)} did not send an image within ${fetchSeconds} s`
        : `${shorten(url)} cannot be fetched: ${cause}`,
      { cause: error },
    );
  }
}

async function unlessAborted<T>(work: Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  if (signal === undefined) return work;
  let leave = () => {};
  const left = new Promise<never>((_, reject) => {
    leave = () => reject(signal.reason);
    signal.addEventListener("abort", leave, { once: true });
  });
  try {
    return await Promise.race([work, left]);
  } finally {
    signal.removeEventListener("abort", leave);
  }
}
