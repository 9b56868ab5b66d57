/** Reads an image from bytes, a data URL, a file or an address, which is fetched once, and only from hosts that are allowed. */

import { lookup as systemLookup } from "node:dns";
import { once } from "node:events";
import { readFile, stat } from "node:fs/promises";
import { type IncomingMessage, get as overHttp } from "node:http";
import { get as overHttps } from "node:https";
import { BlockList, isIP, type LookupFunction } from "node:net";
import { fileURLToPath } from "node:url";
import { unlessAborted } from "../base/concurrency.ts";
import { HoneError, messageOf, RunError, UserError } from "../base/errors.ts";
import { beginningOf } from "../base/text.ts";
import {
  type ClientImage,
  type ImageSource,
  imageLimits,
  type MediaStore,
  type ParquetImage,
  requireSize,
  type StoredImage,
} from "./images.ts";

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

const shorten = (text: string) => beginningOf(text, 200);

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

// Downloads an image from a public or allowed address.

interface DownloadOptions {
  rules: AddressRules;
  /** Resolves names; default: the system's. */
  resolve?: typeof systemLookup;
}

const maxRedirects = 5;

/** @throws UserError or RunError, whose sentences continue "the address: " */
async function download(address: string, options: DownloadOptions): Promise<Uint8Array> {
  const { fetchSeconds } = imageLimits;
  const signal = AbortSignal.timeout(fetchSeconds * 1000);
  try {
    return await readBody(await follow(new URL(address), options, signal));
  } catch (error) {
    if (error instanceof UserError || error instanceof RunError) throw error;
    if (signal.aborted) throw new RunError(`it did not send an image within ${fetchSeconds} s`, { cause: error });
    throw new RunError(`it cannot be fetched: ${messageOf(error)}`, { cause: error });
  }
}

async function follow(start: URL, options: DownloadOptions, signal: AbortSignal): Promise<IncomingMessage> {
  let url = start;
  for (let redirects = 0; redirects <= maxRedirects; redirects++) {
    const response = await request(url, options, signal);
    const { statusCode = 0, headers } = response;
    if (statusCode < 300 || statusCode > 399 || headers.location === undefined) return response;
    response.destroy();
    if (!URL.canParse(headers.location, url.href)) throw new UserError("it redirects to an invalid address");
    url = new URL(headers.location, url);
  }
  throw new UserError(`it has more than ${maxRedirects} redirects`);
}

/** The addresses of a name are checked when the connection is opened, so the name cannot resolve to others then. */
async function request(
  url: URL,
  { rules, resolve = systemLookup }: DownloadOptions,
  signal: AbortSignal,
): Promise<IncomingMessage> {
  const { protocol, hostname, username, password } = url;
  if (protocol !== "http:" && protocol !== "https:") throw new UserError(`it redirects to ${protocol}`);
  if (username !== "" || password !== "") throw new UserError("it has a user name or a password");
  if (!rules.allowsHost(hostname)) throw new UserError(`${hostname} is not an allowed host`);
  const literal = hostname.replace(/^\[(.*)\]$/, "$1");
  if (isIP(literal) !== 0 && !rules.allowsIp(literal)) throw notPublic(literal, literal);
  const lookup: LookupFunction = (name, options, callback) => {
    resolve(name, { ...options, all: true }, (error, found) => {
      const allowed = (found ?? []).filter(({ address }) => rules.allowsIp(address));
      const [first] = allowed;
      if (error !== null) callback(error, "", 0);
      else if (first === undefined) callback(notPublic(hostname, found[0]?.address ?? "nothing"), "", 0);
      else if (options.all) callback(null, allowed);
      else callback(null, first.address, first.family);
    });
  };
  const get = protocol === "https:" ? overHttps : overHttp;
  const headers = { accept: "image/png, image/jpeg", "accept-encoding": "identity" };
  // Without an agent, a connection is never one that other rules allowed.
  const sent = get(url, { agent: false, headers, lookup, signal });
  const [response] = (await once(sent, "response")) as [IncomingMessage];
  // Later errors end the response, whose reader throws them.
  sent.on("error", () => {});
  return response;
}

const notPublic = (hostname: string, ip: string) =>
  new UserError(hostname === ip ? `${ip} is not a public address` : `${hostname} is ${ip}, which is not public`, {
    hint: "allow its network with data.image_hosts, for example data.image_hosts=[127.0.0.1]",
  });

