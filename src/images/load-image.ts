/** Reads an image from bytes, a data URL, a file, or an address, which is fetched once. */
import { readFile, stat } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { unlessAborted } from "../concurrency/unless-aborted.ts";
import { HoneError, messageOf, RunError, UserError } from "../errors.ts";
import { type AddressRules, addressRules } from "./address-rules.ts";
import { type DownloadOptions, download } from "./download.ts";
import { requireSize } from "./image-limits.ts";
import type { MediaStore } from "./media-store.ts";
import type { ClientImage, ImageSource, ParquetImage, StoredImage } from "./types.ts";

export interface ImageLoader {
  /**
   * @throws UserError if it cannot be read or is not an image within the limits; RunError if a server fails; the signal's
   * reason if aborted
   */
  load(source: ImageSource, signal?: AbortSignal): Promise<StoredImage>;
}

/** Which addresses a loader fetches images from. */
export interface Fetching extends Pick<DownloadOptions, "resolve"> {
  /** Addresses in the user's own data and program. Default: all public ones. */
  own?: AddressRules | undefined;
  /** Addresses from clients, which could otherwise probe this machine's network. Default: none. */
  clients?: AddressRules | undefined;
  /** Logs why an address of a client was not used: the client gets the same sentence for every cause. */
  log?: (line: string) => void;
}

/** Number of addresses that are cached, and their length: clients choose them. */
const [maxCached, longestAddress] = [4096, 8192];

/** Results are cached by address, so that each address is fetched once. */
export function imageLoader(store: MediaStore, fetching: Fetching = {}): ImageLoader {
  const { own = addressRules(["*"]), clients = addressRules([]), log = () => {}, resolve } = fetching;
  const fetched = new Map<string, Promise<StoredImage>>();

  function fetchOnce(url: string, rules: AddressRules): Promise<StoredImage> {
    // What the user's own rules allowed tells a client nothing.
    const key = rules === own ? url : `client ${url}`;
    const image = fetchUnlessStored(url, rules, fetched.get(key));
    fetched.set(key, image);
    const [oldest] = fetched.keys();
    if (oldest !== undefined && fetched.size > maxCached) fetched.delete(oldest);
    image.catch(() => fetched.delete(key));
    return image;
  }

  async function fetchUnlessStored(
    url: string,
    rules: AddressRules,
    earlier: Promise<StoredImage> | undefined,
  ): Promise<StoredImage> {
    const known = await earlier;
    if (known !== undefined && store.has(known)) return known;
    return located(url, async () => {
      if (url.length > longestAddress) throw new UserError(`it is longer than ${longestAddress} characters`);
      if (!URL.canParse(url)) throw new UserError("it is not an address");
      return store.add(await download(url, { rules, ...(resolve ? { resolve } : {}) }));
    });
  }

  async function fetchForClient(url: string, signal: AbortSignal | undefined): Promise<StoredImage> {
    try {
      return await unlessAborted(fetchOnce(url, clients), signal);
    } catch (error) {
      signal?.throwIfAborted();
      log(`an image that a client named was not used: ${error instanceof Error ? error.message : error}`);
      throw new UserError("the image's address cannot be used", {
        hint: "send the image itself as a data URL; the operator of this server can allow hosts for addresses",
      });
    }
  }

  return {
    async load(source, signal) {
      signal?.throwIfAborted();
      if (source instanceof Uint8Array) return store.add(source);
      if (isStored(source)) return source;
      if (isClientImage(source)) {
        const { address } = source;
        return isHttp(address) ? fetchForClient(address, signal) : addDataUrl(store, address);
      }
      if (source instanceof ArrayBuffer) return store.add(new Uint8Array(source));
      if (source instanceof Blob) {
        requireSize(source.size);
        return store.add(new Uint8Array(await source.arrayBuffer()));
      }
      if (isParquetImage(source)) return this.load(fromParquet(source), signal);
      if (typeof source !== "string" && !(source instanceof URL)) {
        throw new UserError(`the image is ${describe(source)}`, { hint: forms });
      }
      const address = String(source);
      if (bareBase64.test(address.slice(0, 200))) return store.add(decodeBase64(address));
      if (isHttp(address)) return unlessAborted(fetchOnce(address, own), signal);
      if (isData(address)) return addDataUrl(store, address);
      const path = await pathOf(address);
      const bytes = await readImageFile(path, () => readFile(path));
      return located(path, () => store.add(bytes));
    },
  };
}

