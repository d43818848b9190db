// The why view: which patches and visual words carried a match.
import { call, formOf, showPhoto } from "./api.js";
import { bar, byId, count, make, number, signed, table } from "./dom.js";
import { preview } from "./files.js";
import { halfCarriedBy, Overlay } from "./overlay.js";

let running = null;
let overlay = null;

export function hideWhy() {
  running?.abort();
  overlay?.stop();
  overlay = null;
  byId("why").hidden = true;
  byId("why").replaceChildren();
}

export async function showWhy(photo, hit, calibration) {
  hideWhy();
  const mine = new AbortController();
  running = mine;
  const place = byId("why");
  const title = make("h3", { id: "why-title", tabindex: "-1" }, `Why ${hit.image}?`);
  const body = make("div", {}, make("p", { role: "status", class: "quiet" }, "Taking the score apart…"));
  place.replaceChildren(title, body);
  place.hidden = false;
  title.focus();
  try {
    const form = formOf("image", [photo], { id: hit.id, calibration });
    const why = await call("v1/why", { method: "POST", form, signal: mine.signal });
    body.replaceChildren(...sections(photo, hit, why));
    overlay.paint();
  } catch (error) {
    if (error.name === "AbortError") return;
    body.replaceChildren(make("div", { role: "alert", class: "alert" }, error.message));
  }
}

function sections(photo, hit, why) {
  const own = make("img", { alt: "Your photo with the patches that carried the match" });
  const other = make("img", { alt: `Map photo ${hit.image} with the patches that carried the match` });
  const canvas = make("canvas", { "aria-hidden": "true" }); // the sentences and the lists say what it shows
  const pair = make("div", { class: "pair" },
    make("figure", {}, own, make("figcaption", {}, "Your photo")),
    make("figure", {}, other, make("figcaption", {}, hit.image)),
    canvas);
  overlay = new Overlay(canvas, own, other, why);
  preview(own, photo);
  own.addEventListener("load", () => overlay?.paint());
  showPhoto(other, why.image_url || hit.image_url, 960);
  return [
    make("p", {}, summary(why)),
    make("div", { class: "row" }, toggle("Heat map", "heat"), why.matches?.length ? toggle("Patch matches", "lines") : null),
    pair,
    make("p", { class: "quiet" }, why.linearised ? "Contribution of a patch against an even share:" : "Contribution of a patch:",
      make("span", { class: "key plus", "aria-hidden": "true" }), "orange for the match,",
      make("span", { class: "key minus", "aria-hidden": "true" }), "blue against it"),
    make("div", { class: "two" },
      make("div", {}, ...wordSection(why)),
      make("div", {}, make("h4", {}, "Terms of the score"), termTable(why))),
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

function toggle(label, what) {
  const box = make("input", {
    type: "checkbox", checked: true,
    change: () => {
      overlay[what] = box.checked;
      overlay.paint();
    },
  });
  return make("label", { class: "tick" }, box, label);
}

/** A head that compares how patches vary together has no words, and its patches' shares are linearised. */
function wordSection(why) {
  if (why.words.length || !why.linearised) {
    const hint = make("p", { class: "quiet" }, "Point at a word, or move to it, to see its patches.");
    return [make("h4", {}, "Visual words"), hint, wordList(why)];
  }
  return [make("h4", {}, "No visual words"), make("p", { class: "quiet" },
    "This map compares how the patches of a photo vary together. A patch's contribution is its even part of the score, "
    + "and how much the score would change if the patch counted more (to first order).")];
}

const patchesOf = (word) => [word.query_patches, word.image_patches].map((patches) => (patches || []).length);

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
      make("span", { class: "unseen" }, `, patches: ${patchesOf(word).join(" of your photo, ")} of the map's`));
    list.append(make("li", {}, button));
  }
  return list;
}

function termTable(why) {
  const rows = (why.terms || []).map((term) => ({ cells: [term.name, term.contribution] }));
  return table(["Term", "Contribution"], [...rows, { cells: ["Score", why.score] }], "Terms of the score");
}
