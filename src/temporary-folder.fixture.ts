import { existsSync, mkdtempSync, rmSync, statfsSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, onTestFinished } from "vitest";

const inMemory = "/dev/shm";
/** A container's may have 64 MiB. */
const isLarge = existsSync(inMemory) && statfsSync(inMemory).bavail * statfsSync(inMemory).bsize > 2 ** 30;

/** For many small files that are made durable: on Linux a file system in memory, which does not wait for the disk. */
export const memory = isLarge ? inMemory : tmpdir();

/** A folder for this test file, removed after its last test and its other `afterAll` hooks. */
export function temporaryFolder(name: string, root = tmpdir()): string {
  const folder = mkdtempSync(join(root, `hone-${name}-`));
  afterAll(() => removeFolder(folder));
  return folder;
}

/** A folder for the running test, removed when it has ended. Also in `beforeEach`. */
export function testFolder(name: string): string {
  const folder = mkdtempSync(join(tmpdir(), `hone-${name}-`));
  onTestFinished(() => removeFolder(folder));
  return folder;
}

/** Removes a folder. A process that has just ended may still be writing into it, so what it adds is removed again. */
export function removeFolder(folder: string, tries = 20): void {
  try {
    rmSync(folder, { recursive: true, force: true, maxRetries: 3, retryDelay: 50 });
  } catch (error) {
    if (tries === 1) throw error;
    removeFolder(folder, tries - 1);
  }
}
