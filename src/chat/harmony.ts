/**
 * The format of gpt-oss: a reply is a sequence of messages, each with a header that names its channel. `analysis` is thinking, `final`
 * is the answer. A call has a recipient: `<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": 1}<|call|>`.
 */
import { type Skipped, skipJson } from "../base/json.ts";
import { callOfParts, malformed, noCalls, type ReplyFormat, type SplitReply } from "./reply-format.ts";

interface HarmonyMessage {
  channel: string | undefined;
  recipient: string | undefined;
  body: string;
  /** With the header. */
  whole: string;
}

const harmonyStart = "<|start|>";
const harmonyMessage = "<|message|>";

/** The prompt ends with `<|start|>assistant`, so the first message has only the rest of its header. */
function readMessages(text: string): { before: string; messages: HarmonyMessage[] } {
  const messages: HarmonyMessage[] = [];
  let before = "";
  let budget = 8 * text.length;
  for (let from = 0; from < text.length; ) {
    const headerEnd = endOfMessage(text, from + 1);
    const at = text.slice(from, headerEnd).indexOf(harmonyMessage);
    const header = text.slice(from, from + Math.max(at, 0));
    if (at < 0 || (messages.length === 0 && !/^\s*(<\|start\|>|<\|channel\|>|to=)/.test(header))) {
      before += text.slice(from, headerEnd);
      from = headerEnd;
      continue;
    }
    const start = from + at + harmonyMessage.length;
    const recipient = /(?:^|\s)to=([^\s<]+)/.exec(header.replace("<|channel|>", " <|channel|>"))?.[1];
    // The arguments of a call may quote any mark.
    const isJson = recipient !== undefined && !header.startsWith(`${harmonyStart}functions`) && budget > 0;
    const skipped: Skipped = isJson ? skipJson(text, start) : { state: "other", end: start };
    if (skipped.state !== "whole") budget -= skipped.end - start;
    const end =
      skipped.state === "cut" ? text.length : endOfMessage(text, skipped.state === "whole" ? skipped.end : start);
    const whole = text.slice(from, end);
    messages.push({
      channel: /<\|channel\|>\s*(\w+)/.exec(header)?.[1],
      recipient,
      body: text.slice(start, end).replace(/<\|(?:end|call|return)\|>$/, ""),
      whole,
    });
    from = end;
  }
  return { before, messages };
}

/** After the next end of a message, or before the next start. */
function endOfMessage(text: string, from: number): number {
  const mark = /<\|(?:end|call|return)\|>|<\|start\|>/g;
  mark.lastIndex = from;
  const found = mark.exec(text);
  if (found === null) return text.length;
  return found[0] === harmonyStart ? found.index : mark.lastIndex;
}

const isCall = ({ recipient, whole }: HarmonyMessage) =>
  recipient !== undefined && !whole.startsWith(`${harmonyStart}functions`);

function splitHarmony(text: string): SplitReply {
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

export const harmony: ReplyFormat = {
  thinking: { open: "<|channel|>analysis<|message|>", close: "<|end|>" },
  answer: "<|channel|>final<|message|>",
  split: splitHarmony,
  calls: {
    starts: ["<|channel|>commentary", " to=", harmonyStart],
    read(text, tools) {
      const { before, messages } = readMessages(text);
      const found = noCalls(before);
      if (/^(?:<\|start\|>assistant)?\s*(?:<\|channel\|>\w+\s*)?to=/.test(before.trimStart())) {
        found.problems.push({
          kind: "unclosed_tool_call",
          message: `a tool call has no ${harmonyMessage}`,
          text: before,
        });
      }
      for (const each of messages) {
        const name = (each.recipient ?? "").replace(/^functions\./, "");
        const call = isCall(each) && callOfParts(name, each.body, tools);
        if (typeof call === "object") found.calls.push(call);
        else found.content += each.whole;
        if (typeof call === "string") found.problems.push(malformed(call, each.whole));
      }
      return found;
    },
  },
  ends: ["<|return|>", "<|call|>"],
  writtenEnds: ["<|end|>"],
};
