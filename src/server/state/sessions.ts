/** The sessions of clients, and their models in memory. */
import { randomUUID } from "node:crypto";
import { z } from "zod";
import { clientMetadata, clientName, clientTags } from "../client-names.ts";
import type { ServerContext } from "../context.ts";
import { HttpError } from "../http-error.ts";
import { createLiveModel, isEvictable, type LiveModel, modelId } from "../models/live-models.ts";
import type { SessionRecord } from "./records.ts";
import { readBody } from "./saving.ts";

const createSchema = z.looseObject({
  tags: clientTags.nullish(),
  user_metadata: clientMetadata.nullish(),
  display_name: clientName.nullish(),
  project_id: clientName.nullish(),
});

export interface Sessions {
  create(body: unknown): SessionRecord;
  /** @throws HttpError 404 when it does not exist */
  require(id: unknown): SessionRecord;
  /** Notes that the session is alive. @throws HttpError 404 when it does not exist, 410 when it is finished */
  touch(id: unknown): SessionRecord;
  /** The first reason counts. */
  finish(id: string, reason: string, detail: string | null): Promise<void>;
  /** Undefined if there is no such model. */
  findModel(id: string): LiveModel | undefined;
  /** @throws HttpError 404 when it does not exist */
  requireModel(id: unknown): LiveModel;
  /** Undefined for a model that has not been used since the server started. */
  liveModel(id: string): LiveModel | undefined;
  /** For a model that could not be created. */
  forgetModel(id: string): void;
  /** Frees the memory of sessions without a sign of life. */
  closeIdle(): Promise<void>;
  /** Moves unused models to disk, except for the newest few. */
  evictIdle(): Promise<void>;
  /** Whether the session is over or has been silent for long. */
  isOver(session: SessionRecord): boolean;
  readonly counts: { active: number; models: number };
}

/** Models that were used since then stay in memory, regardless of their number. */
const evictAfterMs = 30_000;

export function createSessions(context: ServerContext): Sessions {
  const { store, log } = context;
  const live = new Map<string, LiveModel>();
  const seen = new Map<string, number>();
  const started = context.now().getTime();
  const silentMs = (id: string) => context.now().getTime() - (seen.get(id) ?? started);

  const unusedMs = ({ record }: LiveModel) => context.now().getTime() - Date.parse(record.lastRequestAt);

  const modelsOf = (session: SessionRecord): LiveModel[] =>
    session.models.flatMap(({ number }) => live.get(modelId(session.id, number)) ?? []);

  async function closeModels(session: SessionRecord, why: string): Promise<void> {
    for (const model of modelsOf(session)) {
      live.delete(model.id);
      if (!model.open) continue;
      await model.close();
      log.info(
        model.id,
        `closed: ${why}${model.record.dirty || model.record.unstepped ? "; unsaved changes are lost" : ""}`,
      );
    }
  }

  const sessions: Sessions = {
    create(body) {
      const { tags, user_metadata, display_name, project_id } = readBody(createSchema, body);
      const session: SessionRecord = {
        id: randomUUID(),
        createdAt: context.now().toISOString(),
        tags: tags ?? [],
        userMetadata: user_metadata ?? null,
        displayName: display_name ?? null,
        projectId: project_id ?? null,
        finished: null,
        models: [],
        samplers: [],
        inflight: {},
      };
      store.saveSession(session);
      seen.set(session.id, context.now().getTime());
      log.info(session.id, `session begins${display_name ? ` ("${display_name}")` : ""}`);
      return session;
    },
    require(id) {
      const session = typeof id === "string" ? store.sessions.get(id) : undefined;
      if (!session) throw new HttpError(404, `there is no session ${JSON.stringify(id)}`);
      return session;
    },
    touch(id) {
      const session = sessions.require(id);
      if (session.finished)
        throw new HttpError(410, `the session ${session.id} is finished: ${session.finished.reason}`);
      seen.set(session.id, context.now().getTime());
      return session;
    },
    async finish(id, reason, detail) {
      const session = sessions.require(id);
      if (session.finished) return;
      session.finished = { reason, detail, at: context.now().toISOString() };
      store.saveSession(session);
      seen.delete(id);
      log.info(id, `session finished: ${reason}${detail ? ` (${detail})` : ""}`);
      await closeModels(session, "its session is finished");
    },
    findModel(id) {
      const existing = live.get(id);
      if (existing) return existing;
      const [, sessionId = "", number] = /^(.+):train:(\d+)$/.exec(id) ?? [];
      const session = store.sessions.get(sessionId);
      const record = session?.models.find((model) => model.number === Number(number));
      if (!session || !record) return undefined;
      const model = createLiveModel(context, session, record);
      live.set(id, model);
      return model;
    },
    requireModel(id) {
      const model = typeof id === "string" ? sessions.findModel(id) : undefined;
      if (!model) throw new HttpError(404, `there is no model ${JSON.stringify(id)}`);
      return model;
    },
    liveModel: (id) => live.get(id),
    forgetModel: (id) => void live.delete(id),
    async closeIdle() {
      for (const session of store.sessions.values()) {
        if (session.finished || silentMs(session.id) < context.sessionTimeoutMs) continue;
        if (modelsOf(session).some((model) => !model.sequencer.idle)) continue;
        await closeModels(
          session,
          `no request came from its client for ${Math.round(silentMs(session.id) / 60_000)} minutes`,
        );
      }
    },
    async evictIdle() {
      const unused = [...live.values()]
        .filter((model) => isEvictable(model) && unusedMs(model) >= evictAfterMs)
        .sort((left, right) => unusedMs(left) - unusedMs(right));
      for (const model of unused.slice(context.maxIdleModels)) {
        if (!(await model.evict())) continue;
        context.metrics.add("hone_evicted_models_total", {});
        log.info(model.id, "moved to disk: more models are idle than --max-idle-models keeps in memory");
      }
    },
    isOver: (session) => session.finished !== null || silentMs(session.id) >= context.sessionTimeoutMs,
    get counts() {
      const active = [...store.sessions.values()].filter((session) => !sessions.isOver(session)).length;
      return { active, models: [...live.values()].filter(({ open }) => open).length };
    },
  };
  return sessions;
}
