/** What an agent did outside of the conversation: commands with their exit codes, changed files, the verifier's output, side calls. */
import type { Episode } from "../../src/apps/view/queries/episode.ts";
import { count, short } from "./numbers.ts";
import { oneLine, printable } from "./printable.ts";

/** Roles that the gateway gives to calls which are not the agent's own conversation. */
const sideRoles = new Set(["side", "subagent"]);

interface CommandRow {
  role: string | null;
  turn: number | null;
  tool: string | null;
  command: string;
  output: string | null;
  exitCode: number | null;
}

export function Trial({ episode }: { episode: Episode }) {
  const { trial, detail } = episode;
  const ofWorkflow = (trial?.commands ?? []).map((each) => ({ ...each, role: null, turn: null, tool: null }));
  const commands: CommandRow[] = [...episode.commands, ...ofWorkflow];
  const files = trial?.files ?? [];
  const side = detail.filter(({ role }) => sideRoles.has(role));
  const verifier = trial?.verifier?.trim() ?? "";
  if (commands.length === 0 && files.length === 0 && verifier === "" && side.length === 0) return null;
  const failed = commands.filter(({ exitCode }) => exitCode !== null && exitCode !== 0).length;
  const roles = new Set(commands.map(({ role }) => role));
  return (
    <section class="trial" aria-label="trial">
      {commands.length > 0 && (
        <details>
          <summary>
            {count(commands.length, "command")}
            {failed > 0 && `, ${failed} failed`}
          </summary>
          <ol class="commands">
            {commands.map((each, index) => (
              <Command key={index} {...each} shown={roles.size > 1} />
            ))}
          </ol>
        </details>
      )}
      {files.length > 0 && (
        <details>
          <summary>{count(files.length, "file")} changed</summary>
          <ul class="files">
            {files.map(({ path, change }) => (
              <li key={path}>
                <span class={`change ${change}`}>{change}</span> <code>{oneLine(path)}</code>
              </li>
            ))}
          </ul>
        </details>
      )}
      {verifier !== "" && (
        <details>
          <summary>Verifier</summary>
          <pre>{printable(verifier)}</pre>
        </details>
      )}
      {side.length > 0 && (
        <p class="muted">
          side calls:{" "}
          {side
            .map(({ role, turnList, reward }) => {
              const paid = reward === null ? "not trained" : `reward ${short(reward)}`;
              return `${oneLine(role)} ${count(turnList.length, "turn")}, ${paid}`;
            })
            .join("; ")}
        </p>
      )}
    </section>
  );
}

function Command({ role, turn, tool, command, output, exitCode, shown }: CommandRow & { shown: boolean }) {
  const where = [shown ? (role ?? "workflow") : "", turn === null ? "" : `turn ${turn}`, tool ?? ""].filter(Boolean);
  const line = (
    <>
      <span class={`exit ${exitCode === null ? "" : exitCode === 0 ? "ok" : "bad"}`} title="exit code">
        {exitCode ?? "–"}
      </span>
      <code>{oneLine(command)}</code>
      <span class="muted">{oneLine(where.join(" · "))}</span>
    </>
  );
  if (!output && !command.includes("\n")) return <li class="line">{line}</li>;
  return (
    <li>
      <details>
        <summary class="line">{line}</summary>
        {command.includes("\n") && <pre>{printable(command)}</pre>}
        {output && <pre>{printable(output)}</pre>}
      </details>
    </li>
  );
}
