/**
 * Tells solos-memory what happened to a worker, so that its memory holds it: one call at each of seven moments.
 *
 *   dispatch           an assignment is sent to a worker
 *   checkpoint         a checkpoint was parsed from its output
 *   handoff-requested  the lifecycle asks it for a handoff
 *   handoff-written    the handoff is there: `content` is its Markdown
 *   resume             it was started again from a handoff
 *   blocked            it says that it cannot go on
 *   complete           its mission is done
 *
 * Needs Node 18 and nothing else. A failure never reaches the caller: `report` resolves to false, and says why once on
 * the console. What a field may hold at most stands in runbooks/swarm.md#limits of solos-memory.
 */

import { randomUUID } from "node:crypto";

const SERVICE = process.env.SOLOS_MEMORY_URL ?? "http://127.0.0.1:8437";
const ATTEMPT_WITHIN_MS = 2_000;
const ATTEMPTS = 2;
const SUMMARY_CHARS_MAX = 1_000;

export type Hook =
  | "dispatch"
  | "checkpoint"
  | "handoff-requested"
  | "handoff-written"
  | "resume"
  | "blocked"
  | "complete";

export interface Report {
  workerId: string;
  /** Needed by handoff-written; without it the event goes into the day's episodes alone. */
  missionId?: string;
  assignmentId?: string;
  /** What happened, in one line; what is longer than 1,000 characters is cut here, so put the whole into `content`. */
  summary?: string;
  /** The rest, Markdown. */
  content?: string;
  title?: string;
  event?: {
    state?: string;
    result?: string;
    objective?: string;
    nextAction?: string;
    decisions?: string[];
    filesTouched?: string[];
    commandsRun?: string[];
    blockers?: string[];
    [other: string]: unknown;
  };
  /** Of handoff-written: false keeps it out of shared memory. */
  mirrorShared?: boolean;
  /** The same id and content is written once, however often it is sent; made here where it is missing. */
  requestId?: string;
}

/** Resolves to true when it is on disk, to false when it is not, or when nobody knows. Takes 4 s at most. */
export async function report(hook: Hook, what: Report): Promise<boolean> {
  let problem = "";
  try {
    const summary = what.summary && Array.from(what.summary).slice(0, SUMMARY_CHARS_MAX).join("");
    const body = JSON.stringify({ requestId: randomUUID(), ...what, summary });
    for (let attempt = 1; attempt <= ATTEMPTS; attempt++) {
      try {
        const response = await fetch(`${SERVICE}/api/swarm-memory/hooks/${hook}`, {
          method: "POST",
          headers: { "Content-Type": "application/json" },
          body,
          signal: AbortSignal.timeout(ATTEMPT_WITHIN_MS),
        });
        const text = await response.text();
        if (response.ok) return true;
        problem = `${response.status} ${text.slice(0, 300)}`;
        if (response.status < 500) break; // the report itself is refused: the same again would be, too
      } catch (error) {
        problem = String(error);
      }
    }
  } catch (error) {
    problem = String(error);
  }
  console.warn(`solos-memory: ${hook} of ${what?.workerId} was not written: ${problem}`);
  return false;
}
