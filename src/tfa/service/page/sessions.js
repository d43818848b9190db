// Sessions: cameras that queries named, what they have seen, and how to let them forget it.
import { call, events } from "./api.js";
import { alertIn, byId, count, make, say, table } from "./dom.js";

let editable = true;

const timeOf = (text) => new Date(text).toLocaleString([], { dateStyle: "medium", timeStyle: "short" });

/** Read anew each time the tab is shown; hidden where the service keeps none. */
export async function showSessions(facts = null) {
  if (facts) editable = facts.editable !== false;
  let told = null;
  try {
    told = await call("v1/sessions");
  } catch {
    told = null; // no token yet, which the page says elsewhere
  }
  byId("sessions").hidden = !told?.most;
  if (!told?.most) return;
  const rows = told.sessions.map((one) => ({ cells: [
    one.name, count(one.seen, "photo"), String(one.counted), timeOf(one.last_used),
    editable ? make("button", { type: "button", "aria-label": `Reset ${one.name}`, click: () => reset(one.name) }, "Reset") : ""] }));
  say("sessions-words", `${rows.length} of at most ${count(told.most, "session")}.`);
  byId("sessions-list").replaceChildren(
    rows.length ? table(["Session", "Seen", "Taught", "Last used", ""], rows, "Sessions") : "");
  byId("sessions-reset").hidden = !editable || rows.length === 0;
  byId("session-names").replaceChildren(...told.sessions.map((one) => make("option", { value: one.name })));
}

/** Forget one session, or all. */
async function reset(name = null) {
  alertIn("calibrate-alert", null);
  try {
    const { reset: gone } = await call(name ? `v1/sessions/${encodeURIComponent(name)}` : "v1/sessions", { method: "DELETE" });
    say("sessions-status", `Forgotten: ${gone.join(", ") || "nothing, there was no session"}.`);
  } catch (error) {
    alertIn("calibrate-alert", error);
  }
  await showSessions();
}

export function startSessions() {
  byId("sessions-reset").addEventListener("click", () => reset());
  events.addEventListener("map-chosen", () => say("sessions-status", ""));
}
