/** A session with a Tinker service: what all its models share, kept alive by a heartbeat. */
import type { Connection } from "./connection.ts";
import { sdkVersion } from "./connection.ts";

interface Counts {
  /** Gradients of losses that ran by their names, in one pass, and of others, which take two. */
  namedLosses: number;
  twoPassLosses: number;
  /** Checkpoints deleted from the service. */
  deletedCheckpoints: number;
}

export interface TinkerSession {
  id: string;
  connection: Connection;
  /** Numbers of models and of samplers count from 0. */
  nextModel(): number;
  nextSampler(): number;
  /** The service is Hone's own and has what Hone adds to the protocol. */
  isHone: boolean;
  /** What was done so far. */
  counts: Counts;
  close(): Promise<void>;
}

const heartbeatMs = 10_000;
/** As long may heartbeats fail before a person is told. */
const worryMs = 120_000;
/** The end of a run does not wait longer for a service that is gone. */
const goodbyeMs = 3_000;

export async function openSession(
  connection: Connection,
  options: { isHone: boolean; name?: string; onStatus?: (text: string) => void },
): Promise<TinkerSession> {
  const made = await connection.post("create_session", {
    type: "create_session",
    tags: ["hone"],
    user_metadata: {},
    sdk_version: sdkVersion,
    ...(options.name ? { display_name: options.name } : {}),
  });
  for (const key of ["info_message", "warning_message", "error_message"]) {
    if (typeof made[key] === "string") options.onStatus?.(made[key]);
  }
  const id = String(made.session_id);
  let [models, samplers, lastHeard] = [0, 0, Date.now()];
  let beating = false;
  const beat = setInterval(() => {
    // One that is still on its way says as much as another.
    if (beating) return tell();
    beating = true;
    connection
      .post("session_heartbeat", { type: "session_heartbeat", session_id: id })
      .then(
        () => {
          lastHeard = Date.now();
        },
        (error: unknown) => tell(error instanceof Error ? `: ${error.message}` : `: ${error}`),
      )
      .finally(() => {
        beating = false;
      });
  }, heartbeatMs);
  function tell(why = ""): void {
    const silent = Date.now() - lastHeard;
    if (silent < worryMs) return;
    options.onStatus?.(`the Tinker service has not heard of this session for ${Math.round(silent / 1000)} s${why}`);
  }
  // It keeps the session alive, not the process.
  beat.unref();
  return {
    id,
    connection,
    isHone: options.isHone,
    counts: { namedLosses: 0, twoPassLosses: 0, deletedCheckpoints: 0 },
    nextModel: () => models++,
    nextSampler: () => samplers++,
    async close() {
      clearInterval(beat);
      // A service that is gone needs no farewell.
      const goodbye = { reason: { type: "success" }, detail: null };
      await connection.post(`sessions/${id}/finish`, goodbye, AbortSignal.timeout(goodbyeMs)).catch(() => {});
    },
  };
}
