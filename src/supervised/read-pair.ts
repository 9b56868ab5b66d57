/** Reads the formats of preference pairs: TRL's and OpenAI's. */
import { isDeepStrictEqual } from "node:util";
import { UserError } from "../errors.ts";
import { isObject } from "../is-object.ts";
import { asMessages, type Example, imagesOf, readMessages, readTools, requireNoImages } from "./read-row.ts";

/** The same context with a better and a worse continuation, of which only that is learned. */
export interface Pair {
  chosen: Example;
  rejected: Example;
}

type Row = Readonly<Record<string, unknown>>;

/** @throws UserError for a row of no known format */
export function readPair(row: unknown, at: string): Pair {
  if (!isObject(row)) throw new UserError(`${at}: the row is not an object with columns`);
  const { input, preferred_output: preferred, non_preferred_output: other } = row;
  if (isObject(input)) {
    const given = { prompt: input.messages, chosen: preferred, rejected: other, tools: input.tools };
    return readConversations(given, at, ["input.messages", "preferred_output", "non_preferred_output"]);
  }
  for (const name of ["chosen", "rejected"]) {
    if (row[name] === undefined || row[name] === null) {
      throw new UserError(
        `${at}: a pair needs chosen and rejected, with or without prompt, or OpenAI's input, preferred_output and non_preferred_output; it has ${Object.keys(row).join(", ") || "no columns"}`,
        {
          hint: "docs/guide/fine-tuning.md lists the formats",
        },
      );
    }
  }
  const { prompt = "", chosen, rejected } = row;
  if (typeof prompt === "string" && typeof chosen === "string" && typeof rejected === "string") {
    requireNoImages(row, at);
    const shared = prompt === "" ? sharedText(chosen, rejected) : "";
    const text = (reply: string): Example => ({
      kind: "text",
      prompt: prompt + shared,
      text: reply.slice(shared.length),
    });
    return { chosen: text(chosen), rejected: text(rejected) };
  }
  return readConversations({ ...row, prompt: row.prompt ?? [] }, at, ["prompt", "chosen", "rejected"]);
}

/** Up to the last space that both texts have in common, as in TRL. */
function sharedText(left: string, right: string): string {
  let same = 0;
  while (same < left.length && left[same] === right[same]) same++;
  return left[same - 1] === " " ? left.slice(0, same - 1) : left.slice(0, same);
}

function readConversations(row: Row, at: string, [context, better, worse]: [string, string, string]): Pair {
  const messagesOf = (value: unknown, role: string, name: string, images: readonly unknown[]) => {
    const given = asMessages(value, role);
    if (!Array.isArray(given)) throw new UserError(`${at}: ${name} must be text or a list of messages`);
    return given.length === 0 && images.length === 0 ? [] : readMessages(given, `${at}: ${name}`, images);
  };
  const images = imagesOf(row, at);
  const isImplicit = Array.isArray(row.prompt) && row.prompt.length === 0;
  const [early, late] = isImplicit ? [[], images] : [images, []];
  const before = messagesOf(row.prompt, "user", context, early);
  let chosen = messagesOf(row.chosen, "assistant", better, late);
  let rejected = messagesOf(row.rejected, "assistant", worse, late);
  if (isImplicit) {
    let same = 0;
    while (same < chosen.length - 1 && isDeepStrictEqual(chosen[same], rejected[same])) same++;
    before.push(...chosen.slice(0, same));
    [chosen, rejected] = [chosen.slice(same), rejected.slice(same)];
    if (same === 0) throw new UserError(`${at}: ${better} and ${worse} do not begin with the same prompt`);
  }
  const tools = readTools(row, at);
  const prompt = before.map((message) => (message.role === "assistant" ? { ...message, weight: 0 } : message));
  const example = (reply: typeof chosen, name: string): Example => {
    if (!reply.some(({ role, weight }) => role === "assistant" && weight !== 0))
      throw new UserError(`${at}: ${name} has no message of the assistant`);
    return { kind: "chat", messages: [...prompt, ...reply], tools };
  };
  return { chosen: example(chosen, better), rejected: example(rejected, worse) };
}
