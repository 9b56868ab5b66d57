/** The sessions of clients, and their models in memory. */
import { randomUUID } from "node:crypto";
import { z } from "zod";
import { clientMetadata, clientName, clientTags, readBody } from "../bodies.ts";
import type { ServerContext } from "../context.ts";
import { HttpError } from "../http-error.ts";
import { createLiveModel, isEvictable, type LiveModel, modelId } from "../models/live-models.ts";
import { type SessionRecord, sessionRecord } from "./records.ts";

const createSchema = z.looseObject({
  tags: clientTags.nullish(),
  user_metadata: clientMetadata.nullish(),
  display_name: clientName.nullish(),
  project_id: clientName.nullish(),
});

/** Models that were used since then stay in memory, regardless of their number. */
const evictAfterMs = 30_000;

export type Sessions = ReturnType<typeof createSessions>;

export function createSessions(context: ServerContext) {
  const { store, log } = context;
  const live = new Map<string, LiveModel>();
  const seen = new Map<string, number>();
  const nowMs = () => context.now().getTime();
  const started = nowMs();

  const silentMs = (id: string) => nowMs() - (seen.get(id) ?? started);
  const unusedMs = ({ record }: LiveModel) => nowMs() - Date.parse(record.lastRequestAt);

  /** Whether the session is finished or has been silent for long. */
  const isOver = (session: SessionRecord) =>
    session.finished !== null || silentMs(session.id) >= context.sessionTimeoutMs;

  const modelsOf = (session: SessionRecord): LiveModel[] =>
    session.models.flatMap(({ number }) => live.get(modelId(session.id, number)) ?? []);

  async function closeModels(session: SessionRecord, why: string): Promise<void> {
    for (const model of modelsOf(session)) {
      live.delete(model.id);
      if (!model.open) continue;
      await model.close();
      const lost = model.record.dirty || model.record.unstepped ? "; unsaved changes are lost" : "";
      log.info(model.id, `closed: ${why}${lost}`);
    }
  }

  /** @throws HttpError 404 when it does not exist */
  function require(id: unknown): SessionRecord {
    const session = typeof id === "string" ? store.sessions.get(id) : undefined;
    if (!session) throw new HttpError(404, `there is no session ${JSON.stringify(id)}`);
    return session;
  }

  function findModel(id: string): LiveModel | undefined {
    const existing = live.get(id);
    if (existing) return existing;
    const [, sessionId = "", number] = /^(.+):train:(\d+)$/.exec(id) ?? [];
    const session = store.sessions.get(sessionId);
    const record = session?.models.find((model) => model.number === Number(number));
    if (!session || !record) return undefined;
    const model = createLiveModel(context, session, record);
    live.set(id, model);
    return model;
  }

  return {
    create(body: unknown): SessionRecord {
      const { tags, user_metadata, display_name, project_id } = readBody(createSchema, body);
      const session = sessionRecord.parse({
        id: randomUUID(),
        createdAt: context.now().toISOString(),
        tags: tags ?? [],
        userMetadata: user_metadata,
        displayName: display_name,
        projectId: project_id,
      });
      store.saveSession(session);
      seen.set(session.id, nowMs());
      log.info(session.id, `session begins${display_name ? ` ("${display_name}")` : ""}`);
      return session;
    },
    require,
    /** Notes that the session is alive. @throws HttpError 404 when it does not exist, 410 when it is finished */
    touch(id: unknown): SessionRecord {
      const session = require(id);
      if (session.finished)
        throw new HttpError(410, `the session ${session.id} is finished: ${session.finished.reason}`);
      seen.set(session.id, nowMs());
      return session;
    },
    /** The first reason counts. */
    async finish(id: string, reason: string, detail: string | null): Promise<void> {
      const session = require(id);
      if (session.finished) return;
      session.finished = { reason, detail, at: context.now().toISOString() };
      store.saveSession(session);
      seen.delete(id);
      log.info(id, `session finished: ${reason}${detail ? ` (${detail})` : ""}`);
      await closeModels(session, "its session is finished");
    },
    findModel,
    /** @throws HttpError 404 when it does not exist */
    requireModel(id: unknown): LiveModel {
      const model = typeof id === "string" ? findModel(id) : undefined;
      if (!model) throw new HttpError(404, `there is no model ${JSON.stringify(id)}`);
      return model;
    },
    /** Undefined for a model that has not been used since the server started. */
    liveModel: (id: string) => live.get(id),
    /** For a model that could not be created. */
    forgetModel: (id: string) => void live.delete(id),
    /** Frees the memory of sessions whose clients have been silent for long. */
    async closeIdle(): Promise<void> {
      for (const session of store.sessions.values()) {
        if (session.finished || !isOver(session)) continue;
        if (modelsOf(session).some((model) => !model.sequencer.idle)) continue;
        const minutes = Math.round(silentMs(session.id) / 60_000);
        await closeModels(session, `no request came from its client for ${minutes} minutes`);
      }
    },
    /** Moves unused models to disk, except for the newest few. */
    async evictIdle(): Promise<void> {
      const unused = [...live.values()]
        .filter((model) => isEvictable(model) && unusedMs(model) >= evictAfterMs)
        .sort((left, right) => unusedMs(left) - unusedMs(right));
      for (const model of unused.slice(context.maxIdleModels)) {
        if (!(await model.evict())) continue;
        context.metrics.add("hone_evicted_models_total", {});
        log.info(model.id, "moved to disk: more models are idle than --max-idle-models keeps in memory");
      }
    },
    isOver,
    get counts() {
      const active = [...store.sessions.values()].filter((session) => !isOver(session)).length;
      return { active, models: [...live.values()].filter(({ open }) => open).length };
    },
  };
}
