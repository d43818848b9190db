// The query view: a photo, its position, its best matches, and why they match.
import { announce, call, events, formOf, showPhoto, needsApiKey } from "./api.js";
import { alertIn, bar, byId, change, count, make, number, positionInWords, say } from "./dom.js";
import { fileZone, preview } from "./files.js";
import { entered, inputsOf } from "./form.js";
import { Plan } from "./plan.js";
import { showStart } from "./start.js";
import { fillVerdict } from "./verdict.js";
import { hideWhy, showWhy } from "./why.js";

let photo = null; // file of the last query
let hits = [];
let place = null; // position estimate of the last query
let refused = false; // whether the last query was refused because of the API key
let running = null; // controller of the running query, so that a newer one can abort it
let plan = null;

const options = () => entered(byId("recognize-options"));
const calibrations = make("select"); // filled by `show`

/** Make inputs from the service's description of its options; calibrations and cameras get lists of their own. */
async function makeOptions() {
  try {
    byId("recognize-fields").replaceChildren(...inputsOf(await call("openapi.json"), "/v1/query", {
      calibration: (attributes) => change(calibrations, attributes),
      camera: (attributes) => make("input", { ...attributes, list: "camera-names", maxlength: 64, autocomplete: "off",
        spellcheck: "false", placeholder: "none" }),
    }));
  } catch (error) {
    alertIn("recognize-alert", error);
  }
}

/** Show the photo and its matches if there is an answer; the plan is always shown. */
function showPlaces(answered) {
  byId("own").hidden = !answered;
  byId("matches").hidden = !answered;
  byId("answer").classList.toggle("empty", !answered);
  byId("start").hidden = answered;
  byId("verdict").hidden = true;
}

async function recognize(file) {
  photo = file;
  running?.abort();
  const mine = new AbortController();
  running = mine;
  alertIn("recognize-alert", null);
  hideWhy();
  [hits, place] = [[], null];
  byId("hits").replaceChildren();
  preview(byId("own-photo"), file);
  say("own-name", file.name || "Your photo");
  showPlaces(true);
  say("recognize-status", "Searching the map…");
  try {
    const answer = await call("v1/query", { method: "POST", form: formOf("image", [file], options()), signal: mine.signal });
    refused = false;
    showAnswer(answer);
  } catch (error) {
    if (error.name === "AbortError") return;
    refused = needsApiKey(error.status);
    say("recognize-status", "");
    showPlaces(false);
    alertIn("recognize-alert", error);
  }
  plan.show(hits, place);
  announce("answered", { hits, place });
}

function showAnswer(answer) {
  [hits, place] = [answer.hits, answer.place ?? null];
  const head = answer.calibration ? `calibrated to ${answer.calibration}` : "not calibrated";
  const adapted = answer.camera ? `, adapted by ${count(answer.adaptation_photos, "photo")} of ${answer.camera}` : "";
  const withheld = options().sure && !answer.sure ? "Set Sure to no" : options().min_confidence > answer.confidence ? "Lower the min confidence" : null;
  const none = withheld ? `The matches are withheld. ${withheld} in the options to see them.` : `No matches${adapted}.`;
  say("recognize-status", hits.length
    ? `${count(hits.length, "match", "matches")}, ${head}${adapted}, ${number(answer.seconds, 2)} s.` : none);
  fillVerdict(byId("verdict"), answer);
  byId("hits").replaceChildren(...hits.map(hitCard));
}

function hitCard(hit, index) {
  const image = make("img", { alt: `Map image ${hit.image}` });
  showPhoto(image, hit.image_url, 480);
  const where = positionInWords(hit.position);
  const inliers = hit.inliers === null || hit.inliers === undefined ? "not reranked" : count(hit.inliers, "inlier");
  const why = make("button", { type: "button", "aria-label": `Why ${hit.image}?`, click: () => choose(hit, card, why) }, "Why?");
  const [here, away] = [() => plan.point(hit.id), () => plan.point(null)];
  const card = make("li", { class: "card hit", mouseenter: here, mouseleave: away, focusin: here, focusout: away },
    image,
    make("div", {},
      make("h4", {}, make("span", { class: "rank", "aria-label": `Match ${index + 1}:` }, String(index + 1)), hit.image),
      make("p", {}, `Confidence ${number(hit.confidence, 2)}`),
      bar(hit.confidence, `Confidence in ${hit.image}`, hit.sure ? "is-sure" : ""),
      make("p", { class: "quiet" }, [inliers, where].filter(Boolean).join(" · ")),
      why));
  return card;
}

/** Explain a hit below the matches; the button shows that this is in progress. */
async function choose(hit, card, button) {
  for (const other of byId("hits").children) other.classList.toggle("chosen-hit", other === card);
  button.textContent = "Loading…";
  await showWhy(photo, hit, options().calibration);
  button.textContent = "Why?";
}

function forget() {
  running?.abort();
  photo = null;
  [hits, place] = [[], null];
  announce("answered", { hits, place });
  hideWhy();
  showPlaces(false);
  say("recognize-status", "");
  alertIn("recognize-alert", null);
}

/** Fill the choices that depend on the map; a visible answer stays. */
async function show(facts) {
  const select = calibrations;
  const before = select.value;
  const active = facts.active ? `active (${facts.active})` : "active (none)";
  select.replaceChildren(make("option", { value: "" }, active),
    ...facts.calibrations.map((name) => make("option", { value: name }, name)),
    facts.calibrations.length ? make("option", { value: "none" }, "none") : "");
  select.value = ["none", ...facts.calibrations].includes(before) ? before : "";
  if (select.selectedIndex < 0) select.value = "";
  showStart(facts, recognize);
  byId("start").hidden = photo !== null;
  try {
    plan.take(await call("v1/positions"));
    plan.show(hits, place);
  } catch (error) {
    alertIn("recognize-alert", error);
  }
}

export function startRecognizing() {
  plan = new Plan(byId("plan"));
  makeOptions();
  fileZone(byId("recognize-files"), {
    title: "Choose a photo", hint: "or drop one here to find where it was taken", onFiles: ([file]) => recognize(file),
  });
  byId("recognize-options").addEventListener("submit", (event) => {
    event.preventDefault();
    if (photo) recognize(photo);
    else alertIn("recognize-alert", new Error("Choose a photo first."));
  });
  events.addEventListener("access", () => refused && photo && recognize(photo));
  events.addEventListener("map-chosen", forget);
  return { show };
}
