// The report view, as `tfa report` writes it: advice, expected recall and outliers.
import { call, showPhoto } from "./api.js";
import { alertIn, byId, count, make, number, say } from "./dom.js";

const SHOWN = 6; // images of a strip, groups of near duplicates
const LOADING = "Computing the report. After an edit this takes seconds, or minutes for a map of many thousands of images.";
let latest = 0; // number of the last request; results of earlier ones are dropped

export async function showReport() {
  latest += 1;
  const mine = latest;
  alertIn("report-alert", null);
  byId("report-body").replaceChildren();
  say("report-status", LOADING);
  try {
    const report = await call("v1/report");
    if (mine !== latest) return;
    byId("report-body").replaceChildren(...reportCards(report));
  } catch (error) {
    if (mine !== latest) return;
    alertIn("report-alert", error);
  }
  say("report-status", "");
}

const card = (title, ...children) => make("section", { class: "card" }, make("h3", {}, title), ...children);

function tile(image, note) {
  const photo = make("img", { alt: `Map image ${image.image}` });
  showPhoto(photo, image.image_url, 240);
  return make("figure", { class: "small-photo" }, photo,
    make("figcaption", {}, [`${image.id}`, image.image, note].filter(Boolean).join(" · ")));
}

const strip = (images, note = () => null) => make("div", { class: "strip" },
  ...images.slice(0, SHOWN).map((image) => tile(image, note(image))),
  images.length > SHOWN ? make("p", { class: "quiet" }, `and ${images.length - SHOWN} more`) : null);

const rule = (words) => make("p", { class: "quiet" }, words);

/** An advice with its command as code. */
function advice(sentence) {
  const [action, command] = sentence.split(" Run: ");
  return make("li", {}, action, command ? make("code", { class: "command" }, command) : null);
}

function reportCards(report) {
  const { lonely, hubs, duplicates, rules } = report;
  const nearest = (image) => `nearest ${number(image.cosine, 2)}`;
  const least = lonely.length
    ? [make("p", {}, `${count(lonely.length, "isolated image")}, which nothing else in the map resembles.`), strip(lonely, nearest)]
    : [make("p", {}, "No image is isolated. These have the lowest similarity to their nearest image."), strip(report.least_alike, nearest)];
  const near = duplicates.length
    ? [make("p", {}, `${count(duplicates.length, "group")}.`), ...duplicates.slice(0, SHOWN).map((group) => strip(group.images))]
    : [make("p", {}, "None.")];
  const returned = hubs.length
    ? [make("p", {}, `${count(hubs.length, "hub")}.`), strip(hubs, (image) => `returned by ${image.returned_by}`)]
    : [make("p", {}, "No image is returned far more often than the average.")];
  return [
    make("p", { class: "headline" }, report.headline),
    card("What to do", report.advice.length
      ? make("ul", { class: "advice" }, ...report.advice.map(advice))
      : make("p", {}, "Nothing to do: no problem was found.")),
    ...(report.recall.length ? [card("Expected recall",
    ...report.recall.map((one) => make("p", {}, `Like ${one.photos_like}: ${one.text}.`)),
    rule(`${rules.expected_recall} ${rules.sure}`))] : []),
    card("Weak spots", ...least, rule(rules.least_recognised)),
    card("Near duplicates", ...near, rule(rules.near_duplicate)),
    card("Hubs", ...returned, rule(rules.hub)),
  ];
}
