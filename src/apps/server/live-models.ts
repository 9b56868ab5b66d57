/** Models that are being trained: each a policy of an engine, whose operations run in the order of their sequence ids. */
import type { Policy } from "../../backends/engine.ts";
import { EngineDied } from "../../backends/engine-parts.ts";
import { RunError, UserError } from "../../base/errors.ts";
import { engineDown, findBaseModel, lazyPolicy } from "./base-models.ts";
import type { ServerContext } from "./context.ts";
import type { ModelRecord, SessionRecord } from "./store.ts";

export const modelId = (session: string, number: number): string => `${session}:train:${number}`;
export const sessionOf = (model: string): string => model.split(":train:")[0]!;

export type LiveModel = ReturnType<typeof createLiveModel>;

export function createLiveModel(context: ServerContext, session: SessionRecord, record: ModelRecord) {
  const id = modelId(session.id, record.number);
  const base = findBaseModel(context.models, record.baseModel);
  const policy = lazyPolicy(
    base.supervisor,
    async (engine) => {
      const opened = await engine.createPolicy({ adapter: record.adapter });
      const { state } = record;
      if (state) {
        const folder = context.store.folderOf(state.data);
        await opened.sampler.load(await opened.learner.loadState(folder, { optimizer: state.optimizer }));
      }
      return opened;
    },
    {
      onLost() {
        if (model.gradient === "some") model.gradient = "lost";
      },
      close: base.published.close,
    },
  );

  const sequencer = createSequencer({
    // The requests of lost weights all fail, and which of them were answered is not on disk.
    first: record.dirty ? null : record.nextSeq,
    gapMs: context.gapMs,
    capacity: context.maxWaitingOperations,
    onGap: (missing) =>
      context.log.warn(id, `waiting up to ${context.gapMs / 1000} s for request ${missing}, which has not arrived`),
    onSkip(from, to) {
      context.metrics.add("hone_skipped_sequence_ids_total", {}, to - from);
      context.log.warn(id, `request ${from} has not arrived for ${context.gapMs / 1000} s: continuing with ${to}`);
    },
  });

  /**
   * Runs a job on the model's policy, alone on the engine.
   * @throws UserError when the model's weights were lost; RunError, with what is left, when the engine died
   */
  const compute = <T>(job: (policy: Policy) => Promise<T>): Promise<T> =>
    base.scheduler.train(id, async () => {
      if (!policy.open && record.untrainable) {
        throw new UserError(`${id} holds copied checkpoints and cannot be trained`);
      }
      const lost = () => ({ code: "state_lost", hint: recoveryOf(record) });
      if (!policy.open && record.dirty) throw new UserError(lostText(id), lost());
      try {
        return await job(await policy.get());
      } catch (cause) {
        if (!(cause instanceof EngineDied)) throw cause;
        if (base.supervisor.lost) throw engineDown(base, cause);
        const text = "the engine died during this request";
        throw record.dirty
          ? new RunError(`${text}, and ${lostText(id)}`, { ...lost(), cause })
          : new RunError(`${text}; ${id} continues from its last save`, {
              ...lost(),
              hint: "Send the request again.",
              cause,
            });
      }
    });

  const model = {
    id,
    session,
    record,
    base,
    /** What has been added to the gradient since the last step; `lost`: a failure dropped it. */
    gradient: (record.unstepped ? "lost" : "none") as "none" | "some" | "lost",
    sequencer,
    compute,
    /** Records, also on disk, that the weights differ from the saved state. */
    markDirty(): void {
      if (record.dirty) return;
      record.dirty = true;
      context.store.saveSession(session);
    },
    /** Records the state of the gradient; on disk too, because a restart would find the weights without it. */
    markGradient(gradient: "none" | "some" | "lost"): void {
      model.gradient = gradient;
      const unstepped = gradient !== "none";
      // If the weights are lost anyway, nothing has to be written.
      if (record.dirty || record.unstepped === unstepped) return;
      record.unstepped = unstepped;
      context.store.saveSession(session);
    },
    /** Records, also on disk, which state the model now has. */
    markState(state: NonNullable<ModelRecord["state"]>): void {
      record.state = state;
      record.dirty = false;
      record.unstepped = model.gradient !== "none";
      record.nextSeq = sequencer.next;
      context.store.saveSession(session);
    },
    /** Records, also on disk, that the request with this id has ended: after a restart it is not waited for. */
    markEnded(seq: number): void {
      // If the weights are lost anyway, nothing has to be written.
      if (record.dirty || seq < record.nextSeq) return;
      record.nextSeq = seq + 1;
      context.store.saveSession(session);
    },
    /** Frees the policy's memory; what was not saved is lost. */
    close: policy.close,
    /** Frees the memory without a loss: unsaved weights wait on disk for their next use. False if the model is in use. */
    async evict(): Promise<boolean> {
      if (record.dirty) {
        const { data, folder } = context.store.newData();
        try {
          await compute((held) => held.learner.saveState(folder, { optimizer: true }));
        } catch (error) {
          context.store.discard(data);
          throw error;
        }
        if (!policy.open || !sequencer.idle || model.gradient !== "none") {
          context.store.discard(data);
          return false;
        }
        model.markState({ data, optimizer: true });
      }
      await policy.close();
      return true;
    },
    get open() {
      return policy.open;
    },
  };
  return model;
}

