/** Ten Harbor tasks of one command each: write a word into a file. */
import { mkdirSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";

export const answerFile = "answer.txt";

const words = ["apple", "bread", "cloud", "dance", "earth", "flame", "grass", "house", "island", "juice"];
const verbs = ["Write", "Put", "Save", "Store", "Print"];
const forms = [
  (verb: string, word: string) => `${verb} the word ${word} into the file ${answerFile}.`,
  (verb: string, word: string) => `Make a file ${answerFile}. ${verb} the word ${word} into it.`,
];

export const wordOf = (instruction: string) => /the word (\w+)/.exec(instruction)?.[1] ?? "";

const filesOf = (instruction: string, image: string) => ({
  "instruction.md": `${instruction}\n`,
  "environment/Dockerfile": `FROM ${image}\nWORKDIR /app\n`,
  "solution/solve.sh": `#!/bin/bash\necho ${wordOf(instruction)} > ${answerFile}\n`,
  "tests/test.sh": `#!/bin/bash
if [ "$(cat /app/${answerFile})" = ${wordOf(instruction)} ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
`,
  "task.toml": `schema_version = "1.4"
[agent]
timeout_sec = 300
[verifier]
timeout_sec = 120
[environment]
build_timeout_sec = 600
`,
});

/**
 * @param sameWord one word in all tasks, for a model that knows no words
 * @returns the folder
 */
export function makeTasks(folder: string, image: string, sameWord: boolean): string {
  for (const [index, word] of words.entries()) {
    const instruction = forms[index % 2]!(verbs[index >> 1]!, sameWord ? words[0]! : word);
    for (const [name, content] of Object.entries(filesOf(instruction, image))) {
      const file = join(folder, `task-${index}`, name);
      mkdirSync(dirname(file), { recursive: true });
      writeFileSync(file, content, { mode: name.endsWith(".sh") ? 0o755 : 0o644 });
    }
  }
  return folder;
}
