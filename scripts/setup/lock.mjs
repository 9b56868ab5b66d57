/**
 * Allows one set-up at a time: others wait, also those on other machines that share the folder. The lock of a dead process is
 * taken over.
 */
import { closeSync, openSync, readFileSync, rmSync, statSync, utimesSync, writeSync } from "node:fs";
import { hostname } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";
import { say } from "./report.mjs";

const heartbeatMs = 5000;
const staleMs = 60_000;
const pollMs = 200;
const self = `${process.pid} ${hostname()}`;

/** @param {string} file */
function take(file) {
  try {
    const handle = openSync(file, "wx");
    writeSync(handle, self);
    closeSync(handle);
    return true;
  } catch (error) {
    if (/** @type {NodeJS.ErrnoException} */ (error).code === "EEXIST") return false;
    throw error;
  }
}

/** @param {number} pid */
function alive(pid) {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return /** @type {NodeJS.ErrnoException} */ (error).code === "EPERM";
  }
}

/**
 * Returns the process that holds the lock, or null if it has ended: its number is free, or belongs to another process
 * that does not renew the lock.
 * @param {string} file
 * @returns {{pid: number} | null}
 */
export function lockHolder(file) {
  try {
    const owner = readFileSync(file, "utf8");
    const pid = Number.parseInt(owner, 10) || 0;
    const isHere = owner === `${pid} ${hostname()}`;
    const ageMs = Date.now() - statSync(file).mtimeMs;
    // An empty file is a lock that is being written.
    if (pid === 0 ? ageMs > pollMs * 5 : ageMs > staleMs || (isHere && !alive(pid))) return null;
    return { pid };
  } catch (error) {
    if (/** @type {NodeJS.ErrnoException} */ (error).code === "ENOENT") return null;
    throw error;
  }
}

/**
 * @template T
 * @param {string} file
 * @param {() => Promise<T>} task
 * @returns {Promise<T>}
 */
export async function withLock(file, task) {
  for (let reported = false; !take(file); ) {
    const holder = lockHolder(file);
    if (holder === null) {
      rmSync(file, { force: true });
      // If two processes find the same dead lock, the slower may remove the faster one's: read the owner after a pause.
      if (take(file)) await sleep(pollMs);
      if (readOwner(file) === self) break;
      continue;
    }
    if (!reported) say(`waiting for another set-up (process ${holder.pid})`);
    reported = true;
    await sleep(pollMs);
  }
  const heartbeat = setInterval(() => renew(file), heartbeatMs);
  try {
    return await task();
  } finally {
    clearInterval(heartbeat);
    rmSync(file, { force: true });
  }
}

/** @param {string} file */
function renew(file) {
  try {
    utimesSync(file, new Date(), new Date());
  } catch {
    // The lock was removed by hand; the task continues.
  }
}

/** @param {string} file */
function readOwner(file) {
  try {
    return readFileSync(file, "utf8");
  } catch {
    return null; // Removed by another waiting process.
  }
}
