/** Sessions: who is there, with which models, and who has gone. */
import { randomUUID } from "node:crypto";
import { z } from "zod";
import { clientMetadata, clientName, clientTags } from "./client-names.ts";
import type { ServerContext } from "./context.ts";
import { HttpError } from "./http-error.ts";
import { createLiveModel, isEvictable, type LiveModel, modelId } from "./live-models.ts";
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
  /** @throws HttpError 404 for one that never was, 410 for one that is over */
  require(id: unknown): SessionRecord;
  /** The same, and notes that it is alive. */
  touch(id: unknown): SessionRecord;
  /** First reason wins. */
  finish(id: string, reason: string, detail: string | null): Promise<void>;
  /** Undefined for a model that there never was. */
  findModel(id: string): LiveModel | undefined;
  /** Undefined for a model that has not been used since the server started. */
  liveModel(id: string): LiveModel | undefined;
  /** Of a model that could not be made. */
  forgetModel(id: string): void;
  /** Gives back the memory of sessions that nobody has been heard of for long. */
  closeIdle(): Promise<void>;
  /** Moves models that no request has come for to disk, but for the newest few. */
  evictIdle(): Promise<void>;
  /** Whether the session is over or has been silent for long. */
  isOver(session: SessionRecord): boolean;
  readonly counts: { active: number; models: number };
}

/** A model that is used this often stays in memory, however many there are. */
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
        `closed: ${why}${model.record.dirty || model.record.unstepped ? "; what was not saved is lost" : ""}`,
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
      const parts = /^(.+):train:(\d+)$/.exec(id);
      const session = parts ? store.sessions.get(parts[1]!) : undefined;
      const record = session?.models.find(({ number }) => number === Number(parts![2]));
      if (!session || !record) return undefined;
      const model = createLiveModel(context, session, record);
      live.set(id, model);
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
          `its client was not heard of for ${Math.round(silentMs(session.id) / 60_000)} minutes`,
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
