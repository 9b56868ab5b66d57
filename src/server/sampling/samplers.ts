/** Sampling sessions: the weights that requests sample from, fixed when the session is created. */
import { z } from "zod";
import type { Policy } from "../../backends/engine.ts";
import { UserError } from "../../errors.ts";
import { readBody } from "../bodies.ts";
import type { ServerContext } from "../context.ts";
import { HttpError } from "../http-error.ts";
import { type BaseModel, findBaseModel, requireBaseModel } from "../models/base-models.ts";
import { createSnapshotPool, type SnapshotUse } from "../models/snapshots.ts";
import { requireCheckpoint } from "../state/checkpoints.ts";
import { type SamplerRecord, type SessionRecord, type Snapshot, samplerRecord } from "../state/records.ts";
import type { Sessions } from "../state/sessions.ts";

const createSchema = z.looseObject({
  session_id: z.string(),
  sampling_session_seq_id: z.int().min(0),
  base_model: z.string().nullish(),
  model_path: z.string().nullish(),
});

export const samplerId = (session: string, number: number): string => `${session}:sample:${number}`;

/**
 * How long unnamed weights are kept after their last use; the newest of a session are always kept. When a session has more
 * than `manyUnnamed`, the older ones are dropped sooner, so that a fast trainer does not fill the disk.
 */
const keepUnusedMs = 3_600_000;
const keepOfManyMs = 60_000;
const manyUnnamed = 16;
/** How many names of dropped weights are remembered. */
const maxGone = 512;

export function createSamplers(context: ServerContext, sessions: Sessions) {
  const { store } = context;
  const pool = createSnapshotPool(store);
  const used = new Map<string, number>();
  const started = context.now().getTime();

  function add(session: SessionRecord, sampler: z.input<typeof samplerRecord>): string {
    const id = samplerId(session.id, sampler.number);
    if (session.samplers.some(({ number }) => number === sampler.number)) return id;
    session.samplers.push(samplerRecord.parse(sampler));
    store.saveSession(session);
    used.set(id, context.now().getTime());
    return id;
  }

  /** @throws HttpError 404 */
  function require(id: unknown): { session: SessionRecord; sampler: SamplerRecord; base: BaseModel } {
    const [, sessionId = "", number] = (typeof id === "string" && /^(.+):sample:(\d+)$/.exec(id)) || [];
    const session = store.sessions.get(sessionId);
    const sampler = session?.samplers.find((each) => each.number === Number(number));
    if (!session || !sampler) throw new HttpError(404, `there is no sampling session ${JSON.stringify(id)}`);
    return { session, sampler, base: findBaseModel(context.models, sampler.baseModel) };
  }

  return {
    /** Idempotent by (session, number). @throws UserError for an unknown model or checkpoint */
    create(body: unknown): string {
      const { session_id, sampling_session_seq_id: number, base_model, model_path } = readBody(createSchema, body);
      const session = sessions.touch(session_id);
      if (session.samplers.some((sampler) => sampler.number === number)) return samplerId(session.id, number);
      if (!model_path) {
        if (!base_model) throw new UserError("either base_model or model_path must be given");
        findBaseModel(context.models, base_model);
        return add(session, { number, baseModel: base_model, weights: "base" });
      }
      const { data, adapter, baseModel } = requireCheckpoint(context, model_path);
      requireBaseModel(context.models, { path: model_path, baseModel }, base_model);
      return add(session, { number, baseModel, modelPath: model_path, weights: { data, adapter } });
    },
    add,
    require,
    /** Returns a number for a copy of the sampler's client, from 1. */
    join(id: unknown): number {
      const { session, sampler } = require(id);
      sampler.clients++;
      store.saveSession(session);
      return sampler.clients;
    },
    /** Runs `use` with the policy that the sampler samples from. */
    async use<T>(id: string, how: SnapshotUse, use: (policy: Policy) => Promise<T>): Promise<T> {
      const { session, sampler, base } = require(id);
      used.set(id, context.now().getTime());
      const { weights } = sampler;
      if (weights === "base") return use(await base.base.get());
      const snapshot = weights !== "gone" && "inflight" in weights ? session.inflight[weights.inflight] : weights;
      if (!snapshot || snapshot === "gone") {
        throw new UserError(
          `the weights of ${id} were dropped: unnamed weights are dropped when newer ones exist and they were not used for an hour (a minute if there are many), or when their session is over. Name weights that must stay: save_weights_for_sampler(name)`,
        );
      }
      return pool.use(base, snapshot, how, use);
    },
    /** The same for the weights of a checkpoint, without a sampling session. */
    useSnapshot: <T>(
      base: BaseModel,
      snapshot: Snapshot,
      as: SnapshotUse,
      use: (policy: Policy) => Promise<T>,
    ): Promise<T> => pool.use(base, snapshot, as, use),
    /** Drops old unnamed weights. Returns the folders in use. */
    sweep(): ReadonlySet<string> {
      for (const session of store.sessions.values()) {
        const over = sessions.isOver(session);
        const unnamed = session.samplers
          .filter(({ weights, modelPath }) => weights !== "base" && weights !== "gone" && modelPath === null)
          .sort((left, right) => right.number - left.number);
        const dropped = unnamed.filter(({ number }, newer) => {
          const silent = context.now().getTime() - (used.get(samplerId(session.id, number)) ?? started);
          if (over) return session.finished !== null || silent > keepUnusedMs;
          return newer > 0 && silent > (newer < manyUnnamed ? keepUnusedMs : keepOfManyMs);
        });
        if (dropped.length === 0) continue;
        for (const sampler of dropped) {
          sampler.weights = "gone";
          used.delete(samplerId(session.id, sampler.number));
        }
        const gone = session.samplers.filter(({ weights }) => weights === "gone");
        const forgotten = new Set(gone.slice(0, Math.max(0, gone.length - maxGone)));
        session.samplers = session.samplers.filter((sampler) => !forgotten.has(sampler));
        if (over) session.inflight = {};
        store.saveSession(session);
      }
      return pool.inUse;
    },
    get open() {
      return pool.size;
    },
  };
}
