/**
 * Models that are being trained: each a policy of an engine, opened when it is first needed, whose operations run in
 * the order of their ids.
 */
import type { Policy } from "../../backends/engine.ts";
import { EngineDied } from "../../backends/engine-died.ts";
import { RunError, UserError } from "../../errors.ts";
import type { ServerContext } from "../context.ts";
import { createSequencer, type Sequencer } from "../queue/sequencer.ts";
import type { ModelRecord, SessionRecord } from "../state/records.ts";
import { type BaseModel, engineDown, findBaseModel } from "./base-models.ts";
import { lazyPolicy } from "./engine-keeper.ts";

export interface LiveModel {
  readonly id: string;
  readonly session: SessionRecord;
  readonly record: ModelRecord;
  readonly base: BaseModel;
  readonly sequencer: Sequencer;
  /** What has been added to the gradient since the last step; `lost`: a failure took it with it. */
  gradient: "none" | "some" | "lost";
  /**
   * Runs a job on the model's policy, alone on the engine.
   * @throws UserError when the model's weights were lost; RunError, with what is left, when the engine died
   */
  compute<T>(job: (policy: Policy) => Promise<T>): Promise<T>;
  /** Records, also on disk, that the weights differ from the saved state. */
  markDirty(): void;
  /** Says what the gradient is now; on disk too, where a restart would find the weights without it. */
  markGradient(gradient: LiveModel["gradient"]): void;
  /** Says, on disk too, which state the model now has. `nextSeq` is the id that comes after it. */
  markState(state: NonNullable<ModelRecord["state"]>): void;
  /** Gives the policy's memory back; what was not saved is lost. */
  close(): Promise<void>;
  /** The same without a loss: unsaved weights go to disk, and are loaded when they are next used. False: it is in use. */
  evict(): Promise<boolean>;
  readonly open: boolean;
}

export const modelId = (session: string, number: number): string => `${session}:train:${number}`;

export function createLiveModel(context: ServerContext, session: SessionRecord, record: ModelRecord): LiveModel {
  const id = modelId(session.id, record.number);
  const base = findBaseModel(context.models, record.baseModel);
  const policy = lazyPolicy(
    base.keeper,
    async (engine) => {
      const opened = await engine.createPolicy({ adapter: record.adapter });
      const { state } = record;
      if (state)
        await opened.sampler.load(
          await opened.learner.loadState(context.store.folderOf(state.data), { optimizer: state.optimizer }),
        );
      return opened;
    },
    {
      onLost() {
        if (model.gradient === "some") model.gradient = "lost";
      },
      close: base.standIns.close,
    },
  );

  function requireWeights(): void {
    if (record.untrainable) throw new UserError(`${id} holds copied checkpoints and cannot be trained`);
    if (record.dirty) {
      throw new UserError(lostText(id), { code: "state_lost", hint: recoveryOf(record) });
    }
  }

  const model: LiveModel = {
    id,
    session,
    record,
    base,
    gradient: record.unstepped ? "lost" : "none",
    sequencer: createSequencer({
      first: record.nextSeq,
      gapMs: context.gapMs,
      capacity: context.maxWaitingOperations,
      onGap: (missing) =>
        context.log.warn(id, `waiting up to ${context.gapMs / 1000} s for request ${missing}, which has not arrived`),
      onSkip(from, to) {
        context.metrics.add("hone_skipped_sequence_ids_total", {}, to - from);
        context.log.warn(id, `request ${from} has not arrived for ${context.gapMs / 1000} s: continuing with ${to}`);
      },
    }),
    compute: (job) =>
      base.scheduler.train(id, async () => {
        if (!policy.open) requireWeights();
        try {
          return await job(await policy.get());
        } catch (error) {
          if (!(error instanceof EngineDied)) throw error;
          if (base.keeper.lost) throw engineDown(base, error);
          const text = "the engine died during this request";
          throw record.dirty
            ? new RunError(`${text}, and ${lostText(id)}`, {
                code: "state_lost",
                hint: recoveryOf(record),
                cause: error,
              })
            : new RunError(`${text}; ${id} is as it was last saved`, {
                code: "state_lost",
                hint: "Send the request again.",
                cause: error,
              });
        }
      }),
    markDirty() {
      if (record.dirty) return;
      record.dirty = true;
      context.store.saveSession(session);
    },
    markGradient(gradient) {
      model.gradient = gradient;
      const unstepped = gradient !== "none";
      // Where the weights are lost in any case, nothing has to be written.
      if (record.dirty || record.unstepped === unstepped) return;
      record.unstepped = unstepped;
      context.store.saveSession(session);
    },
    markState(state) {
      record.state = state;
      record.dirty = false;
      record.unstepped = model.gradient !== "none";
      record.nextSeq = model.sequencer.next;
      context.store.saveSession(session);
    },
    close: policy.close,
    async evict() {
      if (record.dirty) {
        const { data, folder } = context.store.newData();
        try {
          await model.compute((held) => held.learner.saveState(folder, { optimizer: true }));
        } catch (error) {
          context.store.discard(data);
          throw error;
        }
        if (!isEvictable(model)) {
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
export const isEvictable = ({ open, sequencer, gradient }: LiveModel): boolean =>
  open && sequencer.idle && gradient === "none";

const lostText = (id: string) =>
  `the weights of ${id} are gone: after they had changed, the server or its engine restarted, or the idle session was closed`;

const recoveryOf = ({ lastSaved }: ModelRecord) =>
  lastSaved
    ? `Create a training client from its last checkpoint: create_training_client_from_state_with_optimizer("${lastSaved}")`
    : "It was never saved: create a new training client.";
