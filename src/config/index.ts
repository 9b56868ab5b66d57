export { type ComposedConfig, type ConfigSources, composeConfig } from "./compose.ts";
export { configKeys, type KeyDescription } from "./describe.ts";
export { type ExplainedKey, explainConfig } from "./explain.ts";
export { configJsonSchema } from "./json-schema.ts";
export { type Origin, originText } from "./origin.ts";
export { type Config, type ConfigInput, configSchema } from "./schema.ts";
export { toYaml } from "./to-yaml.ts";