/**
 * Whether the file exists, for an image that is a file. Others are not checked.
 * @throws UserError if it cannot be loaded
 */
export async function checkImageFile(source: ImageSource): Promise<void> {
  const named = typeof source === "string" || source instanceof URL ? source : isParquetImage(source) && source.path;
  if (!named || (isParquetImage(source) && source.bytes != null)) return;
  const address = String(named);
  if (bareBase64.test(address.slice(0, 200)) || isHttp(address) || isData(address)) return;
  await readImageFile(await pathOf(address), async () => {});
}

const isData = (address: string) => /^data:/i.test(address);

async function pathOf(address: string): Promise<string> {
  if (/^file:/i.test(address)) return located(address, () => fileURLToPath(address));
  if (!/^[a-z][a-z0-9+.-]+:/i.test(address)) return address;
  throw new UserError(`${shorten(address)} is not the address of an image`, { hint: forms });
}

export const isStored = (source: unknown): source is StoredImage =>
  typeof source === "object" && source !== null && !(source instanceof URL) && "hash" in source;

const isHttp = (address: string) => /^https?:/i.test(address);

export const isClientImage = (source: unknown): source is ClientImage =>
  typeof source === "object" && source !== null && !(source instanceof URL) && "address" in source;

const forms = "use bytes, a Blob, base64, a data URL, an http(s) URL, a file, or { bytes, path } of a data set";

const isParquetImage = (source: unknown): source is ParquetImage =>
  typeof source === "object" && source !== null && !(source instanceof URL) && ("bytes" in source || "path" in source);

/** Rows of JSON have the bytes in base64. */
function fromParquet({ bytes, path }: ParquetImage): Uint8Array | string {
  if (bytes instanceof Uint8Array) return bytes;
  if (typeof bytes === "string") return decodeBase64(bytes);
  if (bytes !== null && bytes !== undefined) {
    throw new UserError(`the image's bytes are ${describe(bytes)}`, { hint: "use a Uint8Array or text in base64" });
  }
  if (typeof path === "string") return path;
  throw new UserError("the image has neither bytes nor a path");
}

/** The first bytes of a PNG or JPEG file, in base64 without "data:". A JPEG's look like a path. */
const bareBase64 = /^(iVBORw0KGgo|\/9j\/)[A-Za-z0-9+/\s]{40,}={0,2}$/;

function describe(value: unknown): string {
  if (value === null || typeof value !== "object") return value === null ? "null" : `a ${typeof value}`;
  if (Array.isArray(value)) return `a list of ${value.length}; each image needs its own part`;
  return `an object with the keys ${Object.keys(value).slice(0, 5).join(", ") || "(none)"}`;
}

/** Puts the place before the sentence of an error. */
async function located<T>(where: string, run: () => T | Promise<T>): Promise<T> {
  try {
    return await run();
  } catch (error) {
    const Kind = error instanceof RunError ? RunError : UserError;
    throw new Kind(`${shorten(where)}: ${messageOf(error)}`, error instanceof HoneError ? { hint: error.hint } : {});
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

async function readImageFile<T>(path: string, read: () => Promise<T>): Promise<T> {
  try {
    const found = await stat(path);
    // Reading a pipe or a device might never end.
    if (!found.isFile()) throw new UserError(`${shorten(path)} is not an image file, but a folder or a device`);
    await located(path, () => requireSize(found.size));
    return await read();
  } catch (error) {
    if (error instanceof UserError) throw error;
    const { code } = error as NodeJS.ErrnoException;
    if (code === "ENOENT" || code === "ENOTDIR") throw new UserError(`the image file ${shorten(path)} does not exist`);
    throw new UserError(`${shorten(path)} cannot be read as an image file: ${code ?? (error as Error).message}`);
  }
}
