// The map view: its photos, page by page; adding and removing.
import { call, events, formOf, showPhoto, announce } from "./api.js";
import { alertIn, byId, count, make, positionInWords, say } from "./dom.js";
import { ChosenFiles, fileZone } from "./files.js";
import { Plan } from "./plan.js";

const PAGE = 24;
let offset = 0;
let total = 0;
let latest = 0; // of several lists under way only the last is shown
let chosen = null;
let editable = true;
let plan = null;
let hits = []; // of the last answer: its place is marked on the plan

async function list() {
  latest += 1;
  const mine = latest;
  try {
    const page = await call("v1/images", { query: { offset, limit: PAGE, filter: byId("filter").value.trim() } });
    if (mine !== latest) return;
    total = page.total;
    if (offset >= total && offset > 0) { // the last photo of the last page was removed
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

/** What to do where no photo is listed. */
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
    ? [make("p", {}, `No photo has “${wanted}” in its name.`), make("button", { type: "button", click: clear }, "Show all photos")]
    : [make("p", {}, "The map holds no photo that answers. "
      + (editable ? "Add some above, or with tfa add on its machine." : "Add some with tfa add on its machine."))]));
}

async function showPlan() {
  try {
    plan.take(await call("v1/positions"));
    plan.show(hits);
  } catch (error) {
    alertIn("map-alert", error);
  }
}

function photoCard(record) {
  const image = make("img", { alt: `Map photo ${record.path}`, loading: "lazy" });
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

/** A dialog with a question; resolves to true only if the person says yes. */
function confirmed(title, words) {
  const dialog = byId("confirm");
  say("confirm-title", title);
  say("confirm-words", words);
  dialog.returnValue = "no"; // Escape leaves it so
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}

async function remove(record) {
  alertIn("map-alert", null);
  const sure = await confirmed(`Remove ${record.path}?`, "The map will no longer answer with this photo.");
  if (!sure) return;
  try {
    await call(`v1/images/${encodeURIComponent(record.id)}`, { method: "DELETE" });
    say("map-status", `Removed ${record.path}.`);
    announce("map-edited"); // the list is read again with all else
    byId("filter").focus(); // the button that had the focus goes away
  } catch (error) {
    alertIn("map-alert", error);
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
    hits = event.detail;
    if (plan.kind !== undefined) plan.show(hits);
  });
  chosen = new ChosenFiles(byId("add-list"), (files) => {
    byId("add-send").disabled = files.length === 0;
    byId("add-send").textContent = files.length ? `Add ${count(files.length, "photo")}` : "Add photos";
  });
  fileZone(byId("add-files"), {
    title: "Choose photos to add", hint: "or drop them here; positions are read from the photos",
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
  byId("filter").addEventListener("input", () => { // wait until the typing rests
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
