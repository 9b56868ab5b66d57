/** The commands of a conversation, with their exit codes: of tool calls, or of code blocks that a harness executed. */
import { describeContent } from "../../chat/images/content.ts";
import type { ChatMessage } from "../../chat/messages.ts";
import type { StoredTrajectory } from "../../tracking/run-folder/read-episode.ts";

export interface Command {
  role: string;
  /** The model call, from 1. */
  turn: number;
  /** The name of the tool; null for a code block. */
  tool: string | null;
  command: string;
  /** What came back; null if the conversation ends before. */
  output: string | null;
  /** Null if the output does not say it. */
  exitCode: number | null;
}

const most = 300;
const [longestCommand, longestOutput] = [2000, 4000];

/** As agents write it: `exit code: 1`, `exited with code 1`, `<returncode>1</returncode>`, `"exit_code": 1`. */
const exitCodes =
  /(?:\bexit(?:ed with)?[ _]?(?:code|status)"?\s*[:=]?\s*|<returncode>\s*|\breturncode"?\s*[:=]\s*)(-?\d{1,3})\b/i;
const commandNames = ["command", "cmd", "script", "code"];
/** Other tools of coding agents are shown by the file that they use, and all others not at all. */
const fileNames = ["file_path", "filePath", "path", "file"];
const executed = /```(?:bash|sh|shell|mswea_bash_command)\n([\s\S]*?)\n?```/;

export function commandsOf(trajectories: readonly StoredTrajectory[]): Command[] {
  return trajectories.flatMap(commandsIn).slice(0, most);
}

function commandsIn({ name, instance, steps }: StoredTrajectory): Command[] {
  const role = instance === undefined ? name : `${name}#${instance}`;
  // Prompts repeat the history, so a later one has the results of all earlier calls.
  const results = new Map<string, string>();
  for (const message of steps.flatMap((step) => step.messages)) {
    if (message.role === "tool" && message.toolCallId)
      results.set(message.toolCallId, describeContent(message.content));
  }
  return steps.flatMap((step, index): Command[] => {
    const calls = (step.reply?.toolCalls ?? []).flatMap((call) => {
      const command = commandOf(call.arguments);
      const output = results.get(call.id) ?? null;
      return command === undefined ? [] : [{ role, turn: index + 1, tool: call.name, ...shown(command, output) }];
    });
    if (calls.length > 0) return calls;
    const block = executed.exec(step.text)?.[1];
    const answer = block === undefined ? undefined : answerTo(steps[index + 1]?.messages ?? [], step.messages.length);
    // A code block is a command only if the harness answers with an exit code.
    if (block === undefined || answer === undefined || !exitCodes.test(answer)) return [];
    return [{ role, turn: index + 1, tool: null, ...shown(block, answer) }];
  });
}

function shown(command: string, output: string | null) {
  const code = output === null ? null : exitCodes.exec(output);
  return {
    command: command.slice(0, longestCommand),
    output: output === null ? null : output.slice(0, longestOutput),
    exitCode: code ? Number(code[1]) : null,
  };
}

function commandOf(given: Readonly<Record<string, unknown>>): string | undefined {
  for (const name of [...commandNames, ...fileNames]) {
    const value = given[name];
    if (typeof value === "string") return value;
    if (Array.isArray(value) && value.every((part) => typeof part === "string")) return value.join(" ");
  }
  return undefined;
}

/** The message after the reply, which follows the prompt's own. */
function answerTo(messages: readonly ChatMessage[], prompt: number): string | undefined {
  const message = messages[prompt + 1];
  return message?.role === "user" ? describeContent(message.content) : undefined;
}
