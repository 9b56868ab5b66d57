/** `rllm.sdk` and `rllm.gateway`: the server through which agents call the model, and its traces. */
import { z } from "zod";
import { aboveZero, count, hosts, off, optionalText, section, text } from "./about.ts";

export const sdk = section({
  store: section({
    path: text
      .default("~/.rllm/traces.db")
      .describe("Path of the trace database. Setting it also sets rllm.gateway.store=sqlite, unless that key is set."),
    retention_days: aboveZero
      .nullable()
      .default(null)
      .describe("Delete traces older than this many days when a run opens the database; null keeps all."),
  }),
  processing: section({
    groupby_key: optionalText.describe(
      "Metadata key that groups calls into trajectories by its value; null groups calls by role.",
    ),
    traj_name_key: optionalText.describe("Metadata key whose value names the trajectory."),
  }),
  proxy: section({
    host: text.default("127.0.0.1").describe("Address on which the gateway listens."),
    port: count
      .min(0)
      .max(65_535)
      .default(4000)
      .describe("Port of the gateway. In mode subprocess, 4000 means any free port.")
      .meta({ note: "Hone passes the port to the agents that it starts, so concurrent runs do not collide." }),
    mode: z
      .enum(["subprocess", "external"])
      .default("subprocess")
      .describe("subprocess: agents run in this process or are started by it; external: agents run elsewhere.")
      .meta({ note: "In rLLM it sets who starts the proxy; Hone's gateway is part of the trainer." }),
    admin_token: text
      .default("my-shared-secret")
      .describe("Token for administrative requests. The default is rejected if other machines can reach the gateway.")
      // biome-ignore lint/suspicious/noTemplateCurlyInString: the configuration's references are spelled like that
      .meta({ secret: true, note: "The token is not saved with a run; set it as ${oc.env:HONE_ADMIN_TOKEN}." }),
  }),
});

export const gateway = section({
  host: optionalText.describe("Address on which the gateway listens; null uses rllm.sdk.proxy.host."),
  port: count
    .min(0)
    .max(65_535)
    .nullable()
    .default(null)
    .describe("Port of the gateway; 0 picks a free port, null uses rllm.sdk.proxy.port.")
    .meta({ note: "rLLM's default is 9090." }),
  tunnel: optionalText.describe(
    "URL of a tunnel to the gateway (http:// or https://), or cloudflared or ngrok, which Hone then starts and ends with the run. Calls then need API keys unless the URL is a loopback address.",
  ),
  store: z
    .enum(["memory", "sqlite"])
    .default("memory")
    .describe("Where model calls are stored in addition to the episodes: nowhere (memory) or in a database (sqlite)."),
  db_path: optionalText.describe(
    "Path of the trace database; null uses rllm.sdk.store.path. Setting it also sets rllm.gateway.store=sqlite, unless that key is set.",
  ),
  unenforceable: z
    .enum(["refuse", "allow"])
    .default("refuse")
    .describe(
      "Requests for guarantees that sampling cannot give (strict schemas, a required tool): refuse them, or allow and count them.",
    ),
  client_sampling: z
    .enum(["ignore", "honor"])
    .default("ignore")
    .describe(
      "Temperature, top_p, top_k, min_p and seed in agents' own calls: ignore and count them, or apply them (honor).",
    )
    .meta({
      aliases: { honour: "honor" },
      note: "A fixed seed or temperature 0 would make all rollouts of a task identical.",
    }),
  image_hosts: hosts.describe(
    "Hosts from which the gateway fetches images whose address a client sends: host names, *.example.com for those below it, * for all. Addresses that are not public must be listed too, as an IP address or a network. Default: images only as data URLs.",
  ),
  cumulative_token_mode: off
    .describe("Continue conversations from their recorded tokens. Hone always does this.")
    .meta({ neutral: [true], note: "It is an optional mode in rLLM; Hone never re-encodes tokens." }),
  renderer_family: text
    .default("auto")
    .describe("Renderer that converts messages to tokens; auto uses the model's own chat template.")
    .meta({ later: "the gateway supports only the model's own chat template so far" }),
});
