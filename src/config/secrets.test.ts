// biome-ignore-all lint/suspicious/noTemplateCurlyInString: the configuration's references are spelled like that
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { UserError } from "../base/errors.ts";
import { checkRunGateway } from "../gateway/run-gateway.ts";
import { explainConfig } from "../rules/check.ts";
import { temporaryFolder } from "../temporary-folder.fixture.ts";
import { type ConfigSources, composeConfig } from "./compose.ts";
import { diffConfigs } from "./diff.ts";
import { maskedSecret, shownTree } from "./secrets.ts";
import { toYaml } from "./yaml.ts";

const secret = "a-secret-4711";
const key = "rllm.sdk.proxy.admin_token";
beforeEach(() => void vi.stubEnv("HONE_TEST_TOKEN", secret));
afterEach(() => vi.unstubAllEnvs());

const compose = (overrides: string[], more: ConfigSources = {}) => composeConfig({ ...more, overrides });

/** Everything that is stored or shown of a configuration. */
const shownOf = (overrides: string[]) => {
  const composed = compose(overrides);
  return [
    toYaml(composed.stored, composed.origins, { unresolved: true }),
    JSON.stringify(composed.storedConfig),
    toYaml(composed.unresolved, composed.origins, { unresolved: true }),
    JSON.stringify(shownTree(composed.tree, composed.masks)),
    JSON.stringify(explainConfig(composed)),
    JSON.stringify(diffConfigs(composed, compose([]))),
    JSON.stringify(diffConfigs(compose([]), composed)),
  ];
};

const forms: Record<string, string[]> = {
  "an admin token as it is": [`${key}=${secret}`],
  "an admin token in quotes, forced": [`++${key}="${secret}"`],
  "a section with the token": [`rllm.sdk.proxy={admin_token:${secret},host:127.0.0.1}`],
  "an admin token from the environment": [`${key}=\${oc.env:HONE_TEST_TOKEN}`],
  "another key from the environment": ["rllm.trainer.experiment_name=${oc.env:HONE_TEST_TOKEN}"],
  "text with a variable in it": ["rllm.trainer.experiment_name=run-${oc.env:HONE_TEST_TOKEN}-x"],
  "a reference to a reference": [
    "rllm.trainer.project_name=${oc.env:HONE_TEST_TOKEN}",
    "rllm.trainer.experiment_name=${rllm.trainer.project_name}",
  ],
  "the login of a URL": [`rllm.gateway.tunnel=http://me:${secret}@tunnel.example`],
  "the login of a URL among extra keys": [`++rllm.workflow.workflow_args={urls:["http://${secret}@a.example"]}`],
  "a list": ["rllm.trainer.logger=[console]", '++rllm.workflow.workflow_args={urls:["${oc.env:HONE_TEST_TOKEN}"]}'],
  "a decoded variable": ['rllm.trainer.experiment_name="${oc.decode:${oc.env:HONE_TEST_TOKEN}}"'],
};

test.each(Object.entries(forms))("a secret is neither stored nor shown: %s", (_, overrides) => {
  for (const shown of shownOf(overrides)) expect(shown).not.toContain(secret);
});

test.each(Object.entries(forms))("what is stored reads back as the same configuration: %s", (name, overrides) => {
  const composed = compose(overrides);
  const file = join(temporaryFolder("secrets"), "config.yaml");
  writeFileSync(file, toYaml(composed.stored, composed.origins, { unresolved: true }));
  const masked = name.includes("as it is") || name.includes("quotes") || name.includes("section");
  for (const again of [composeConfig({ files: [file] }), composeConfig({ input: composed.storedConfig as never })]) {
    const token = masked ? maskedSecret : composed.config.rllm.sdk.proxy.admin_token;
    expect(again.config.rllm.sdk.proxy.admin_token).toBe(token);
    expect(again.config.rllm.trainer).toEqual(composed.config.rllm.trainer);
  }
});

test("a reference is resolved again when a run resumes, with the variable's current value", () => {
  const { stored, origins } = compose([`${key}=\${oc.env:HONE_TEST_TOKEN}`]);
  const file = join(temporaryFolder("secrets"), "config.yaml");
  writeFileSync(file, toYaml(stored, origins, { unresolved: true }));
  vi.stubEnv("HONE_TEST_TOKEN", "a new one");
  expect(composeConfig({ files: [file] }).config.rllm.sdk.proxy.admin_token).toBe("a new one");
  vi.stubEnv("HONE_TEST_TOKEN", undefined);
  expect(() => composeConfig({ files: [file] })).toThrow(/HONE_TEST_TOKEN is not set/);
});

test("text that only looks like a reference, and numbers, are stored as they are", () => {
  const { stored, storedConfig, masks } = compose([
    "rllm.trainer.experiment_name=\\${a}",
    'data.train_batch_size="${oc.decode:${oc.env:NONE,7}}"',
  ]);
  expect(masks.size).toBe(0);
  expect(stored).toMatchObject({ data: { train_batch_size: 7 } });
  expect(composeConfig({ input: storedConfig as never }).config.rllm.trainer.experiment_name).toBe("${a}");
});

test("a mistake in a secret does not repeat it", () => {
  for (const override of [`${key}=[${secret}]`, `${key}=${secret} {`, `+${key}.x=${secret}`]) {
    let message = "no error";
    try {
      compose([override]);
    } catch (error) {
      message = (error as Error).message;
    }
    expect(message).toContain("admin_token");
    expect(message).not.toContain(secret);
  }
});

test("a masked token must be set again if the gateway needs it", () => {
  const check = (override: string) => checkRunGateway(compose([override]).config);
  expect(() => check(`${key}="${maskedSecret}"`)).toThrow(UserError);
  expect(() => check(`${key}="${maskedSecret}"`)).toThrow(/admin_token was not saved/);
  check(`${key}=${secret}`);
});
