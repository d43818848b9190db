// The list of cameras that queries named, with buttons to reset them.
import { call, events } from "./api.js";
import { alertIn, byId, count, make, say, table } from "./dom.js";

let editable = true;

const timeOf = (text) => new Date(text).toLocaleString([], { dateStyle: "medium", timeStyle: "short" });

/** Reload the list each time the tab is shown; hidden if the service has no cameras. */
export async function showCameras(facts = null) {
  if (facts) editable = facts.editable !== false;
  let listed = null;
  try {
    listed = await call("v1/cameras");
  } catch {
    listed = null; // no API key yet; the page asks for it elsewhere
  }
  byId("cameras").hidden = !listed?.most;
  if (!listed?.most) return;
  const rows = listed.cameras.map((one) => ({ cells: [
    one.name, count(one.seen, "photo"), String(one.counted), timeOf(one.last_used),
    editable ? make("button", { type: "button", "aria-label": `Reset ${one.name}`, click: () => reset(one.name) }, "Reset") : ""] }));
  say("cameras-words", `${rows.length} of at most ${count(listed.most, "camera")}.`);
  byId("cameras-list").replaceChildren(
    rows.length ? table(["Camera", "Queries", "Used to adapt", "Last used", ""], rows, "Cameras") : "");
  byId("cameras-reset").hidden = !editable || rows.length === 0;
  byId("camera-names").replaceChildren(...listed.cameras.map((one) => make("option", { value: one.name })));
}

/** Reset one camera, or all. */
async function reset(name = null) {
  alertIn("calibrate-alert", null);
  try {
    const { reset: gone } = await call(name ? `v1/cameras/${encodeURIComponent(name)}` : "v1/cameras", { method: "DELETE" });
    say("cameras-status", `Reset: ${gone.join(", ") || "no camera"}.`);
  } catch (error) {
    alertIn("calibrate-alert", error);
  }
  await showCameras();
}

export function startCameras() {
  byId("cameras-reset").addEventListener("click", () => reset());
  events.addEventListener("map-chosen", () => say("cameras-status", ""));
}
