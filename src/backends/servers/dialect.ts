/** How inference servers differ: paths, request bodies, replies. */
import { isObject } from "../../base/values.ts";
import type { Sample, SampleRequest, Sampler } from "../engine.ts";
import type { ImageReading, ServedRequest } from "./requests.ts";

// The differences between inference servers: paths, request bodies, replies.

export interface Dialect {
  path: string;
  /** Absent if requests cannot contain images. */
  images?: ImageReading;
  /** The kind of log-probabilities by default. */
  logprobs: Sampler["logprobs"];
  /**
   * @param model the name of the model or adapter; undefined for the server's only model
   * @param id the id of this request at the server
   * @returns the request's body
   */
  write(request: ServedRequest, model: string | undefined, stream: boolean, id: string): Record<string, unknown>;
  /** @throws MissingTokens when the answer has no token ids or log-probabilities */
  read(body: Record<string, unknown>, request: SampleRequest): ServerReply;
  /** @returns a reader for the stream of one reply, which returns the new tokens of each event */
  openStream(request: SampleRequest): (event: Record<string, unknown>) => ServerReply;
  /** The request that ends other requests, which then return their tokens so far. Absent if the server has no such route. */
  abort?(ids: readonly string[]): { path: string; body: Record<string, unknown> };
}

export interface ServerReply
  extends Pick<Sample, "tokens" | "logprobs" | "routing" | "promptLogprobs" | "topLogprobs" | "topPromptLogprobs"> {
  /** Undefined while the reply is streamed. */
  stopReason: Sample["stopReason"] | undefined;
  /** The version of the weights for each range of tokens, in order and without gaps; undefined if not reported. */
  versions: VersionSpan[] | undefined;
}

/** The tokens up to `end`. */
export interface VersionSpan {
  version: number;
  end: number;
}

/** A server's answer lacks token ids or log-probabilities, which training needs. */
export class MissingTokens extends Error {
  override name = "MissingTokens";
}

/**
 * Reads the versions from the labels of the weights. Undefined if any label is not a number.
 *
 * @param spans `[{ version: "3", start: 0, end: 17 }, ...]`
 */
export function readVersions(spans: unknown): VersionSpan[] | undefined {
  if (!Array.isArray(spans) || spans.length === 0 || !spans.every(isObject)) return undefined;
  const versions = spans.map(({ version, end }) => ({ version: toVersion(version), end: Number(end) }));
  return versions.every((span): span is VersionSpan => span.version !== undefined) ? versions : undefined;
}

export const toVersion = (label: unknown): number | undefined =>
  (typeof label === "number" || (typeof label === "string" && label.trim() !== "")) && Number.isInteger(Number(label))
    ? Number(label)
    : undefined;

/** @throws MissingTokens for null, JSON's form of NaN; as 0 it would mean a probability of 1 */
export function toLogprobs(given: readonly unknown[], where: string): Float32Array {
  if (!given.every((logprob) => typeof logprob === "number")) {
    throw new MissingTokens(`${where} holds ${JSON.stringify(given.find((logprob) => typeof logprob !== "number"))}`);
  }
  return Float32Array.from(given);
}

export function toStopReason(reason: string): Sample["stopReason"] {
  if (reason === "stop" || reason === "length") return reason;
  if (reason === "abort") return "aborted";
  throw new Error(`the inference server ended a reply for the unknown reason ${JSON.stringify(reason)}`);
}
