/** The tables of a run's index. It is built from the run folder, and rebuilt whenever this version changes. */
export const schemaVersion = 6;

/**
 * `trajectories` has one row for each trajectory of an episode. Each row repeats the columns of the episode, so that a
 * filter is a single scan of short rows. `part` is the number of the trajectory, and `episode` is the row of part 0. An
 * episode without trajectories has one row, with part 0. `details` has the columns that lists show but few filters use.
 * `gradings` finds any part of an explanation or of a failure's message. `problems` has the lines that are skipped; 0 lines:
 * the whole file cannot be read.
 * Lists can be sorted by reward in both directions, with the newest step first among equal rewards; each has its own index.
 */
export const schema = `
CREATE TABLE state (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE files (name TEXT PRIMARY KEY, mark TEXT NOT NULL, offset INTEGER NOT NULL, rows INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE trajectories (
  row INTEGER PRIMARY KEY AUTOINCREMENT, episode INTEGER NOT NULL, part INTEGER NOT NULL,
  key TEXT NOT NULL, place INTEGER NOT NULL,
  step INTEGER NOT NULL, kind TEXT NOT NULL, task TEXT NOT NULL, rollout INTEGER NOT NULL,
  role TEXT, instance INTEGER, reward, advantage, part_tokens INTEGER NOT NULL, part_turns INTEGER NOT NULL,
  signal INTEGER, correct INTEGER, termination TEXT NOT NULL,
  failure TEXT, boundary TEXT,
  tokens INTEGER NOT NULL, turns INTEGER NOT NULL, tools INTEGER NOT NULL, seconds REAL NOT NULL, retries INTEGER NOT NULL,
  oldest INTEGER, version INTEGER
);
CREATE INDEX by_episode ON trajectories (episode, part);
CREATE INDEX by_key ON trajectories (key);
CREATE INDEX by_place ON trajectories (step, kind, place, part);
CREATE INDEX by_part ON trajectories (part, step, kind);
CREATE INDEX by_reward ON trajectories (part, reward, step DESC, place);
CREATE INDEX by_reward_down ON trajectories (part, reward DESC, step DESC, place);
CREATE INDEX by_role ON trajectories (role);
CREATE INDEX by_task ON trajectories (task, kind, step);
CREATE TABLE details (
  episode INTEGER PRIMARY KEY, file TEXT NOT NULL, offset INTEGER NOT NULL, length INTEGER NOT NULL,
  message TEXT, explanation TEXT, preview TEXT NOT NULL
);
CREATE INDEX by_file ON details (file);
CREATE VIRTUAL TABLE texts USING fts5(text, tokenize = "unicode61 remove_diacritics 0");
CREATE VIRTUAL TABLE gradings USING fts5(
  explanation, message, content = "", contentless_delete = 1, tokenize = "trigram"
);
CREATE TABLE retries (episode INTEGER NOT NULL, failure TEXT NOT NULL, boundary TEXT NOT NULL, message TEXT NOT NULL);
CREATE INDEX retries_by_episode ON retries (episode);
CREATE TABLE names (name INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE);
CREATE TABLE steps (
  kind TEXT NOT NULL, step INTEGER NOT NULL, epoch INTEGER, time REAL, PRIMARY KEY (kind, step)
) WITHOUT ROWID;
CREATE TABLE points (
  kind TEXT NOT NULL, name INTEGER NOT NULL, step INTEGER NOT NULL, value, PRIMARY KEY (kind, name, step)
) WITHOUT ROWID;
CREATE TABLE marks (seq INTEGER PRIMARY KEY, offset INTEGER NOT NULL);
CREATE TABLE phases (step INTEGER NOT NULL, name TEXT NOT NULL, began REAL NOT NULL, ended REAL NOT NULL);
CREATE INDEX phases_by_time ON phases (ended);
CREATE TABLE windows (
  kind TEXT NOT NULL, step INTEGER NOT NULL, began REAL NOT NULL, ended REAL, PRIMARY KEY (kind, step)
) WITHOUT ROWID;
CREATE TABLE rollouts (
  kind TEXT NOT NULL, step INTEGER NOT NULL, task TEXT NOT NULL, rollout INTEGER NOT NULL, queued REAL NOT NULL,
  ended REAL, outcome TEXT, retries INTEGER NOT NULL, reward, first INTEGER NOT NULL, last INTEGER
);
CREATE INDEX rollouts_by_name ON rollouts (kind, task, rollout);
CREATE INDEX rollouts_by_end ON rollouts (ended);
CREATE TABLE weights (time REAL NOT NULL, version INTEGER NOT NULL, step INTEGER NOT NULL);
CREATE TABLE notes (time REAL NOT NULL, kind TEXT NOT NULL, step INTEGER, text TEXT NOT NULL);
CREATE TABLE problems (file TEXT PRIMARY KEY, lines INTEGER NOT NULL, first INTEGER, reason TEXT NOT NULL) WITHOUT ROWID;
PRAGMA user_version = ${schemaVersion};
`;
