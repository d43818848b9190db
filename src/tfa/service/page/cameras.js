// Cameras that queries named, what they have seen, and how to let them forget it.
import { call, events } from "./api.js";
import { alertIn, byId, count, make, say, table } from "./dom.js";

let editable = true;

const timeOf = (text) => new Date(text).toLocaleString([], { dateStyle: "medium", timeStyle: "short" });

/** Read anew each time the tab is shown; hidden where the service keeps none. */
export async function showCameras(facts = null) {
  if (facts) editable = facts.editable !== false;
  let told = null;
  try {
    told = await call("v1/cameras");
  } catch {
    told = null; // no API key yet, which the page says elsewhere
  }
  byId("cameras").hidden = !told?.most;
  if (!told?.most) return;
  const rows = told.cameras.map((one) => ({ cells: [
    one.name, count(one.seen, "photo"), String(one.counted), timeOf(one.last_used),
    editable ? make("button", { type: "button", "aria-label": `Reset ${one.name}`, click: () => reset(one.name) }, "Reset") : ""] }));
  say("cameras-words", `${rows.length} of at most ${count(told.most, "camera")}.`);
  byId("cameras-list").replaceChildren(
    rows.length ? table(["Camera", "Seen", "Taught", "Last used", ""], rows, "Cameras") : "");
  byId("cameras-reset").hidden = !editable || rows.length === 0;
  byId("camera-names").replaceChildren(...told.cameras.map((one) => make("option", { value: one.name })));
}

/** Forget one camera, or all. */
async function reset(name = null) {
  alertIn("calibrate-alert", null);
  try {
    const { reset: gone } = await call(name ? `v1/cameras/${encodeURIComponent(name)}` : "v1/cameras", { method: "DELETE" });
    say("cameras-status", `Forgotten: ${gone.join(", ") || "nothing, there was no camera"}.`);
  } catch (error) {
    alertIn("calibrate-alert", error);
  }
  await showCameras();
}

export function startCameras() {
  byId("cameras-reset").addEventListener("click", () => reset());
  events.addEventListener("map-chosen", () => say("cameras-status", ""));
}
