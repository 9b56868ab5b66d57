import { type Grade, grade, overlong } from "../grade.ts";

/**
 * 1 if a reply consists of these tagged parts in this order, each exactly once and not empty, with only white space
 * between them; else half the share of tags that are opened once and then closed once.
 *
 * @example hasTags("<think>so</think><answer>4</answer>", ["think", "answer"]).reward // 1
 */
export function hasTags(reply: string, tags: readonly string[]): Grade {
  if (tags.length === 0) throw new Error("hasTags expects the names of tags, got none");
  const refused = overlong(reply);
  if (refused) return refused;
  const parts = tags.map((tag) => findPart(reply, tag));
  const sound = parts.filter((part) => part !== undefined);
  const correct = sound.length === tags.length && isWholeReply(reply, sound);
  const missing = tags.filter((_, index) => parts[index] === undefined);
  const explanation = correct
    ? `has ${tags.join(", ")} in order`
    : missing.length > 0
      ? `not exactly one ${missing.map((tag) => `<${tag}>...</${tag}>`).join(", ")}`
      : `the parts ${tags.join(", ")} are empty, out of order, or not all of the reply`;
  return grade(correct, explanation, correct ? 1 : (0.5 * sound.length) / tags.length);
}

interface Part {
  start: number;
  end: number;
  content: string;
}

/** Undefined unless the tag is opened once and then closed once. */
function findPart(text: string, tag: string): Part | undefined {
  const [start, close] = [onlyIndexOf(text, `<${tag}>`), onlyIndexOf(text, `</${tag}>`)];
  if (start === undefined || close === undefined || close < start) return undefined;
  return { start, end: close + tag.length + 3, content: text.slice(start + tag.length + 2, close) };
}

function onlyIndexOf(text: string, piece: string): number | undefined {
  const first = text.indexOf(piece);
  return first >= 0 && text.indexOf(piece, first + 1) < 0 ? first : undefined;
}

function isWholeReply(reply: string, parts: readonly Part[]): boolean {
  let end = 0;
  for (const part of parts) {
    if (part.start < end || reply.slice(end, part.start).trim() !== "" || part.content.trim() === "") return false;
    end = part.end;
  }
  return reply.slice(end).trim() === "";
}
