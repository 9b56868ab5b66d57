/** Opens a model folder's tokenizer and chat template as one `Chat`. */
import { existsSync } from "node:fs";
import { join } from "node:path";
import { z } from "zod";
import { isModulePath } from "../config/schema/about.ts";
import type { Config } from "../config/schema.ts";
import { UserError } from "../errors.ts";
import { own } from "../own.ts";
import { assembleChat } from "./assemble-chat.ts";
import { either, type ReplyFormat } from "./formats/format.ts";
import { detectFormat } from "./formats/formats.ts";
import { hermes } from "./formats/hermes.ts";
import { compileTemplate, findTemplate, type RenderText, type TemplateSources } from "./templates/chat-template.ts";
import { loadRenderer } from "./templates/define-renderer.ts";
import { type Renderer, renderers } from "./templates/renderers.ts";
import { encodeElsewhere } from "./tokens/encode-elsewhere.ts";
import { openTokenizer, readJson, type Tokenizer } from "./tokens/tokenizer.ts";
import type { Chat } from "./types.ts";

export interface LoadChatOptions {
  /**
   * How conversations are rendered and replies parsed; null uses the model's own template. `"plain"` is for base models;
   * see `renderers`.
   */
  rendererName?: string | null;
  /** A renderer of the user's (`defineRenderer`), instead of a name. */
  renderer?: Renderer | undefined;
  /** No thinking before an answer. */
  disableThinking?: boolean;
  /** Keep the thinking of earlier replies in prompts even if the template drops it. */
  accumulateReasoning?: boolean;
  /** For templates with a `reasoning_effort`. */
  reasoningEffort?: string;
  /** Called for settings that have no effect with this model, and for tools that its template does not support. */
  log?: ((line: string) => void) | undefined;
}

/**
 * @param directory holds tokenizer.json, tokenizer_config.json and, in recent models, chat_template.jinja
 * @throws UserError if the files are missing, broken or have no chat template, or the renderer is unknown
 */
export function loadChat(directory: string, options: LoadChatOptions = {}): Chat {
  const tokenizer = openTokenizer(directory);
  const { config, encode, leastTokens, decode, idOf, specials } = tokenizer;
  const { rendererName } = options;
  const renderer =
    options.renderer ?? (rendererName == null ? undefined : findRenderer(rendererName, tokenizer, directory));
  const template = renderer?.template;
  const sources: TemplateSources | undefined =
    template === undefined ? findTemplate(directory, config) : { plain: template };
  if (sources === undefined) {
    throw new UserError(`the model in ${directory} has no chat template; it is probably a base model`, {
      hint: "use the instruct version of the model, add a chat_template.jinja to the folder, or set rollout_engine.renderer_name=plain, which writes one message per line without roles",
    });
  }
  const format = renderer ?? detectFormat(sources.plain, sources.tools);
  const { renderText, takesTools } = compileTemplate(sources, config, directory, format.callId);
  const { disableThinking = false, accumulateReasoning = false, reasoningEffort, log } = options;
  if (disableThinking && !thinkingMatters(renderText, format))
    log?.(`disable_thinking has no effect: the chat template of ${directory} cannot turn thinking on or off`);
  if (reasoningEffort !== undefined && reasoningEffort !== defaultEffort && !writes(sources, "reasoning_effort"))
    log?.(`reasoning_effort has no effect: the chat template of ${directory} does not use it`);
  return assembleChat({
    encode,
    leastTokens,
    decode,
    specials,
    accumulateReasoning,
    encodeElsewhere: encodeElsewhere(directory),
    readsClock: writes(sources, "strftime_now"),
    renderText: takesTools ? renderText : logTools(renderText, directory, log),
    format: takesTools ? format : { ...format, calls: either(format.calls, hermes) },
    addSpecial: renderer?.addSpecial ?? false,
    ids: { bos: idOf(config.bos_token), eos: idOf(config.eos_token), pad: idOf(config.pad_token) },
    stopIds: readStopIds(directory),
    thinking: disableThinking ? false : undefined,
    reasoningEffort,
  });
}

/** Logs when tools are first described in the system message. */
function logTools(renderText: RenderText, directory: string, log: LoadChatOptions["log"]): RenderText {
  let logged = false;
  return (messages, options) => {
    if (!logged && options.tools?.length) {
      logged = true;
      log?.(
        `the chat template of ${directory} does not support tools: the system message describes them, and calls are parsed in the format of Hermes; rollout_engine.renderer_name selects another format`,
      );
    }
    return renderText(messages, options);
  };
}

/** The default of templates with a `reasoning_effort`. */
const defaultEffort = "medium";

const writes = ({ plain, tools = "" }: TemplateSources, name: string) => plain.includes(name) || tools.includes(name);

function findRenderer(name: string, { idOf }: Tokenizer, directory: string): Renderer {
  const renderer = own<Renderer>(renderers, name);
  if (renderer === undefined) {
    throw new UserError(`the renderer ${JSON.stringify(name)} does not exist`, {
      hint: `the renderers are ${Object.keys(renderers).join(", ")}; a file with defineRenderer ends in .ts or .js`,
    });
  }
  const missing = renderer.needs?.find((token) => idOf(token) === null);
  if (missing === undefined) return renderer;
  throw new UserError(`the renderer ${name} writes ${missing}, which is not a token of the model in ${directory}`, {
    hint: "set rollout_engine.renderer_name to null to use the model's own template",
  });
}

/** Whether thinking can be turned off: by the template, or by closing the tag that its generation prompt opens. */
function thinkingMatters(renderText: RenderText, { thinking }: ReplyFormat): boolean {
  const asked = [{ role: "user", content: "?" }] as const;
  const on = renderText(asked, { thinking: true });
  if (on !== renderText(asked, { thinking: false })) return true;
  return thinking !== undefined && on.trimEnd().endsWith(thinking.open);
}

const generationConfig = z.looseObject({ eos_token_id: z.union([z.number(), z.array(z.number())]).nullish() });

/** Llama 3 and others end turns with tokens that only generation_config.json names. */
function readStopIds(directory: string): number[] {
  const file = join(directory, "generation_config.json");
  if (!existsSync(file)) return [];
  const parsed = generationConfig.safeParse(readJson(file));
  if (!parsed.success) throw new UserError(`${file}: ${z.prettifyError(parsed.error)}`);
  return [parsed.data.eos_token_id ?? []].flat();
}

/**
 * @param log called for settings that have no effect with this model
 * @throws UserError as `loadChat` does
 */
export async function openChat(
  directory: string,
  { rllm, rollout_engine }: Config,
  log?: (line: string) => void,
): Promise<Chat> {
  const { renderer_name: name } = rollout_engine;
  const isFile = name !== null && isModulePath(name);
  return loadChat(directory, {
    rendererName: isFile ? null : name,
    renderer: isFile ? await loadRenderer(name) : undefined,
    disableThinking: rllm.disable_thinking,
    accumulateReasoning: rllm.accumulate_reasoning,
    reasoningEffort: rollout_engine.reasoning_effort,
    log,
  });
}
