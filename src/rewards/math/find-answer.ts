/** Finds the final answer in a reply. */

export interface FoundAnswer {
  answer: string;
  where: string;
}

/** The text after the last `</think>`; empty if thinking is not closed. */
export function withoutThinking(reply: string): string {
  const end = reply.lastIndexOf("</think>");
  if (end >= 0) return reply.slice(end + "</think>".length);
  return reply.includes("<think>") ? "" : reply;
}

/** The content of the last `\boxed{...}` or `\fbox{...}`; undefined if there is none or it is not closed. */
export function lastBox(text: string): string | undefined {
  const at = Math.max(text.lastIndexOf("\\boxed"), text.lastIndexOf("\\fbox"));
  if (at < 0) return undefined;
  const rest = text.slice(at).replace(/^\\[a-z]+\s*/, "");
  if (!rest.startsWith("{")) return /^[\w.+-]+/.exec(rest)?.[0];
  let depth = 0;
  for (let index = 0; index < rest.length; index++) {
    if (rest[index] === "{") depth++;
    else if (rest[index] === "}" && --depth === 0) return rest.slice(1, index);
  }
  return undefined;
}

/**
 * The first of these that the reply has: the last box, an <answer> tag, text after ####, text after "answer is", the last
 * formula between dollar signs, the last number.
 */
export function findAnswer(reply: string): FoundAnswer | undefined {
  const text = withoutThinking(reply);
  const box = lastBox(text);
  if (box !== undefined) return { answer: box, where: "in \\boxed{}" };
  if (/\\(?:boxed|fbox)/.test(text)) return undefined;
  const tagged = lastTagged(text)?.trim();
  if (tagged) return { answer: tagged, where: "in <answer>" };
  const places: [RegExp, string][] = [
    [/####[ \t]*([^\n]+)/g, "after ####"],
    [/\banswer(?: is|:)[: ]*\s*([^\n]+?)(?=\.(?:\s|$)|\n|$)/gi, 'after "answer is"'],
    [/\$\$?([^$]+)\$\$?/g, "as the last formula"],
    [/((?<![\w.)])[-−]?\$?\d[\d,]*(?:\.\d+)?(?:\/\d+)?%?)/g, "as the last number"],
  ];
  for (const [pattern, where] of places) {
    const answer = [...text.matchAll(pattern)].at(-1)?.[1]?.trim();
    if (answer) return { answer, where };
  }
  return undefined;
}

/** The content of the last `<answer>...</answer>`. A pattern over both tags would take quadratic time. */
function lastTagged(text: string): string | undefined {
  let start: number | undefined;
  let content: string | undefined;
  for (const { 0: tag, index } of text.matchAll(/<\/?answer>/gi)) {
    if (tag[1] !== "/") start ??= index + tag.length;
    else if (start !== undefined) {
      content = text.slice(start, index);
      start = undefined;
    }
  }
  return content;
}
