/** A session with a Tinker service, shared by all models of a run and kept alive by a heartbeat. */
import { type MediaStore, memoryStore } from "../../images/media-store.ts";
import type { ServiceCapabilities } from "../../tinker-protocol/handshake.ts";
import { sdkVersion } from "../../tinker-protocol/schema.ts";
import type { Connection } from "./connection.ts";

const heartbeatMs = 10_000;
/** Heartbeats that fail for longer are reported. */
const silenceLimitMs = 120_000;
/** How long the end of a run waits for the service. */
const finishTimeoutMs = 3_000;

export type TinkerSession = Awaited<ReturnType<typeof openSession>>;

export async function openSession(
  connection: Connection,
  {
    capabilities,
    name,
    onStatus,
    media = memoryStore(),
  }: {
    capabilities: ServiceCapabilities;
    name?: string | undefined;
    onStatus?: ((text: string) => void) | undefined;
    media?: MediaStore | undefined;
  },
) {
  const made = await connection.post("create_session", {
    type: "create_session",
    tags: ["hone"],
    user_metadata: {},
    sdk_version: sdkVersion,
    display_name: name || undefined,
  });
  for (const key of ["info_message", "warning_message", "error_message"]) {
    if (typeof made[key] === "string") onStatus?.(made[key]);
  }
  const id = String(made.session_id);
  let [models, samplers, lastHeard] = [0, 0, Date.now()];
  let beating = false;
  const beat = setInterval(() => {
    // The last heartbeat has not been answered so far.
    if (beating) return warn();
    beating = true;
    connection
      .post("session_heartbeat", { type: "session_heartbeat", session_id: id })
      .then(
        () => {
          lastHeard = Date.now();
        },
        (error: unknown) => warn(error instanceof Error ? `: ${error.message}` : `: ${error}`),
      )
      .finally(() => {
        beating = false;
      });
  }, heartbeatMs);
  function warn(why = ""): void {
    const silent = Date.now() - lastHeard;
    if (silent < silenceLimitMs) return;
    onStatus?.(`the Tinker service has not answered a heartbeat for ${Math.round(silent / 1000)} s${why}`);
  }
  // The process may end between heartbeats.
  beat.unref();
  return {
    id,
    connection,
    /** The service's additions to the protocol. */
    capabilities,
    /** Holds the images of prompts. */
    media,
    /** Counts: losses that the service computed by name in one pass, other losses (two passes), and deleted checkpoints. */
    counts: { namedLosses: 0, twoPassLosses: 0, deletedCheckpoints: 0 },
    /** Models and samplers are numbered from 0. */
    nextModel: () => models++,
    nextSampler: () => samplers++,
    async close(): Promise<void> {
      clearInterval(beat);
      // The service may have ended already.
      const finish = { reason: { type: "success" }, detail: null };
      await connection.post(`sessions/${id}/finish`, finish, AbortSignal.timeout(finishTimeoutMs)).catch(() => {});
    },
  };
}
