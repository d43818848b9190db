// What `tfa report` says of the map, in the words of the service: what answers, what to do, photos that stand out.
import { showPhoto } from "./api.js";
import { count, make, number } from "./dom.js";

const SHOWN = 6; // photos of a strip, groups of near duplicates

export const card = (title, kind, ...children) => make("section", { class: `card ${kind}` }, make("h3", {}, title), ...children);

const sentence = (words) => `${words.replace(/^./, (first) => first.toUpperCase())}.`;

/** Every decision with its reason and how far it was from flipping. */
export function decidedList(rows) {
  return make("dl", { class: "decided" }, ...rows.flatMap((row) => [
    make("dt", {}, `${row.name}: `, make("b", {}, row.choice)),
    make("dd", {}, row.reason, row.margin
      ? make("span", { class: row.margin.within_noise ? "noise" : "margin" }, `${row.reason ? "; " : ""}${row.margin.text}`) : null)]));
}

function tile(image, note) {
  const picture = make("img", { alt: `Map photo ${image.image}` });
  showPhoto(picture, image.image_url, 240);
  return make("figure", { class: "small-photo" }, picture,
    make("figcaption", {}, [`${image.id}`, image.image, note].filter(Boolean).join(" · ")));
}

const strip = (images, note = () => null) => make("div", { class: "strip" },
  ...images.slice(0, SHOWN).map((image) => tile(image, note(image))),
  images.length > SHOWN ? make("p", { class: "quiet" }, `and ${images.length - SHOWN} more`) : null);

const rule = (words) => make("p", { class: "quiet" }, words);

export function reportCards(report) {
  const [answering, ...others] = report.heads;
  const { lonely, hubs, duplicates, rules } = report;
  const nearest = (image) => `nearest ${number(image.cosine, 2)}`;
  const least = lonely.length
    ? [make("p", {}, `${count(lonely.length, "photo")} that nothing else resembles.`), strip(lonely, nearest)]
    : [make("p", {}, "No photo stands out. These have the least similar nearest photo."), strip(report.least_alike, nearest)];
  const near = duplicates.length
    ? [make("p", {}, `${count(duplicates.length, "group")}.`), ...duplicates.slice(0, SHOWN).map((group) => strip(group.images))]
    : [make("p", {}, "No two photos are so alike.")];
  const returned = hubs.length
    ? [make("p", {}, `${count(hubs.length, "hub")}.`), strip(hubs, (image) => `returned by ${image.returned_by}`)]
    : [make("p", {}, "No photo is returned far more often than is usual.")];
  return [
    make("p", { class: "headline" }, report.headline),
    card("What answers", "", make("p", {}, sentence(report.what_answers.text)), decidedList(answering.decided),
      rule([rules.verification, rules.within_noise].join(" ")),
      ...others.map((head) => make("details", {}, make("summary", {}, head.title), decidedList(head.decided)))),
    card("Advice", "", report.advice.length
      ? make("ul", {}, ...report.advice.map((one) => make("li", {}, one)))
      : make("p", {}, "Nothing to do: the map is as it should be."),
    ...report.recall.map((one) => make("p", {}, `Like ${one.photos_like}: ${one.text}.`)),
    rule(`${rules.expected_recall} ${rules.sure}`)),
    card("Least recognised", "", ...least, rule(rules.least_recognised)),
    card("Near duplicates", "", ...near, rule(rules.near_duplicate)),
    card("Hubs", "", ...returned, rule(rules.hub)),
  ];
}
