/** The scripted model of the recorded coding agents: runs one command with the shell tool that the agent offers, then ends. */
import type { Script } from "../testing/scripted.ts";

const command = "echo done > answer.txt";

/** Arguments of the agents' shell tools, by the tool's name. */
const shells: Record<string, object> = {
  bash: { command, description: "Writes the file." },
  Bash: { command, description: "Writes the file." },
  shell: { command: ["bash", "-lc", command] },
  shell_command: { command },
  exec_command: { cmd: command },
};

export const runCommandOnce: Script = (messages) => {
  const prompt = messages.map(({ content }) => content).join("\n");
  const shell = Object.keys(shells).find((name) => prompt.includes(`"name":"${name}"`));
  if (shell === undefined) return "A title";
  if (messages.at(-1)?.role !== "tool") {
    return `<tool_call>${JSON.stringify({ name: shell, arguments: shells[shell] })}</tool_call>`;
  }
  // mini-swe-agent ends only with this command.
  const submit = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT";
  if (!prompt.includes(submit)) return "The file is written.";
  return `<tool_call>${JSON.stringify({ name: shell, arguments: { command: `echo ${submit}` } })}</tool_call>`;
};
