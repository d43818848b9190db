// The calibrate view: photos of a camera, the job's progress, and the decisions that change.
import { call, events, formOf, announce } from "./api.js";
import { alertIn, byId, count, make, say, table } from "./dom.js";
import { ChosenFiles, fileZone } from "./files.js";
import { showCameras, startCameras } from "./cameras.js";

let chosen = null;
let busy = false;

const rest = (milliseconds) => new Promise((resolve) => { setTimeout(resolve, milliseconds); });

function enable() {
  byId("calibrate-send").disabled = busy || chosen.files.length === 0;
}

/** Poll the job until it ends, less often the longer it takes. */
async function finished(id) {
  for (let pause = 200; ; pause = Math.min(pause * 1.4, 2000)) {
    const job = await call(`v1/jobs/${encodeURIComponent(id)}`);
    if (job.state === "failed") throw new Error(job.error || "The calibration failed. See the service log.");
    const bar = byId("job-bar");
    if (typeof job.progress === "number") bar.value = job.progress;
    else bar.removeAttribute("value");
    say("job-status", job.message || job.state);
    if (job.state === "done") return job.result || {};
    await rest(pause);
  }
}

/** Fetch the decisions of the active head. */
async function decided() {
  const facts = await call("v1/map");
  return (facts.calibrations.find((one) => one.active) || facts).decided;
}

async function calibrate(event) {
  event.preventDefault();
  const fields = byId("calibrate-form").elements;
  const name = fields.name.value.trim();
  alertIn("calibrate-alert", null);
  busy = true;
  enable();
  byId("changes").hidden = true;
  try {
    const before = await decided();
    byId("job-bar").value = 0;
    byId("job").hidden = false;
    say("job-status", `Sending ${count(chosen.files.length, "photo")}…`);
    const form = formOf("images", chosen.files, { name, score: fields.score.value });
    const { job } = await call("v1/calibrations", { method: "POST", form });
    const result = await finished(job);
    showChanges(name, before, await decided(), result);
    say("job-status", `The map is calibrated to ${name}.`);
    chosen.clear();
    announce("map-edited");
  } catch (error) {
    say("job-status", "");
    alertIn("calibrate-alert", error);
  }
  byId("job").hidden = true;
  busy = false;
  enable();
}

const percent = (share) => `${(100 * share).toFixed(0)}\u00a0%`;

const recallInWords = (recall) => `Expected R@1 on similar photos: ${percent(recall.share)} `
  + `(${percent(recall.low)} to ${percent(recall.high)}); ${percent(recall.sure)} recognized.`;

/** List every decision with its reason and its margin. */
function decidedList(rows) {
  return make("dl", { class: "decided" }, ...rows.flatMap((row) => [
    make("dt", {}, `${row.name}: `, make("b", {}, row.choice)),
    make("dd", {}, row.reason, row.margin
      ? make("span", { class: row.margin.within_noise ? "noise" : "margin" }, `${row.reason ? "; " : ""}${row.margin.text}`) : null)]));
}

/** Show decisions before and after in one table, and mark changes. */
function showChanges(name, before, after, result) {
  const old = Object.fromEntries(before.map((row) => [row.name, row.choice]));
  const rows = after.map((row) => {
    const was = old[row.name] ?? "–";
    const changed = row.choice !== was;
    return { cells: [row.name, was, changed ? `${row.choice} (changed)` : row.choice], changed };
  });
  const changes = rows.filter((row) => row.changed).length;
  const skipped = (result.skipped || []).map(([image, reason]) => `Skipped ${image}: ${reason}`);
  const place = byId("changes");
  place.replaceChildren(
    make("h3", { id: "changes-title", tabindex: "-1" }, `Changes by ${name}`),
    make("p", {}, changes ? `${count(changes, "decision")} changed.` : "No decision changed."),
    make("p", {}, result.expected_recall ? recallInWords(result.expected_recall) : ""),
    table(["Decision", "Before", "After"], rows, "Decisions before and after"),
    ...[...(result.notes || []), ...skipped].map((note) => make("p", { class: "quiet" }, note)),
    make("h4", {}, "Why"), decidedList(after));
  place.hidden = false;
  byId("changes-title").focus();
}

async function use(event) {
  event.preventDefault();
  alertIn("calibrate-alert", null);
  const name = byId("active-select").value || null;
  try {
    await call("v1/calibrations/active", { method: "POST", json: { name } });
    say("job-status", name ? `Calibration ${name} is active.` : "No calibration is active.");
    announce("map-edited");
  } catch (error) {
    alertIn("calibrate-alert", error);
  }
}

function show(facts) {
  const select = byId("active-select");
  select.replaceChildren(make("option", { value: "" }, "none"),
    ...facts.calibrations.map((name) => make("option", { value: name }, name)));
  select.value = facts.active || "";
  showCameras(facts);
}

export function startCalibrating() {
  chosen = new ChosenFiles(byId("calibrate-list"), enable);
  fileZone(byId("calibrate-files"), {
    title: "Choose camera photos", hint: "or drop them here; 64 photos are recommended", multiple: true,
    onFiles: (files) => chosen.add(files),
  });
  byId("calibrate-form").addEventListener("submit", calibrate);
  byId("active-form").addEventListener("submit", use);
  startCameras();
  events.addEventListener("map-chosen", () => {
    byId("changes").hidden = true;
    say("job-status", "");
  });
  return { show, seen: showCameras };
}