async function readBody(response: IncomingMessage): Promise<Uint8Array> {
  const { statusCode = 0, headers } = response;
  if (statusCode < 200 || statusCode > 299) {
    response.destroy();
    const text = `it answered ${statusCode} instead of an image`;
    throw statusCode >= 500 || statusCode === 429 ? new RunError(text) : new UserError(text);
  }
  if ((headers["content-encoding"] ?? "identity") !== "identity") {
    response.destroy();
    throw new RunError(`it answered in the encoding ${headers["content-encoding"]}, which was not requested`);
  }
  const pieces: Uint8Array[] = [];
  let bytes = 0;
  for await (const piece of response as AsyncIterable<Uint8Array>) {
    bytes += piece.length;
    requireSize(bytes);
    pieces.push(piece);
  }
  return Buffer.concat(pieces);
}

// Decides which hosts images may be fetched from. Otherwise a client, or a row of a downloaded data set, could send requests into the
// network of this machine, for example to a cloud's metadata service. An address of a client needs a listed host; one in the user's own
// data, a public or listed one. Listing a host does not allow its private addresses, so a change of its DNS entry gains nothing. The IP
// address is checked when the connection opens, after the name is resolved, and again at every redirect; connections are not reused.
// A client gets the same sentence for every failure; the reason is in the log.

export interface AddressRules {
  /** Whether the host of an address, as `URL.hostname` spells it, may be named. */
  allowsHost(hostname: string): boolean;
  /** Whether a connection to this IP address may be opened: it is public, or in one of the allowed networks. */
  allowsIp(ip: string): boolean;
}

/**
 * @param allowed host names (`*`: all, `*.example.com`: those below it), and IP addresses and networks, which are allowed
 * although they are not public
 * @throws UserError naming an entry that is none of these
 *
 * @example
 * addressRules(["images.example.com", "10.1.0.0/16"]);
 */
export function addressRules(allowed: readonly string[]): AddressRules {
  const networks = new BlockList();
  const names = allowed.map((entry) => entry.toLowerCase()).filter((entry) => !addNetwork(networks, entry));
  const wrong = names.find((name) => !namePattern.test(name));
  if (wrong !== undefined) {
    throw new UserError(`"${wrong}" is not a host, an IP address or a network`, {
      hint: "for example images.example.com, *.example.com, * or 10.1.0.0/16; without a protocol, port or path",
    });
  }
  const allowsName = (host: string) =>
    names.some((name) => name === "*" || name === host || (name.startsWith("*.") && host.endsWith(name.slice(1))));
  return {
    allowsHost(hostname) {
      const host = hostname.replace(/^\[(.*)\]$/, "$1").replace(/\.$/, "");
      return allowsName(host) || contains(networks, host);
    },
    allowsIp: (ip) => isPublic(ip) || contains(networks, ip),
  };
}

const namePattern = /^(\*|(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*)$/;

function addNetwork(networks: BlockList, entry: string): boolean {
  const [, ip = "", prefix] = /^([0-9a-f.:]+?)(?:\/(\d{1,3}))?$/.exec(entry) ?? [];
  const family = isIP(ip);
  if (family === 0 || Number(prefix ?? 0) > (family === 4 ? 32 : 128)) return false;
  networks.addSubnet(ip, Number(prefix ?? (family === 4 ? 32 : 128)), `ipv${family}` as "ipv4");
  return true;
}

function contains(networks: BlockList, ip: string): boolean {
  const family = isIP(ip);
  // The zone of a link-local address names an interface of this machine.
  return family !== 0 && networks.check(ip.replace(/%.*/, ""), `ipv${family}` as "ipv4");
}

function listOf(networks: readonly string[]): BlockList {
  const list = new BlockList();
  for (const network of networks) addNetwork(list, network);
  return list;
}

/** The IPv4 addresses that IANA does not list as global, multicast, and the address of Azure's own services. */
const special4 = listOf([
  ...["0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24"],
  ...["192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24"],
  ...["224.0.0.0/4", "240.0.0.0/4", "168.63.129.16"],
]);
/** Outside of it are loopback, mapped IPv4 addresses, NAT64, private, link-local and multicast addresses. */
const global6 = listOf(["2000::/3"]);
/** Teredo and other protocols, documentation, and 6to4, which contains an IPv4 address. */
const special6 = listOf(["2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20"]);

function isPublic(ip: string): boolean {
  if (isIP(ip) === 4) return !contains(special4, ip);
  return contains(global6, ip) && !contains(special6, ip);
}
