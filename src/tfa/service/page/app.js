// Start the page: tabs, map chooser and API key; refresh views after changes.
import { call, chooseMap, chosenMap, events, setApiKey, announce, apiKey } from "./api.js";
import { startCamera } from "./camera.js";
import { startRecognizing } from "./recognize.js";
import { startCalibrating } from "./calibrate.js";
import { alertIn, byId, count, make, say } from "./dom.js";
import { refuseStrayDrops } from "./files.js";
import { startMap } from "./photos.js";
import { showReport } from "./report.js";
import { startTabs } from "./tabs.js";

const views = { recognize: startRecognizing(), camera: startCamera(), map: startMap(), calibrate: startCalibrating(), report: { show: showReport } };
const stale = new Set(Object.keys(views));
let shown = "recognize";
let facts = null;

/** Fill the visible view if it changed since it was last shown. */
function freshen() {
  if (!facts || !stale.has(shown)) return;
  stale.delete(shown);
  views[shown].show(facts);
}

async function loadFacts() {
  const info = await call("v1/map");
  const active = info.calibrations.find((one) => one.active);
  facts = { ...info, calibrations: info.calibrations.map((one) => one.name), active: active ? active.name : null };
  const answers = facts.active ? `calibrated to ${facts.active}` : "not calibrated";
  say("map-name", facts.name || "Place map");
  const { text: recall, notice } = facts.recent || {}; // summary of the last queries
  const parts = [count(facts.images, "photo"), facts.encoder.id, answers, `revision ${facts.revision}`, recall, notice];
  say("map-facts", parts.filter(Boolean).join(" · "));
  const readOnly = facts.editable === false;
  for (const note of document.querySelectorAll(".read-only")) note.hidden = !readOnly;
  for (const id of ["add-box", "calibrate-form", "active"]) byId(id).hidden = readOnly;
  document.title = facts.name ? `${facts.name} – place map` : "Place map";
}

async function loadMaps() {
  const maps = await call("v1/maps");
  const names = maps.map((one) => one.name);
  if (!names.includes(chosenMap())) chooseMap(""); // the service no longer has this map
  byId("map-select").replaceChildren(...maps.map((one) => make("option", { value: one.name }, `${one.name} (${count(one.images, "photo")})`)));
  byId("map-select").value = chosenMap() || names[0] || "";
  byId("map-chooser").hidden = maps.length < 2;
}

/** Reload everything: at the start, and after an API key, another map or an edit. */
async function load() {
  alertIn("start-alert", null);
  try {
    await loadMaps();
    await loadFacts();
  } catch (error) {
    alertIn("start-alert", error);
    return;
  }
  Object.keys(views).forEach((name) => stale.add(name));
  freshen();
}

function startApiKey() {
  const form = byId("api-key-form");
  events.addEventListener("api-key-needed", () => {
    const first = form.hidden;
    form.hidden = false;
    byId("api-key-forget").hidden = !apiKey();
    if (first) byId("api-key").focus();
  });
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    setApiKey(byId("api-key").value.trim());
    byId("api-key").value = "";
    form.hidden = true; // shown again if the service refuses this key
    for (const id of ["map-alert", "calibrate-alert", "report-alert"]) alertIn(id, null);
    await load();
    announce("access");
  });
  byId("api-key-forget").addEventListener("click", () => {
    setApiKey("");
    form.hidden = true;
    load();
  });
}

byId("map-select").addEventListener("change", (event) => {
  chooseMap(event.target.value);
  announce("map-chosen");
  load();
});
events.addEventListener("map-edited", load);
refuseStrayDrops();
startApiKey();
startTabs((name) => {
  shown = name;
  if (facts && !stale.has(name)) views[name].seen?.(); // refresh parts that change without an edit
  freshen();
});
load();
