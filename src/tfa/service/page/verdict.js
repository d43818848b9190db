// The verdict of an answer: recognized, probable or not recognized, why, and the position with its radius.
import { change, count, make, number, positionInWords } from "./dom.js";

/** Return the position of an answer in words, or why there is none. */
function positionOf({ place, place_missing: missing, hits }) {
  if (place) {
    return `position ${positionInWords(place.position)} ±\u00a0${number(place.radius, 0)}\u00a0m `
      + `(${count(place.images, "image")}, ${number(100 * place.share, 0)}\u00a0% agreement)`;
  }
  return hits.some((hit) => hit.position) && missing ? `no position: ${missing}` : null;
}

/** Fill a banner with verdict, reason, confidence and position. */
export function fillVerdict(banner, answer) {
  const lines = [`${answer.reason} · confidence ${number(answer.confidence, 2)}`, positionOf(answer)].filter(Boolean);
  change(banner, { class: `verdict ${answer.verdict.replace(" ", "-")}` });
  banner.replaceChildren(make("strong", {}, `${answer.sure ? "✓ " : ""}${answer.verdict}`), ...lines.map((line) => make("span", {}, line)));
  banner.hidden = false;
}