/** A gradient is not saved with the weights, so a model that has one stays. */
export const isEvictable = (model: LiveModel): boolean =>
  model.open && model.sequencer.idle && model.gradient === "none";

const lostText = (id: string) =>
  `the weights of ${id} are gone: after they had changed, the server or its engine restarted, or the idle session was closed`;

const recoveryOf = ({ lastSaved }: ModelRecord) =>
  lastSaved
    ? `Create a training client from its last checkpoint: create_training_client_from_state_with_optimizer("${lastSaved}")`
    : "It was never saved: create a new training client.";

// Runs a model's operations one at a time in the order of their sequence ids, regardless of the order of arrival.

export interface SequencerOptions {
  /** The id that runs first; null: the first to arrive. */
  first: number | null;
  /** How long to wait for a missing id while later ones are waiting. Then all ids before the next one are skipped. */
  gapMs: number;
  /** Called when a wait for a missing id begins. */
  onGap?: (missing: number) => void;
  /** Called on each skip. */
  onSkip?: (from: number, to: number) => void;
  /** The most waiting operations. At the limit, only the next id is accepted. */
  capacity: number;
}

export function createSequencer({ first, gapMs, onGap, onSkip, capacity }: SequencerOptions) {
  const waiting = new Map<number, () => Promise<void>>();
  let next = first ?? 1;
  let begun = first !== null;
  /** Missing ids that will not arrive. */
  const lost = new Set<number>();
  let running = false;
  let gap: { missing: number; until: number; timer: NodeJS.Timeout } | undefined;

  function advance(): void {
    if (running || waiting.size === 0) return;
    while (lost.delete(next)) next++;
    const work = waiting.get(next);
    if (work) {
      clearTimeout(gap?.timer);
      gap = undefined;
      waiting.delete(next);
      next++;
      running = true;
      void work().finally(() => {
        running = false;
        advance();
      });
      return;
    }
    // Requests that arrive meanwhile do not extend the wait.
    if (gap) {
      gap.missing = next;
      return;
    }
    const timer = setTimeout(() => {
      const from = next;
      next = Math.min(...waiting.keys());
      gap = undefined;
      onSkip?.(from, next);
      advance();
    }, gapMs);
    timer.unref();
    gap = { missing: next, until: performance.now() + gapMs, timer };
    onGap?.(next);
  }

  return {
    /** Whether an operation with this id would be accepted now. */
    hasRoom: (seq: number) => seq <= next || waiting.size < capacity,
    /**
     * Runs `work` when its turn has come.
     * @throws UserError when the id's turn has been skipped, or has been taken
     */
    async run<T>(seq: number, work: () => Promise<T>): Promise<T> {
      if (!begun) next = seq;
      begun = true;
      lost.delete(seq);
      const hint = "The requests of one training client have consecutive ids.";
      if (seq < next) throw new UserError(`request ${seq} comes too late: the model is at request ${next}`, { hint });
      if (waiting.has(seq)) throw new UserError(`another request with the id ${seq} is already waiting`, { hint });
      return new Promise<T>((resolve, reject) => {
        waiting.set(seq, () => work().then(resolve, reject));
        advance();
      });
    },
    /** Does not wait for an id: its client knows that the request was lost. */
    lose(seq: number): void {
      if (seq < next || seq >= next + capacity || waiting.has(seq)) return;
      lost.add(seq);
      advance();
    },
    /** The id that runs next. */
    get next() {
      return next;
    },
    /** The id after all others so far, for a request without one. */
    get free() {
      return Math.max(next, ...[...waiting.keys()].map((seq) => seq + 1));
    },
    /** The missing id that all others wait for, and when it is skipped, in milliseconds of `performance.now()`. */
    get gap(): { missing: number; until: number } | undefined {
      return gap;
    },
    /** Nothing runs or waits. */
    get idle() {
      return !running && waiting.size === 0;
    },
  };
}
