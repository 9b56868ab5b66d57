import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll } from "vitest";

/** A folder of this test file's own. It is removed after the file's last test and its other `afterAll` hooks. */
export function temporaryFolder(name: string): string {
  const folder = mkdtempSync(join(tmpdir(), `hone-${name}-`));
  afterAll(() => removeFolder(folder));
  return folder;
}

/** Removes a folder, patiently: a process that was just ended may still be writing its last line into it. */
export function removeFolder(folder: string): void {
  rmSync(folder, { recursive: true, force: true, maxRetries: 20, retryDelay: 50 });
}
