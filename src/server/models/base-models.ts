/** The base models that are served: one engine each, under one name or several. */

import { existsSync } from "node:fs";
import { basename, isAbsolute, normalize, resolve } from "node:path";
import type { Engine } from "../../backends/engine.ts";
import { HoneError, RunError, UserError } from "../../errors.ts";
import { type Fetching, type ImageLoader, imageLoader } from "../../images/load-image.ts";
import { nearest } from "../../nearest.ts";
import { createScheduler, type Scheduler } from "../queue/scheduler.ts";
import { createSampleGatherer, type SampleGatherer } from "../sampling/gather-samples.ts";
import {
  type EngineSupervisor,
  type LazyPolicy,
  lazyPolicy,
  type SupervisorOptions,
  superviseEngine,
} from "./engine-supervisor.ts";
import { createPublishedPolicies, type PublishedPolicies } from "./snapshots.ts";

export interface BaseModel {
  /** The name that is listed. */
  name: string;
  /** All names that clients may use. */
  names: readonly string[];
  /** Which model the engine holds and what it can do. */
  engine: Pick<Engine, "model" | "capabilities" | "images" | "imagesReason">;
  supervisor: EngineSupervisor;
  scheduler: Scheduler;
  gatherer: SampleGatherer;
  /** Loads images of clients; absent if the model reads only text. */
  loader: ImageLoader | undefined;
  /** The untrained base model, for sampling. */
  base: LazyPolicy;
  /** Its live models' policies, each of which samples with the snapshot that it published last. */
  published: PublishedPolicies;
}

export interface ServedModel {
  /** The name in `name=source`. Default: the source's own name, and for a folder also its last part. */
  alias?: string;
  source: string;
}

/** `my-name=./folder` or `./folder` or a hub id. */
export function readServedModel(text: string): ServedModel {
  const at = text.indexOf("=");
  return at > 0 ? { alias: text.slice(0, at), source: text.slice(at + 1) } : { source: text };
}

/** The names of a model, beginning with the listed one. */
export function namesOf({ alias, source }: ServedModel): string[] {
  const path = resolve(source);
  const isPath = existsSync(path);
  // A client on this machine can load the tokenizer from an absolute path.
  const own = isPath ? [path, source, basename(path)] : [source];
  return [...new Set(alias === undefined ? own : [alias, ...own])];
}

export function createBaseModel(
  names: readonly string[],
  engine: Engine,
  maxWaitingRows: number,
  options: SupervisorOptions & { fetching?: Fetching } = {},
): BaseModel {
  const supervisor = superviseEngine(engine, options);
  // A client on this machine can also load the tokenizer from the folder.
  const { directory } = engine.model;
  return {
    name: names[0]!,
    names: [...new Set([...names, ...(directory === "" ? [] : [directory])])],
    engine,
    supervisor,
    loader: engine.images && imageLoader(engine.images.store, options.fetching),
    scheduler: createScheduler({ maxRows: 256, maxWaitingRows }),
    gatherer: createSampleGatherer(),
    base: lazyPolicy(supervisor, (opened) => opened.createPolicy({ adapter: { kind: "none" } })),
    published: createPublishedPolicies(supervisor),
  };
}

/** The error of every request to a model whose engine is not restarted. */
export const engineDown = ({ name }: Pick<BaseModel, "name">, cause?: unknown): RunError =>
  new RunError(
    `the engine of ${name} is down and is not started again, so no request to it can succeed until the server is restarted. ${cause instanceof HoneError ? [cause.message.replace(/\.$/, ""), cause.hint].filter(Boolean).join(". ") : "Its log has the cause."}`,
    { code: "engine_down", cause },
  );

/** @throws UserError when no model is served under the name */
export function findBaseModel(models: readonly BaseModel[], name: string): BaseModel {
  const path = isAbsolute(name) ? normalize(name) : name;
  const found = models.find(({ names }) => names.includes(name) || names.includes(path));
  if (found) return found;
  const listed = models.map((model) => model.name);
  const near = nearest(
    name,
    models.flatMap(({ names }) => names),
  );
  const meant = near.length > 0 ? `. Did you mean ${near.join(" or ")}?` : "";
  throw new UserError(`this server does not serve the base model "${name}"${meant} Served: ${listed.join(", ")}`);
}

/** The model that the weights at `path` belong to. @throws UserError if another one is asked for */
export function requireBaseModel(
  models: readonly BaseModel[],
  { path, baseModel }: { path: string; baseModel: string },
  asked: string | null | undefined,
): void {
  const base = findBaseModel(models, baseModel);
  if (asked && findBaseModel(models, asked) !== base) {
    throw new UserError(`${path} belongs to the base model ${baseModel}, not to ${asked}`);
  }
}
