// The query view before the first photo: an introduction, and map images to try.
import { call, photoFile, showPhoto } from "./api.js";
import { alertIn, byId, make } from "./dom.js";

const TRIED = 4; // map images to offer

const title = (words) => make("h3", { id: "start-title" }, words);

/** Fill the introduction; `recognize` is called with the chosen image. */
export async function showStart(facts, recognize) {
  const place = byId("start");
  if (!facts.images) {
    const go = make("button", { type: "button", click: () => byId("tab-map").click() }, "Go to Map");
    place.replaceChildren(title("This map has no images"), make("p", {}, "Add photos before you query it."), go);
    return;
  }
  const offered = make("div", { class: "strip" });
  place.replaceChildren(title("Where was a photo taken?"),
    make("p", {}, "Choose a photo above. The answer has a position and the map images that show the same place, and says whether you can rely "
      + "on it. Click Why? to see which parts of the two photos match."), offered);
  const step = Math.max(Math.floor(facts.images / TRIED), 1); // spread over the map
  const pages = Array.from({ length: Math.min(TRIED, facts.images) }, (_, at) => call("v1/images", { query: { offset: at * step, limit: 1 } }));
  try {
    const photos = (await Promise.all(pages)).flatMap((page) => page.images);
    if (!photos.length) return;
    offered.before(make("p", { class: "quiet" }, "No photo at hand? Try a map image:"));
    offered.append(...photos.map((one) => offer(one, recognize)));
  } catch {
    offered.remove(); // the view works without them, and a query shows the error
  }
}

function offer(record, recognize) {
  const image = make("img", { alt: "" });
  showPhoto(image, record.image_url, 240);
  const take = async () => {
    try {
      recognize(await photoFile(record.image_url, record.path));
    } catch (error) {
      alertIn("recognize-alert", error);
    }
  };
  return make("button", { type: "button", class: "small-photo", "aria-label": `Try ${record.path}`, click: take }, image, make("span", {}, record.path));
}
