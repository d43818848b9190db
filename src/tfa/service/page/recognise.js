// The view that recognises a photo: the photo, its best matches, where they are, and why.
import { announce, call, events, formOf, showPhoto, needsApiKey } from "./api.js";
import { alertIn, bar, byId, change, count, make, number, positionInWords, say } from "./dom.js";
import { fileZone, preview } from "./files.js";
import { entered, inputsOf } from "./form.js";
import { Plan } from "./plan.js";
import { showStart } from "./start.js";
import { hideWhy, showWhy } from "./why.js";

let photo = null; // the file of the last query
let hits = [];
let refused = false; // was the last question refused for want of an API key?
let running = null; // of the question under way, so that a newer one can stop it
let plan = null;
let rules = {}; // in the words of the service

const options = () => entered(byId("recognise-options"));
const calibrations = make("select"); // filled by the map that is shown

/** The service describes its options; the page knows more of two of them: which calibrations and cameras there are. */
async function makeOptions() {
  try {
    byId("recognise-fields").replaceChildren(...inputsOf(await call("openapi.json"), "/v1/query", {
      calibration: (attributes) => change(calibrations, attributes),
      camera: (attributes) => make("input", { ...attributes, list: "camera-names", maxlength: 64, autocomplete: "off",
        spellcheck: "false", placeholder: "none" }),
    }));
  } catch (error) {
    alertIn("recognise-alert", error);
  }
}

/** The photo and its matches are there only with an answer; the plan always. */
function showPlaces(answered) {
  byId("own").hidden = !answered;
  byId("matches").hidden = !answered;
  byId("answer").classList.toggle("empty", !answered);
  byId("start").hidden = answered;
}

async function recognise(file) {
  photo = file;
  running?.abort();
  const mine = new AbortController();
  running = mine;
  alertIn("recognise-alert", null);
  hideWhy();
  hits = [];
  byId("hits").replaceChildren();
  preview(byId("own-photo"), file);
  say("own-name", file.name || "Your photo");
  showPlaces(true);
  say("recognise-status", "Looking through the map…");
  try {
    const answer = await call("v1/query", { method: "POST", form: formOf("image", [file], options()), signal: mine.signal });
    refused = false;
    showAnswer(answer);
  } catch (error) {
    if (error.name === "AbortError") return;
    refused = needsApiKey(error.status);
    say("recognise-status", "");
    showPlaces(false);
    alertIn("recognise-alert", error);
  }
  plan.show(hits);
  announce("answered", hits);
}

function showAnswer(answer) {
  hits = answer.hits;
  const head = answer.calibration ? `calibrated to ${answer.calibration}` : "not calibrated";
  const best = `confidence ${number(answer.confidence, 2)}`;
  const adapted = answer.camera ? `, adapted by ${count(answer.adaptation_photos, "photo")} of ${answer.camera}` : "";
  const isLost = typeof answer.lost === "number" && answer.lost > answer.confidence;
  const none = isLost
    ? `Lost${adapted}: that this frame shows no place of the map has probability ${number(answer.lost, 2)}. Give it the next frame.`
    : options().sure && !answer.sure
      ? `No match is sure: the best has ${best}. Ask for all answers in the options to see it.`
      : `No match is confident enough: the best has ${best}. Lower the min confidence in the options to see it.`;
  say("recognise-status", hits.length
    ? `${count(hits.length, "match", "matches")}, best ${best}, ${head}${adapted}, ${number(answer.seconds, 2)} s.` : none);
  byId("hits").replaceChildren(...hits.map(hitCard));
  const order = typeof answer.lost === "number" ? rules.order_sequence : answer.reranked ? rules.order_verified : rules.order_unverified;
  say("hits-order", hits.length && order ? `${order} ${rules.sure}` : "");
}

function hitCard(hit, index) {
  const image = make("img", { alt: `Map photo ${hit.image}` });
  showPhoto(image, hit.image_url, 480);
  const where = positionInWords(hit.position);
  const verified = hit.inliers === null || hit.inliers === undefined
    ? null : `${count(hit.inliers, "patch", "patches")} in one spatial arrangement`;
  const why = make("button", { type: "button", "aria-label": `Why ${hit.image}?`, click: () => choose(hit, card, why) }, "Why?");
  const [here, away] = [() => plan.point(hit.id), () => plan.point(null)];
  const card = make("li", { class: "card hit", mouseenter: here, mouseleave: away, focusin: here, focusout: away },
    image,
    make("div", {},
      make("h4", {}, make("span", { class: "rank", "aria-label": `Match ${index + 1}:` }, String(index + 1)), hit.image),
      make("p", {}, `Score ${number(hit.score)} · confidence ${number(hit.confidence, 2)}`,
        hit.sure ? make("span", { class: "sure" }, " · ✓ sure") : null),
      bar(hit.confidence, `Confidence in ${hit.image}`, hit.sure ? "is-sure" : ""),
      make("p", { class: "quiet" }, [verified, where].filter(Boolean).join(" · ")),
      why));
  return card;
}

/** The button says that its answer is under way: the pictures come below, and are scrolled to when they are there. */
async function choose(hit, card, button) {
  for (const other of byId("hits").children) other.classList.toggle("chosen-hit", other === card);
  button.textContent = "Looking…";
  await showWhy(photo, hit, options().calibration);
  button.textContent = "Why?";
}

function forget() {
  running?.abort();
  photo = null;
  hits = [];
  announce("answered", hits);
  hideWhy();
  showPlaces(false);
  say("recognise-status", "");
  alertIn("recognise-alert", null);
}

/** Fill the choices that depend on the map; an answer that is shown stays. */
async function show(facts) {
  rules = facts.rules || {};
  const select = calibrations;
  const before = select.value;
  const inUse = facts.active ? `in use (${facts.active})` : "in use (none)";
  select.replaceChildren(make("option", { value: "" }, inUse),
    ...facts.calibrations.map((name) => make("option", { value: name }, name)),
    facts.calibrations.length ? make("option", { value: "none" }, "none") : "");
  select.value = ["none", ...facts.calibrations].includes(before) ? before : "";
  if (select.selectedIndex < 0) select.value = "";
  showStart(facts, recognise);
  byId("start").hidden = photo !== null;
  try {
    plan.take(await call("v1/positions"));
    plan.show(hits);
  } catch (error) {
    alertIn("recognise-alert", error);
  }
}

export function startRecognising() {
  plan = new Plan(byId("plan"));
  makeOptions();
  fileZone(byId("recognise-files"), {
    title: "Choose a photo", hint: "or drop one here: the map says where it was taken", onFiles: ([file]) => recognise(file),
  });
  byId("recognise-options").addEventListener("submit", (event) => {
    event.preventDefault();
    if (photo) recognise(photo);
    else alertIn("recognise-alert", new Error("There is no photo yet. Choose one first."));
  });
  events.addEventListener("access", () => refused && photo && recognise(photo));
  events.addEventListener("map-chosen", forget);
  return { show };
}
