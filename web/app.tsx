/** The frame of the page: top bar, tabs of a run, shortcuts, and the view of the address. */
import { useSignalEffect } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { Anatomy } from "./pages/anatomy.tsx";
import { Compare } from "./pages/compare.tsx";
import { Configuration } from "./pages/configuration.tsx";
import { Episode } from "./pages/episode.tsx";
import { Episodes } from "./pages/episodes.tsx";
import { Failures } from "./pages/failures.tsx";
import { Group } from "./pages/group.tsx";
import { Groups } from "./pages/groups.tsx";
import { Run } from "./pages/run.tsx";
import { Runs } from "./pages/runs.tsx";
import { Task } from "./pages/task.tsx";
import { Link, Pending, StateBadge } from "./parts/basics.tsx";
import { printable } from "./parts/printable.ts";
import { embedded, go, path } from "./state/address.ts";
import { useAnswer } from "./state/fetch.ts";
import { focusSearch, moveFocus, useKeys } from "./state/keys.ts";
import { connection } from "./state/live.ts";
import { addressAbove, tabAddress, tabOf, title } from "./state/place.ts";
import { switchTheme, theme } from "./state/theme.ts";

/** Small screens show a part of the tabs. */
const scrollToTab = () =>
  document.querySelector(".tabs [aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });

export function App() {
  const [area, run = "", view = "", item = ""] = path.value.split("/").slice(1).map(decodeURIComponent);
  const help = useRef<HTMLDialogElement>(null);
  useEffect(scrollToTab, [view]);
  useSignalEffect(() => {
    document.title = title(tabs);
  });
  useKeys({
    j: () => moveFocus(1),
    k: () => moveFocus(-1),
    "/": focusSearch,
    "?": () => help.current?.showModal(),
    u: () => go(addressAbove()),
  });
  return (
    <>
      <a class="skip" href="#main">
        Skip to the content
      </a>
      <TopBar run={area === "runs" ? run : ""} view={view} onHelp={() => help.current?.showModal()} />
      <main id="main">
        <View area={area ?? ""} run={run} view={view} item={item} />
      </main>
      <dialog ref={help} class="help" aria-label="Keyboard shortcuts" closedby="any">
        <h2>Keyboard</h2>
        <dl>
          {shortcuts.map(([keys, meaning]) => (
            <div key={keys}>
              <dt>
                {keys.split(" ").map((key) => (
                  <kbd key={key}>{key}</kbd>
                ))}
              </dt>
              <dd>{meaning}</dd>
            </div>
          ))}
        </dl>
        <button type="button" onClick={() => help.current?.close()}>
          Close
        </button>
      </dialog>
    </>
  );
}

const shortcuts = [
  ["j k", "next and previous row or turn; Enter opens it"],
  ["[ ]", "previous and next step or episode"],
  ["← →", "previous and next token, after focusing a block of tokens; Enter puts it into the address"],
  ["c", "next coloring of tokens"],
  ["/", "search, filter, or find in an episode; Enter goes to the next match"],
  ["u", "one level up"],
  ["?", "this list"],
] as const;

const tabs = [
  ["", "Overview"],
  ["anatomy", "Anatomy"],
  ["groups", "Groups"],
  ["episodes", "Episodes"],
  ["failures", "Failures"],
  ["config", "Configuration"],
] as const;

function TopBar({ run, view, onHelp }: { run: string; view: string; onHelp: () => void }) {
  const dark = theme.value === "dark";
  return (
    <header class="top">
      <nav class="crumbs" aria-label="Runs">
        <Link to="/" class="brand">
          Hone
        </Link>
        {run !== "" && <RunName run={run} />}
      </nav>
      {run !== "" && (
        <nav class="tabs" aria-label="Views of the run">
          {tabs.map(([name, label]) => (
            <Link key={name} to={tabAddress(run, name)} aria-current={tabOf(view) === name ? "page" : undefined}>
              {label}
            </Link>
          ))}
        </nav>
      )}
      <div class="tools">
        {embedded === undefined && (
          <span class={`connection ${connection.value}`} role="status">
            {connection.value === "lost" ? "reconnecting…" : ""}
          </span>
        )}
        <button
          type="button"
          class="icon"
          onClick={switchTheme}
          aria-label={dark ? "Use light colors" : "Use dark colors"}
        >
          {dark ? "☀" : "☾"}
        </button>
        <button type="button" class="icon" onClick={onHelp} aria-label="Keyboard shortcuts">
          ?
        </button>
      </div>
    </header>
  );
}

function RunName({ run }: { run: string }) {
  const { data } = useAnswer("/api/runs/:run", { run });
  return (
    <>
      <span class="muted" aria-hidden="true">
        /
      </span>
      <Link to={tabAddress(run, "")} class="run-name">
        {printable(run)}
      </Link>
      {data && <StateBadge state={data.state} />}
    </>
  );
}

/** The views of a run, by the part of the address that names them. */
const pages = new Map([
  ["", Run],
  ["anatomy", Anatomy],
  ["groups", Groups],
  ["group", Group],
  ["task", Task],
  ["episodes", Episodes],
  ["failures", Failures],
  ["config", Configuration],
]);

function View({ area, run, view, item }: { area: string; run: string; view: string; item: string }) {
  if (area === "") return <Runs />;
  if (area === "compare") return <Compare />;
  if (area !== "runs" || run === "") return <NotFound />;
  if (view === "episodes" && item !== "") return <Episode key={`${run} ${item}`} run={run} episode={item} />;
  const Page = pages.get(view);
  return Page === undefined ? <NotFound /> : <Page key={run} run={run} />;
}

const NotFound = () => (
  <Pending error={{ error: "There is no view at this address.", hint: "Start at the list of runs." }} />
);
