/** `hone push`: uploads an export with its model card to the Hugging Face hub, by the hub's own client. */
import { readdirSync, statSync } from "node:fs";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { createRepo, HubApiError, uploadFiles, whoAmI } from "@huggingface/hub";
import type { Command } from "commander";
import { RunError, UserError } from "../../base/errors.ts";
import { reasonOf } from "../../base/http.ts";
import { showStatus } from "./report-error.ts";

interface PushFlags {
  public?: boolean;
  branch?: string;
  message: string;
}

export function register(command: Command): void {
  command
    .argument("<folder>", "the folder that hone export wrote")
    .argument("<repository>", "organization/name, or a name of your own account")
    .option("--public", "make a new repository public; it is private by default")
    .option("--branch <name>", "an existing branch (default: main)")
    .option("--message <text>", "the title of the commit", "Upload by Hone")
    .addHelpText("after", help)
    .action(pushCommand);
}

const help = `
HF_TOKEN is a token with write access. HF_ENDPOINT replaces the hub's address.
All files of the folder are uploaded, README.md as the model card.

Examples:
  hone export runs/latest my-model --as merged
  HF_TOKEN=hf_... hone push my-model my-organization/my-model`;

async function pushCommand(folder: string, repository: string, flags: PushFlags): Promise<void> {
  const files = filesOf(folder);
  const accessToken = process.env.HF_TOKEN?.trim();
  if (!accessToken?.startsWith("hf_")) {
    throw new UserError("HF_TOKEN is not set to a token of the hub, which starts with hf_", {
      hint: "make a token with write access on the hub's page of access tokens, then: export HF_TOKEN=hf_...",
    });
  }
  const hubUrl = (process.env.HF_ENDPOINT || "https://huggingface.co").replace(/\/+$/, "");
  const hub = { hubUrl, accessToken };
  const status = showStatus();
  try {
    const name = repository.includes("/") ? repository : `${(await whoAmI(hub)).name}/${repository}`;
    if (!/^[\w.-]+\/[\w.-]+$/.test(name))
      throw new UserError(`${repository} is not a repository: write organization/name`);
    const repo = { type: "model", name } as const;
    await createRepo({ ...hub, repo, visibility: flags.public ? "public" : "private" }).catch((error: unknown) => {
      if (!(error instanceof HubApiError && error.statusCode === 409)) throw error;
      if (flags.public)
        throw new UserError(`${name} exists already; --public does not change it`, { hint: "leave --public out" });
    });
    status.say(`uploading ${files.length} files to ${name}`);
    const commit = await uploadFiles({
      ...hub,
      repo,
      files: files.map((path) => ({ path, content: pathToFileURL(join(resolve(folder), path)) })),
      commitTitle: flags.message,
      ...(flags.branch === undefined ? {} : { branch: flags.branch }),
    });
    status.end();
    process.stdout.write(
      `${files.length} files uploaded to ${hubUrl}/${name}${commit === undefined ? "" : `: ${commit.commit.url}`}\n`,
    );
  } catch (error) {
    throw failure(error, repository, hubUrl);
  } finally {
    status.end();
  }
}

/** @throws UserError if it is not an export */
function filesOf(folder: string): string[] {
  if (!statSync(folder, { throwIfNoEntry: false })?.isDirectory()) throw new UserError(`${folder} is not a folder`);
  const files = readdirSync(folder, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath, entry.name).slice(join(folder, "/").length))
    .sort();
  const isExport = files.some((file) => /\.(safetensors|gguf)$/.test(file)) && files.includes("README.md");
  if (isExport) return files;
  throw new UserError(`${folder} is not an export: it has no weights with a README.md`, {
    hint: "hone export runs/latest my-model --as merged",
  });
}

function failure(error: unknown, repository: string, hubUrl: string): unknown {
  if (!(error instanceof HubApiError)) {
    if (error instanceof UserError) return error;
    return new RunError(`${repository} could not be uploaded to ${hubUrl}: ${reasonOf(error)}`, {
      hint: "check the network, then push again; HF_ENDPOINT names another address of the hub",
      cause: error,
    });
  }
  if (error.statusCode === 401 || error.statusCode === 403) {
    return new UserError(`the hub denied access to ${repository} (${error.statusCode})`, {
      hint: "check the name, and that the token in HF_TOKEN may write to it",
      cause: error,
    });
  }
  return new RunError(`${repository} could not be uploaded: the hub answered ${error.statusCode}: ${error.message}`, {
    cause: error,
  });
}
