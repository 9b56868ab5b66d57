import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll } from "vitest";

/** A folder for this test file, removed after its last test and its other `afterAll` hooks. */
export function temporaryFolder(name: string): string {
  const folder = mkdtempSync(join(tmpdir(), `hone-${name}-`));
  afterAll(() => removeFolder(folder));
  return folder;
}

/** Removes a folder with retries, since a process that has just ended may still be writing into it. */
export function removeFolder(folder: string): void {
  rmSync(folder, { recursive: true, force: true, maxRetries: 20, retryDelay: 50 });
}
