/** Copies the write-ahead log back into the database on another thread, because waiting for the disk would delay calls. */
import { createRequire } from "node:module";
import { Worker } from "node:worker_threads";

export interface Checkpointer {
  /** Counts the rows and starts copying from time to time. */
  wrote(rows: number): void;
  close(): void;
}

/** About 4 MiB of short calls. */
const rowsBetween = 1000;

const runner = `
const { parentPort, workerData } = require("node:worker_threads");
const Database = require(workerData.library);
const database = new Database(workerData.file);
database.exec("PRAGMA busy_timeout = 1000");
parentPort.on("message", (message) => {
  if (message === "close") {
    database.close();
    parentPort.close();
    return;
  }
  let problem;
  try {
    database.prepare("PRAGMA wal_checkpoint(PASSIVE)").get();
  } catch (error) {
    problem = String(error);
  }
  parentPort.postMessage({ problem });
});
`;

/** @param onProblem called once, if copying fails and so is left to the writer's thread */
export function createCheckpointer(file: string, onProblem: (text: string) => void): Checkpointer {
  let worker: Worker | undefined;
  let broken = false;
  let rows = 0;
  let busy = false;

  function giveUp(problem: string): void {
    if (broken) return;
    broken = true;
    onProblem(`the trace store's log is not copied in the background: ${problem}`);
    void worker?.terminate();
    worker = undefined;
  }

  function start(): Worker {
    const library = createRequire(import.meta.url).resolve("libsql");
    const started = new Worker(runner, { eval: true, workerData: { library, file }, execArgv: [] });
    started.unref();
    started.on("message", ({ problem }: { problem?: string }) => {
      busy = false;
      if (problem !== undefined) giveUp(problem);
    });
    started.on("error", (error) => giveUp(error.message));
    return started;
  }

  return {
    wrote(count) {
      rows += count;
      if (rows < rowsBetween || busy || broken) return;
      rows = 0;
      busy = true;
      worker ??= start();
      worker.postMessage("copy");
    },
    close() {
      broken = true;
      worker?.postMessage("close");
      worker = undefined;
    },
  };
}
