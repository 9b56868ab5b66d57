/** A conversation in which the model may call tools before it answers. */
import type { ChatMessage, ToolCall } from "../chat/messages.ts";
import type { Task } from "../data/task.ts";
import { messageOf } from "../errors.ts";
import { nearest } from "../nearest.ts";
import { chatAgent } from "./chat-agent.ts";
import { multiTurn } from "./multi-turn.ts";
import { type PromptOptions, promptMessages } from "./prompt.ts";
import type { CallParams, Environment, Reply, Reward, Tool, Workflow } from "./types.ts";

export interface UseToolsOptions<Row> extends PromptOptions<Row> {
  /** For all tasks, or opened for one attempt: `close` is called at its end. */
  tools: readonly Tool[] | ((task: Task<Row>) => ToolBox | Promise<ToolBox>);
  /** Grades the answer: the reply without tool calls, or else the last reply. */
  reward: Reward<Row>;
  /** Maximum number of turns, if it is less than `rllm.agent.max_steps`. */
  maxSteps?: number | undefined;
  params?: CallParams | undefined;
}

/** Tools, with what closes their server. */
export interface ToolBox {
  tools: readonly Tool[];
  close?(): void | Promise<void>;
}

/**
 * Calls of one reply run side by side. Errors of tools, calls of unknown tools and malformed calls are
 * shown to the model and counted: `tool_calls`, `tool_errors`, `malformed_tool_calls`.
 *
 * @example
 * useTools<Row>({
 *   prompt: (row) => row.question,
 *   tools: [defineTool({ name: "add", description: "Adds.", parameters: { a: z.number(), b: z.number() }, run: ({ a, b }) => a + b })],
 *   reward: (row, reply) => mathAnswer(reply.text, row.answer),
 * })
 */
export function useTools<Row>(options: UseToolsOptions<Row>): Workflow<Row> {
  return multiTurn<Row>({
    environment: (task) => toolEnvironment(task, options),
    agent: () => chatAgent({ system: options.system }),
    maxSteps: options.maxSteps,
    params: options.params,
  });
}

/** An environment that answers tool calls and is done at a reply without any. */
export async function toolEnvironment<Row>(
  task: Task<Row>,
  { tools: given, prompt, reward }: Omit<UseToolsOptions<Row>, "system">,
): Promise<Environment<Reply>> {
  const box: ToolBox = typeof given === "function" ? await given(task) : { tools: given };
  const counts = { tool_calls: 0, tool_errors: 0, malformed_tool_calls: 0 };
  let messages: readonly ChatMessage[] = [];
  let answer: Reply | undefined;
  return {
    tools: box.tools.map(({ name, description, parameters }) => ({
      name,
      ...(description === undefined ? {} : { description }),
      ...(parameters === undefined ? {} : { parameters }),
    })),
    async reset() {
      messages = await promptMessages(prompt, task.row);
      return messages;
    },
    async step(reply, { signal }) {
      answer = reply;
      counts.tool_calls += reply.toolCalls.length;
      counts.malformed_tool_calls += reply.problems.length;
      if (reply.toolCalls.length === 0 && reply.problems.length === 0) {
        return { observation: [], reward: 0, done: true };
      }
      const observation = await Promise.all(
        reply.toolCalls.map(async (call): Promise<ChatMessage> => {
          const { content, failed } = await runTool(box.tools, call, signal);
          if (failed) counts.tool_errors++;
          return { role: "tool", content, toolCallId: call.id, name: call.name };
        }),
      );
      const problems = reply.problems.map(({ message }) => message).join("; ");
      if (problems !== "") observation.push({ role: "user", content: `That could not be read: ${problems}` });
      return { observation, reward: 0, done: false };
    },
    async score({ signal }) {
      if (answer === undefined) return { reward: null, metrics: counts };
      const graded = await reward(task.row, answer, { task, messages, signal });
      const outcome = typeof graded === "number" ? { reward: graded } : graded;
      return { ...outcome, metrics: { ...counts, ...outcome.metrics } };
    },
    close: () => box.close?.(),
  };
}

async function runTool(
  tools: readonly Tool[],
  call: ToolCall,
  signal: AbortSignal,
): Promise<{ content: string; failed: boolean }> {
  const tool = tools.find(({ name }) => name === call.name);
  if (tool === undefined) {
    const names = tools.map(({ name }) => name);
    const meant = nearest(call.name, names, 1)[0];
    const hint = meant === undefined ? `The tools are ${names.join(", ")}.` : `Did you mean ${meant}?`;
    return { content: `Error: there is no tool "${call.name}". ${hint}`, failed: true };
  }
  try {
    const result = await tool.run(call.arguments, { signal });
    const content = typeof result === "string" ? result : (JSON.stringify(result) ?? "done");
    return { content, failed: false };
  } catch (error) {
    // The attempt has ended, so this is not an error of the tool.
    if (signal.aborted) throw error;
    return { content: `Error: ${messageOf(error)}`, failed: true };
  }
}
