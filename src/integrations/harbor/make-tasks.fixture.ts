/** For tests: tasks of one command each. */
import { chmodSync, mkdirSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

/** Writes a task whose verifier wants the word in /app/answer.txt. @returns its folder */
export function makeTask(root: string, image: string, word = "done"): string {
  const folder = join(root, `write-${word}`);
  const files = {
    "task.toml":
      'schema_version = "1.4"\n[agent]\ntimeout_sec = 60\n[verifier]\ntimeout_sec = 60\n[environment]\nbuild_timeout_sec = 300\n',
    "instruction.md": `Write the word ${word} into the file /app/answer.txt.\n`,
    "environment/Dockerfile": `FROM ${image}\nWORKDIR /app\n`,
    "solution/solve.sh": `#!/bin/bash\necho ${word} > /app/answer.txt\n`,
    // As pytest reads a conftest.py.
    "tests/test.sh": `#!/bin/bash
for file in /tests/before*.sh; do [ -e "$file" ] && . "$file"; done
echo "found: $(cat /app/answer.txt 2>/dev/null)"
if [ "$(cat /app/answer.txt 2>/dev/null)" = ${word} ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
`,
  };
  for (const [name, content] of Object.entries(files)) {
    mkdirSync(dirname(join(folder, name)), { recursive: true });
    writeFileSync(join(folder, name), content);
    if (name.endsWith(".sh")) chmodSync(join(folder, name), 0o755);
  }
  return folder;
}

/** In `worker/tests`, which PYTHONPATH must have. */
export const bashAgent = "bash_agent:BashAgent";
export const testsFolder = fileURLToPath(new URL("../../../worker/tests", import.meta.url));
