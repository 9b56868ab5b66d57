/** Episodes as ATIF 1.8 documents, the trajectory format of Harbor, and such documents as rows for supervised training. */
import { type ChatMessage, type ToolDefinition, textOf, toMessage } from "../../chat/messages.ts";
import { toSequences } from "../../trajectories/batch.ts";
import type { Episode, Step, Trajectory } from "../../trajectories/types.ts";

interface AtifStep {
  step_id: number;
  source: "system" | "user" | "agent";
  message: string;
  reasoning_content?: string;
  tool_calls?: { tool_call_id: string; function_name: string; arguments: Readonly<Record<string, unknown>> }[];
  observation?: { results: { source_call_id?: string; content: string }[] };
  metrics?: {
    prompt_tokens: number;
    completion_tokens: number;
    prompt_token_ids: number[];
    completion_token_ids: number[];
    logprobs: number[];
  };
  is_copied_context?: true;
  llm_call_count?: number;
  extra?: Record<string, unknown>;
}

/** An ATIF document. */
export interface AtifTrajectory {
  schema_version: string;
  session_id?: string;
  trajectory_id?: string;
  agent: { name: string; version: string; model_name?: string; tool_definitions?: unknown[] };
  steps: AtifStep[];
  extra?: Record<string, unknown>;
  subagent_trajectories?: AtifTrajectory[];
}

export interface AtifOptions {
  /** Name and version of the agent. Default: the trajectory's role, and "unknown". */
  agent?: { name: string; version: string };
  model?: string;
}

/**
 * One document for each token sequence. The first sequence of the first trajectory contains the others as
 * `subagent_trajectories`: side calls, subagents, and the conversation after a compaction.
 *
 * @returns undefined for an episode without a model call
 */
export function toAtif(episode: Episode, { agent, model }: AtifOptions = {}): AtifTrajectory | undefined {
  const isOwn = ({ name }: Trajectory) => name === "agent";
  const trajectories = [...episode.trajectories].sort((left, right) => Number(isOwn(right)) - Number(isOwn(left)));
  const documents = trajectories.flatMap((trajectory) => {
    const { name, instance, steps, reward } = trajectory;
    const label = instance === undefined ? name : `${name}#${instance}`;
    return sequencesOf(trajectory).map((run, index): AtifTrajectory => {
      const tools = run.at(-1)?.tools;
      return {
        schema_version: "ATIF-v1.8",
        session_id: episode.id,
        trajectory_id: `${episode.id}/${label}/${index}`,
        agent: {
          ...(agent && isOwn(trajectory) ? agent : { name: label, version: "unknown" }),
          ...(model === undefined ? {} : { model_name: model }),
          ...(tools === undefined ? {} : { tool_definitions: tools.map(toDefinition) }),
        },
        steps: toSteps(run),
        extra: {
          reward,
          task_id: episode.taskId,
          starts: run[0]?.starts ?? null,
          calls: run.map((step) => steps.indexOf(step)),
        },
      };
    });
  });
  const [root, ...others] = documents;
  if (root === undefined) return undefined;
  const { termination, correct, metrics, explanation } = episode;
  root.extra = { ...root.extra, termination, correct, metrics, explanation: explanation ?? null };
  if (others.length > 0) root.subagent_trajectories = others;
  return root;
}

/** The steps of each sequence. */
function sequencesOf(trajectory: Trajectory): Step[][] {
  // Steps of a model that is not trained belong to their sequences, too.
  const steps = trajectory.steps.map((step) => ({ ...step, policyVersion: 0 }));
  const { sequences } = toSequences({ ...trajectory, steps });
  return sequences.map((sequence) => sequence.steps.flatMap(({ step }) => trajectory.steps[step] ?? []));
}

const toDefinition = ({ name, description, parameters }: ToolDefinition) => ({
  type: "function",
  function: { name, ...(description === undefined ? {} : { description }), ...(parameters ? { parameters } : {}) },
});

/** The last call's history contains the replies of those before it. */
function toSteps(run: readonly Step[]): AtifStep[] {
  const last = run.at(-1);
  if (last === undefined) return [];
  const own = new Map(run.map((step) => [step.messages.length, step]));
  const reply: ChatMessage = last.reply ? toMessage(last.reply) : { role: "assistant", content: last.text };
  const steps: AtifStep[] = [];
  for (const [index, message] of [...last.messages, reply].entries()) {
    const previous = steps.at(-1);
    if (message.role === "tool" && previous?.source === "agent") {
      const known = previous.tool_calls?.some(({ tool_call_id: id }) => id === message.toolCallId);
      const source = known && message.toolCallId !== undefined ? { source_call_id: message.toolCallId } : {};
      previous.observation ??= { results: [] };
      previous.observation.results.push({ ...source, content: textOf(message.content) });
    } else steps.push({ step_id: steps.length + 1, ...toStep(message, own.get(index)) });
  }
  return steps;
}

function toStep(message: ChatMessage, call: Step | undefined): Omit<AtifStep, "step_id"> {
  const { role, reasoning, toolCalls = [] } = message;
  const text = textOf(message.content);
  if (role === "tool") return { source: "user", message: text, extra: { role: "tool" } };
  if (role !== "assistant") return { source: role, message: text };
  const step: Omit<AtifStep, "step_id"> = { source: "agent", message: text };
  if (reasoning) step.reasoning_content = reasoning;
  if (toolCalls.length > 0) {
    step.tool_calls = toolCalls.map(({ id, name, arguments: given }) => ({
      ...{ tool_call_id: id, function_name: name, arguments: given },
    }));
  }
  if (call === undefined) return { ...step, is_copied_context: true };
  const { promptTokens, tokens, logprobs, policyVersion, stopReason, reward } = call;
  return {
    ...step,
    llm_call_count: 1,
    metrics: {
      prompt_tokens: promptTokens.length,
      completion_tokens: tokens.length,
      prompt_token_ids: [...promptTokens],
      completion_token_ids: [...tokens],
      logprobs: [...logprobs],
    },
    extra: { policy_version: policyVersion, stop_reason: stopReason, reward },
  };
}

/** A row for `hone sft`: a conversation, with the tools that it was offered. */
export interface AtifRow {
  messages: { role: string; content: string; tool_calls?: unknown[]; tool_call_id?: string }[];
  tools?: unknown[];
}

/** The document's conversation, and those of the subagents in it, as rows. */
export function atifRows({ steps, agent, subagent_trajectories: others = [] }: AtifTrajectory): AtifRow[] {
  const messages = steps.flatMap(({ source, message, tool_calls: calls, observation }) => {
    const role = source === "agent" ? "assistant" : source;
    const tool_calls = calls?.map(({ tool_call_id: id, function_name: name, arguments: given }) => ({
      ...{ id, type: "function", function: { name, arguments: JSON.stringify(given) } },
    }));
    const results = (observation?.results ?? []).map(({ source_call_id: id, content }) => ({
      ...(id === undefined ? { role: "user" } : { role: "tool", tool_call_id: id }),
      content,
    }));
    return [{ role, content: message, ...(tool_calls ? { tool_calls } : {}) }, ...results];
  });
  const tools = agent.tool_definitions;
  return [{ messages, ...(tools ? { tools } : {}) }, ...others.flatMap(atifRows)];
}
