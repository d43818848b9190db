// The report on the map, as `tfa report` writes it: advice, expected recall, outliers and decisions.
import { showPhoto } from "./api.js";
import { count, make, number } from "./dom.js";

const SHOWN = 6; // images of a strip, groups of near duplicates

export const card = (title, kind, ...children) => make("section", { class: `card ${kind}` }, make("h3", {}, title), ...children);

const sentence = (words) => `${words.replace(/^./, (first) => first.toUpperCase())}.`;

/** List every decision with an explanation, its reason and its margin. */
export function decidedList(rows) {
  return make("dl", { class: "decided" }, ...rows.flatMap((row) => [
    make("dt", {}, `${row.name}: `, make("b", {}, row.choice)),
    row.about ? make("dd", { class: "about" }, row.about) : null,
    make("dd", {}, row.reason, row.margin
      ? make("span", { class: row.margin.within_noise ? "noise" : "margin" }, `${row.reason ? "; " : ""}${row.margin.text}`) : null)]));
}

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

export function reportCards(report) {
  const [answering, ...others] = report.heads;
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
    card("What to do", "", report.advice.length
      ? make("ul", { class: "advice" }, ...report.advice.map(advice))
      : make("p", {}, "Nothing to do: no problem was found.")),
    ...(report.recall.length ? [card("Expected recall", "",
    ...report.recall.map((one) => make("p", {}, `Like ${one.photos_like}: ${one.text}.`)),
    rule(`${rules.expected_recall} ${rules.sure}`))] : []),
    card("Weak spots", "", ...least, rule(rules.least_recognised)),
    card("Near duplicates", "", ...near, rule(rules.near_duplicate)),
    card("Hubs", "", ...returned, rule(rules.hub)),
    card("How the map was configured", "", make("p", {}, sentence(report.what_answers.text)), decidedList(answering.decided),
      rule([rules.verification, rules.within_noise].join(" ")),
      ...others.map((head) => make("details", {}, make("summary", {}, head.title), decidedList(head.decided)))),
  ];
}
