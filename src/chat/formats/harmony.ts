/**
 * gpt-oss: a reply is a sequence of messages, each with a header that names its channel. `analysis` is thinking, `final` is
 * the answer. A call has a recipient: `<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": 1}<|call|>`.
 */
import {
  type CallFormat,
  callOfParts,
  malformed,
  type ReplyFormat,
  type SplitReply,
  type WrittenCalls,
} from "./format.ts";

const start = "<|start|>";
const message = "<|message|>";

interface HarmonyMessage {
  channel: string | undefined;
  recipient: string | undefined;
  body: string;
  /** With the header. */
  whole: string;
}

/** The prompt ends with `<|start|>assistant`, so the first message has only the rest of its header. */
function readMessages(text: string): { before: string; messages: HarmonyMessage[] } {
  const messages: HarmonyMessage[] = [];
  const parts = text.split(/(?=<\|start\|>)|(?<=<\|(?:end|call|return)\|>)/);
  let before = "";
  for (const whole of parts) {
    const at = whole.indexOf(message);
    const header = whole.slice(0, Math.max(at, 0));
    if (at < 0 || (messages.length === 0 && !/^\s*(<\|start\|>|<\|channel\|>|to=)/.test(header))) {
      before += whole;
      continue;
    }
    messages.push({
      channel: /<\|channel\|>\s*(\w+)/.exec(header)?.[1],
      recipient: /(?:^|\s)to=([^\s<]+)/.exec(header.replace("<|channel|>", " <|channel|>"))?.[1],
      body: whole.slice(at + message.length).replace(/<\|(?:end|call|return)\|>$/, ""),
      whole,
    });
  }
  return { before, messages };
}

const isCall = ({ recipient, whole }: HarmonyMessage) =>
  recipient !== undefined && !whole.startsWith("<|start|>functions");

function split(text: string): SplitReply {
  const { before, messages } = readMessages(text);
  const isThought = (each: HarmonyMessage) => each.channel === "analysis" && !isCall(each);
  const thoughts = messages.filter(isThought);
  const rest = messages.filter((each) => !isThought(each));
  const content = before + rest.map((each) => (isCall(each) ? each.whole : each.body)).join("");
  if (thoughts.length === 0) return { content, problems: [] };
  const reasoning = thoughts.map(({ body }) => body.trim()).join("\n");
  const problem = { kind: "unclosed_thinking", message: "the reply has only thinking, so there is no answer" } as const;
  return { reasoning, content, problems: content.trim() === "" ? [{ ...problem, text: reasoning }] : [] };
}

const calls: CallFormat = {
  starts: ["<|channel|>commentary", " to=", start],
  read(text) {
    const { before, messages } = readMessages(text);
    const found: WrittenCalls = { content: before, calls: [], problems: [] };
    if (/^(?:<\|start\|>assistant)?\s*(?:<\|channel\|>\w+\s*)?to=/.test(before.trimStart())) {
      found.problems.push({ kind: "unclosed_tool_call", message: `a tool call has no ${message}`, text: before });
    }
    for (const each of messages) {
      const call = isCall(each) && callOfParts((each.recipient ?? "").replace(/^functions\./, ""), each.body);
      if (typeof call === "object") found.calls.push(call);
      else found.content += each.whole;
      if (typeof call === "string") found.problems.push(malformed(call, each.whole));
    }
    return found;
  },
};

export const harmony: ReplyFormat = {
  thinking: { open: "<|channel|>analysis<|message|>", close: "<|end|>" },
  answer: "<|channel|>final<|message|>",
  split,
  calls,
  ends: ["<|return|>", "<|call|>"],
  writtenEnds: ["<|end|>"],
};
