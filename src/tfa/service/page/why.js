// The why view: which patches and visual words support a match.
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

/** Explain a match; resolves when everything is shown, or when another match was chosen. */
export async function showWhy(photo, hit, calibration) {
  hideWhy();
  const mine = new AbortController();
  running = mine;
  const place = byId("why");
  const title = make("h3", { id: "why-title", tabindex: "-1" }, `Why ${hit.image}?`);
  const body = make("div", {}, make("p", { role: "status", class: "quiet" }, "Computing the contribution of every patch…"));
  place.replaceChildren(title, body);
  place.hidden = false;
  title.focus({ preventScroll: true }); // there is nothing to see yet
  try {
    const form = formOf("image", [photo], { id: hit.id, calibration });
    const why = await call("v1/explain", { method: "POST", form, signal: mine.signal });
    const photos = [["Your photo", "Your photo"], [`Map image ${hit.image}`, hit.image]].map(([alt, caption]) => ({
      image: make("img", { alt: `${alt} with the patches that support the match` }), caption }));
    const [own, other] = photos.map((one) => one.image);
    body.replaceChildren(...sections(photos, why, hit));
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

function sections(photos, why, hit) {
  const canvas = make("canvas", { "aria-hidden": "true" }); // described by the text and the lists
  const pair = make("div", { class: "pair" },
    ...photos.map(({ image, caption }) => make("figure", {}, image, make("figcaption", {}, caption))), canvas);
  overlay = new Overlay(canvas, ...photos.map((one) => one.image), why);
  const key = make("p", { class: "quiet" }, why.linearised ? "Contribution of a patch relative to the average:" : "Contribution of a patch:",
    make("span", { class: "key plus", "aria-hidden": "true" }), "orange supports the match,",
    make("span", { class: "key minus", "aria-hidden": "true" }), "blue opposes it");
  return [
    make("p", {}, summary(why, hit)),
    overlayChoice(why, key),
    pair,
    key,
    ...wordSection(why),
    make("div", { class: "terms" }, make("h4", {}, "Score terms"), termTable(why)),
  ];
}

/** Describe the match in sentences. */
function summary(why, hit) {
  const patches = why.grid[0] * why.grid[1];
  const sentences = [
    `Confidence ${number(hit.confidence, 2)}.`,
    `${halfCarriedBy(why.query_heat)} of the ${patches} patches of your photo make up half of the support for the match.`,
  ];
  if (why.matches) sentences.push(`${count(why.matches.length, "inlier")}: matching patches in the same spatial arrangement in both photos.`);
  return sentences.join(" ");
}

/** Show one overlay at a time, since two would hide each other. */
function overlayChoice(why, key) {
  const choices = [["heat", "Heat map"], ...(why.matches?.length ? [["lines", "Inliers"]] : []), ["nothing", "Photos only"]];
  const choose = (shown) => {
    overlay.shown = shown;
    overlay.paint();
    key.hidden = shown !== "heat";
  };
  return make("fieldset", { class: "overlays" }, make("legend", { class: "unseen" }, "Shown on the photos"),
    ...choices.map(([shown, label]) => make("label", { class: "tick" },
      make("input", { type: "radio", name: "overlay", checked: shown === "heat", change: () => choose(shown) }), label)));
}

/** Explain visual words; a second-order head has none, and its contributions are linearized. */
function wordSection(why) {
  if (why.words.length || !why.linearised) {
    const farFromAll = why.words.some((word) => patchesOf(word).every((patches) => !patches.length));
    const hint = make("p", { class: "quiet" }, "Each word with its patches in your photo and in the map image. Hover over a word, or focus it, to see where they are."
      + (farFromAll ? " A word without patches can contribute too, since a patch counts for several words." : ""));
    return [make("h4", {}, "Visual words"), hint, wordList(why)];
  }
  return [make("h4", {}, "No visual words"), make("p", { class: "quiet" },
    "This map compares how the patches of a photo vary together. The contribution of a patch is its equal part of the score, "
    + "plus how much the score would change if the patch had more weight (first order).")];
}

/** List words as buttons: hover or focus shows their patches, a click keeps them visible. */
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
      make("span", { class: "unseen" }, `, patches: ${patchesOf(word).map((patches) => patches.length).join(" in your photo, ")} in the map image`),
      make("span", { class: "crops", "aria-hidden": "true" }));
    list.append(make("li", {}, button));
  }
  return list;
}

function termTable(why) {
  const rows = (why.terms || []).map((term) => ({ cells: [term.name, term.contribution] }));
  return table(["Term", "Contribution"], [...rows, { cells: ["Score", why.score] }], "Score terms");
}
