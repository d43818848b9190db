// The map view: plan and list of map images, with adding and removing.
import { call, events, formOf, showPhoto, announce } from "./api.js";
import { alertIn, byId, count, make, positionInWords, say } from "./dom.js";
import { ChosenFiles, fileZone } from "./files.js";
import { Plan } from "./plan.js";

const PAGE = 24;
let offset = 0;
let total = 0;
let revision = null; // of the map, when its images were listed
let latest = 0; // number of the last request; results of earlier ones are dropped
let chosen = null;
let editable = true;
let plan = null;
let answer = { hits: [], place: null }; // last answer, shown on the plan

async function list() {
  latest += 1;
  const mine = latest;
  try {
    const page = await call("v1/images", { query: { offset, limit: PAGE, filter: byId("filter").value.trim() } });
    if (mine !== latest) return;
    ({ total, revision } = page);
    if (offset >= total && offset > 0) { // the last image of the last page was removed
      offset = Math.max(0, Math.floor((total - 1) / PAGE) * PAGE);
      await list();
      return;
    }
    byId("photos").replaceChildren(...page.images.map(photoCard));
    const last = offset + page.images.length;
    say("map-range", total ? `${offset + 1} to ${last} of ${total}` : "");
    showNone();
    byId("page-back").disabled = offset === 0;
    byId("page-on").disabled = last >= total;
  } catch (error) {
    if (mine === latest) alertIn("map-alert", error);
  }
}

/** Explain an empty list. */
function showNone() {
  const place = byId("photos-none");
  const wanted = byId("filter").value.trim();
  place.hidden = total > 0;
  if (total > 0) return;
  const clear = () => {
    byId("filter").value = "";
    byId("filter").focus();
    list();
  };
  place.replaceChildren(...(wanted
    ? [make("p", {}, `No image has “${wanted}” in its name.`), make("button", { type: "button", click: clear }, "Show all images")]
    : [make("p", {}, "The map has no images. "
      + (editable ? "Add photos above, or run tfa add on the server." : "Run tfa add on the server to add photos."))]));
}

async function showPlan() {
  try {
    plan.take(await call("v1/positions"));
    plan.show(answer.hits, answer.place);
  } catch (error) {
    alertIn("map-alert", error);
  }
}

function photoCard(record) {
  const image = make("img", { alt: `Map image ${record.path}`, loading: "lazy" });
  showPhoto(image, record.image_url, 320);
  const facts = [`id ${record.id}`, positionInWords(record.position), record.fitted ? null : "added after fitting"];
  return make("li", { class: "card" }, image,
    make("b", {}, record.path),
    make("p", { class: "quiet" }, facts.filter(Boolean).join(" · ")),
    editable ? removeButton(record) : null);
}

function removeButton(record) {
  const label = `Remove ${record.path}`;
  return make("button", { type: "button", class: "aside", "aria-label": label, click: () => remove(record) }, "Remove…");
}

/** Open a confirmation dialog; resolves to true if it is confirmed. */
function confirmed(title, words) {
  const dialog = byId("confirm");
  say("confirm-title", title);
  say("confirm-words", words);
  dialog.returnValue = "no"; // Escape does not change it
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}

async function remove(record) {
  alertIn("map-alert", null);
  const sure = await confirmed(`Remove ${record.path}?`, "Queries will no longer return this image.");
  if (!sure) return;
  try {
    await call(`v1/images/${encodeURIComponent(record.id)}`, { method: "DELETE", query: { revision } });
    say("map-status", `Removed ${record.path}.`);
    announce("map-edited"); // reloads the list too
    byId("filter").focus(); // the focused button disappears
  } catch (error) {
    alertIn("map-alert", error);
    list(); // the map may have changed
  }
}

async function add() {
  const files = chosen.files;
  alertIn("map-alert", null);
  byId("add-send").disabled = true;
  say("map-status", `Adding ${count(files.length, "photo")}…`);
  try {
    const report = await call("v1/images", { method: "POST", form: formOf("images", files) });
    chosen.clear();
    say("map-status", addedInWords(report));
    announce("map-edited");
  } catch (error) {
    say("map-status", "");
    alertIn("map-alert", error);
  }
  byId("add-send").disabled = chosen.files.length === 0;
}

function addedInWords(report) {
  const skipped = report.skipped.map(([image, reason]) => `${image}: ${reason}`);
  return [`Added ${count(report.added.length, "photo")}.`,
    skipped.length ? `Skipped ${skipped.join("; ")}.` : null, ...report.notes].filter(Boolean).join(" ");
}

function turn(step) {
  offset = Math.max(0, offset + step);
  list();
}

export function startMap() {
  plan = new Plan(byId("map-plan"), byId("map-plan-none"));
  events.addEventListener("answered", (event) => {
    answer = event.detail;
    if (plan.kind !== undefined) plan.show(answer.hits, answer.place);
  });
  chosen = new ChosenFiles(byId("add-list"), (files) => {
    byId("add-send").disabled = files.length === 0;
    byId("add-send").textContent = files.length ? `Add ${count(files.length, "photo")}` : "Add photos";
  });
  fileZone(byId("add-files"), {
    title: "Choose photos to add", hint: "or drop them here; positions come from EXIF and file names",
    multiple: true, onFiles: (files) => chosen.add(files),
  });
  byId("add-send").addEventListener("click", add);
  byId("page-back").addEventListener("click", () => turn(-PAGE));
  byId("page-on").addEventListener("click", () => turn(PAGE));
  let waiting = 0;
  const filter = () => {
    offset = 0;
    list();
  };
  byId("filter").addEventListener("input", () => { // wait for a pause in typing
    clearTimeout(waiting);
    waiting = setTimeout(filter, 200);
  });
  byId("map-filter").addEventListener("submit", (event) => {
    event.preventDefault();
    filter();
  });
  events.addEventListener("map-chosen", () => {
    offset = 0;
    byId("filter").value = "";
    say("map-status", "");
  });
  return {
    show: (facts) => {
      editable = facts.editable !== false;
      alertIn("map-alert", null);
      list();
      showPlan();
    },
  };
}
