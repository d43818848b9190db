// Before the first photo: what this view does, and a photo of the map to try it with.
import { call, photoFile, showPhoto } from "./api.js";
import { alertIn, byId, make } from "./dom.js";

const TRIED = 4; // photos of the map that are offered

const title = (words) => make("h3", { id: "start-title" }, words);

/** `recognise` takes the photo that is tried. */
export async function showStart(facts, recognise) {
  const place = byId("start");
  if (!facts.images) {
    const go = make("button", { type: "button", click: () => byId("tab-map").click() }, "Go to Map");
    place.replaceChildren(title("This map has no photos"), make("p", {}, "It can answer with photos only that it holds. Add some first."), go);
    return;
  }
  const offered = make("div", { class: "strip" });
  place.replaceChildren(title("Where was a photo taken?"),
    make("p", {}, "Choose one above. The map answers with its own photos that show the same place, says how sure it is of each, and where they "
      + "were taken. Why? beside an answer shows which parts of the two photos carried it."), offered);
  const step = Math.max(Math.floor(facts.images / TRIED), 1); // of all parts of the map
  const pages = Array.from({ length: Math.min(TRIED, facts.images) }, (_, at) => call("v1/images", { query: { offset: at * step, limit: 1 } }));
  try {
    const photos = (await Promise.all(pages)).flatMap((page) => page.images);
    if (!photos.length) return;
    offered.before(make("p", { class: "quiet" }, "No photo at hand? Try it with one of the map's own, which it should find at once:"));
    offered.append(...photos.map((one) => offer(one, recognise)));
  } catch {
    offered.remove(); // the view works without them, and says what is wrong when it is used
  }
}

function offer(record, recognise) {
  const image = make("img", { alt: "" });
  showPhoto(image, record.image_url, 240);
  const take = async () => {
    try {
      recognise(await photoFile(record.image_url, record.path));
    } catch (error) {
      alertIn("recognise-alert", error);
    }
  };
  return make("button", { type: "button", class: "small-photo", "aria-label": `Try ${record.path}`, click: take }, image, make("span", {}, record.path));
}
