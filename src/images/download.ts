/** Downloads an image from a public or allowed address. */
import { lookup as systemLookup } from "node:dns";
import { once } from "node:events";
import { type IncomingMessage, get as overHttp } from "node:http";
import { get as overHttps } from "node:https";
import { isIP, type LookupFunction } from "node:net";
import { messageOf, RunError, UserError } from "../errors.ts";
import type { AddressRules } from "./address-rules.ts";
import { imageLimits, requireSize } from "./image-limits.ts";

export interface DownloadOptions {
  rules: AddressRules;
  /** Resolves names; default: the system's. */
  resolve?: typeof systemLookup;
}

const maxRedirects = 5;

/** @throws UserError or RunError, whose sentences continue "the address: " */
export async function download(address: string, options: DownloadOptions): Promise<Uint8Array> {
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
