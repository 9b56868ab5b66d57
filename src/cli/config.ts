/** `hone config`: the composed configuration, its explanation, or its schema. Standard output only. */
import { composeConfig } from "../config/compose.ts";
import { type ExplainedKey, explainConfig } from "../config/explain.ts";
import { configJsonSchema } from "../config/json-schema.ts";
import { toYaml } from "../config/to-yaml.ts";
import { UserError } from "../errors.ts";

interface ConfigOptions {
  config?: string[];
  format: string;
  explain?: string | true;
  schema?: boolean;
}

export async function configCommand(overrides: string[], options: ConfigOptions): Promise<void> {
  // `--explain training.lr=1e-4` leaves the override as the option's value.
  const explained = typeof options.explain === "string" && options.explain.includes("=") ? true : options.explain;
  const given = explained === options.explain ? overrides : [String(options.explain), ...overrides];
  const { format } = options;
  if (format !== "yaml" && format !== "json") {
    throw new UserError(`--format ${format} is neither yaml nor json`, { hint: "use --format yaml or --format json" });
  }
  const composed = composeConfig({ files: options.config ?? [], overrides: given });
  process.stdout.write(`${text()}\n`);

  function text(): string {
    if (options.schema) return JSON.stringify(configJsonSchema(), null, 2);
    if (explained !== undefined) {
      const keys = explainConfig(composed, explained === true ? undefined : explained);
      return format === "json" ? JSON.stringify(keys, null, 2) : keys.map(explanation).join("\n\n");
    }
    if (format === "json") return JSON.stringify(composed.config, null, 2);
    return toYaml(composed.config, composed.origins).trimEnd();
  }
}

function explanation({ key, value, originText, type, description, default: fallback }: ExplainedKey): string {
  return [
    `${key} = ${JSON.stringify(value)}`,
    `  ${description}`,
    `  type ${type}, default ${JSON.stringify(fallback)}, this value from ${originText}`,
  ].join("\n");
}
