// The why view: which patches and visual words carried a match.
import { call, formOf, showPhoto } from "./api.js";
import { cropsOf } from "./crops.js";
import { bar, byId, count, make, number, signed, table } from "./dom.js";
import { preview } from "./files.js";
import { halfCarriedBy, Overlay, patchesOf } from "./overlay.js";

let running = null;
let overlay = null;

export function hideWhy() {
  running?.abort();
  overlay?.stop();
  overlay = null;
  byId("why").hidden = true;
  byId("why").replaceChildren();
}

/** Take a match apart; resolves when all is shown, or when another was chosen meanwhile. */
export async function showWhy(photo, hit, calibration) {
  hideWhy();
  const mine = new AbortController();
  running = mine;
  const place = byId("why");
  const title = make("h3", { id: "why-title", tabindex: "-1" }, `Why ${hit.image}?`);
  const body = make("div", {}, make("p", { role: "status", class: "quiet" }, "Taking the score apart…"));
  place.replaceChildren(title, body);
  place.hidden = false;
  title.focus({ preventScroll: true }); // there is nothing to see yet
  try {
    const form = formOf("image", [photo], { id: hit.id, calibration });
    const why = await call("v1/explain", { method: "POST", form, signal: mine.signal });
    const pictures = [["Your photo", "Your photo"], [`Map photo ${hit.image}`, hit.image]].map(([alt, caption]) => ({
      image: make("img", { alt: `${alt} with the patches that carried the match` }), caption }));
    const [own, other] = pictures.map((picture) => picture.image);
    body.replaceChildren(...sections(pictures, why));
    preview(own, photo);
    await Promise.allSettled([own.decode(), showPhoto(other, why.image_url || hit.image_url, 960).then(() => other.decode())]);
    if (running !== mine) return;
    overlay.paint();
    cropsOf(body, why, [own, other]);
    body.querySelector(".overlays").scrollIntoView({ block: "start", behavior: calm() ? "auto" : "smooth" });
  } catch (error) {
    if (error.name === "AbortError" || running !== mine) return;
    body.replaceChildren(make("div", { role: "alert", class: "alert" }, error.message));
    body.scrollIntoView({ block: "nearest" });
  }
}

const calm = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

function sections(pictures, why) {
  const canvas = make("canvas", { "aria-hidden": "true" }); // the sentences and the lists say what it shows
  const pair = make("div", { class: "pair" },
    ...pictures.map(({ image, caption }) => make("figure", {}, image, make("figcaption", {}, caption))), canvas);
  overlay = new Overlay(canvas, ...pictures.map((picture) => picture.image), why);
  const key = make("p", { class: "quiet" }, why.linearised ? "Contribution of a patch against an even share:" : "Contribution of a patch:",
    make("span", { class: "key plus", "aria-hidden": "true" }), "orange for the match,",
    make("span", { class: "key minus", "aria-hidden": "true" }), "blue against it");
  return [
    make("p", {}, summary(why)),
    overlayChoice(why, key),
    pair,
    key,
    ...wordSection(why),
    make("div", { class: "terms" }, make("h4", {}, "Terms of the score"), termTable(why)),
  ];
}

/** The picture in sentences. */
function summary(why) {
  const patches = why.grid[0] * why.grid[1];
  const alike = why.matches?.length ?? 0;
  const sentences = [
    `Score ${number(why.score)}.`,
    `${halfCarriedBy(why.query_heat)} of the ${patches} patches of your photo carry half of what speaks for the match.`,
  ];
  const pairs = alike ? `${count(alike, "pair")} of patches lie` : "No patches lie";
  if (why.matches) sentences.push(`${pairs} in one spatial arrangement in both photos.`);
  return sentences.join(" ");
}

/** One overlay at a time: two of them hide each other. */
function overlayChoice(why, key) {
  const choices = [["heat", "Heat map"], ...(why.matches?.length ? [["lines", "Patch matches"]] : []), ["nothing", "Photos alone"]];
  const choose = (shown) => {
    overlay.shown = shown;
    overlay.paint();
    key.hidden = shown !== "heat";
  };
  return make("fieldset", { class: "overlays" }, make("legend", { class: "unseen" }, "Shown on the photos"),
    ...choices.map(([shown, label]) => make("label", { class: "tick" },
      make("input", { type: "radio", name: "overlay", checked: shown === "heat", change: () => choose(shown) }), label)));
}

/** A head that compares how patches vary together has no words, and its patches' shares are linearised. */
function wordSection(why) {
  if (why.words.length || !why.linearised) {
    const farFromAll = why.words.some((word) => patchesOf(word).every((patches) => !patches.length));
    const hint = make("p", { class: "quiet" }, "Each with the patches that it means, of your photo and of the map's. Point at a word, or move to it, to see where they are."
      + (farFromAll ? " A word that is nearest to no patch may count too: a patch speaks for several." : ""));
    return [make("h4", {}, "Visual words"), hint, wordList(why)];
  }
  return [make("h4", {}, "No visual words"), make("p", { class: "quiet" },
    "This map compares how the patches of a photo vary together. A patch's contribution is its even part of the score, "
    + "and how much the score would change if the patch counted more (to first order).")];
}

/** Words as buttons: pointer or focus shows their patches, a press keeps them shown. */
function wordList(why) {
  const most = why.words.reduce((size, word) => Math.max(size, Math.abs(word.contribution)), 0) || 1;
  const several = new Set(why.words.map((word) => word.vocabulary)).size > 1;
  let kept = null;
  const mark = (word) => {
    overlay.marked = word;
    overlay.paint();
  };
  const list = make("ul", { class: "words" });
  for (const word of why.words) {
    const back = () => mark(kept);
    const button = make("button", {
      type: "button", "aria-pressed": "false",
      mouseenter: () => mark(word), focus: () => mark(word), mouseleave: back, blur: back,
      click: () => {
        kept = kept === word ? null : word;
        for (const each of list.querySelectorAll("button")) each.setAttribute("aria-pressed", "false");
        button.setAttribute("aria-pressed", String(kept === word));
        mark(kept ?? word);
      },
    },
      make("span", {}, `Word ${several ? `${word.vocabulary + 1}/` : ""}${word.word}`),
      bar(Math.abs(word.contribution) / most, null, word.contribution < 0 ? "minus" : ""),
      make("span", { class: "number" }, signed(word.contribution)),
      make("span", { class: "unseen" }, `, patches: ${patchesOf(word).map((patches) => patches.length).join(" of your photo, ")} of the map's`),
      make("span", { class: "crops", "aria-hidden": "true" }));
    list.append(make("li", {}, button));
  }
  return list;
}

function termTable(why) {
  const rows = (why.terms || []).map((term) => ({ cells: [term.name, term.contribution] }));
  return table(["Term", "Contribution"], [...rows, { cells: ["Score", why.score] }], "Terms of the score");
}
