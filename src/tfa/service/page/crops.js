// Crops of a word's patches with their surroundings, from the two photos of the why view.
import { count, make } from "./dom.js";
import { cellOf, patchesOf } from "./overlay.js";

const MOST = 3; // crops per photo, of the patches that contribute most
const AROUND = 1; // patches of context on each side
const WIDTH = 128; // pixels of a crop, displayed at half size or less

/** Fill the crops of every word; a missing photo has none. */
export function cropsOf(body, why, images) {
  const grids = [why.grid, why.image_grid || why.grid];
  const heats = [why.query_heat, why.image_heat];
  body.querySelectorAll(".crops").forEach((place, index) => {
    const word = why.words[index];
    const sides = patchesOf(word).map((patches, side) => {
      const cells = patches.map((patch) => cellOf(patch, grids[side][1]));
      const weight = ([row, column]) => Math.sign(word.contribution) * heats[side][row][column];
      cells.sort((one, other) => weight(other) - weight(one));
      return images[side].naturalWidth ? cells.slice(0, MOST).map((cell) => crop(images[side], grids[side], cell)) : [];
    });
    place.replaceChildren(...sides.map((crops, side) => make("span", {},
      make("small", {}, `${side ? "map" : "yours"}: ${patchesOf(word)[side].length ? count(patchesOf(word)[side].length, "patch", "patches") : "none"}`),
      ...crops)));
  });
}

function crop(image, [rows, columns], [row, column]) {
  const [width, height] = [image.naturalWidth / columns, image.naturalHeight / rows];
  const across = 1 + 2 * AROUND;
  const drawn = make("canvas", { width: WIDTH, height: Math.round((WIDTH * height) / width) });
  const brush = drawn.getContext("2d");
  const scale = WIDTH / (across * width);
  // The area beyond the edge of the photo stays empty.
  brush.drawImage(image, (AROUND - column) * width * scale, (AROUND - row) * height * scale, image.naturalWidth * scale, image.naturalHeight * scale);
  const side = [WIDTH / across, drawn.height / across];
  for (const [color, line] of [["#000", 4], ["#ffe04d", 2]]) {
    Object.assign(brush, { strokeStyle: color, lineWidth: line });
    brush.strokeRect(AROUND * side[0], AROUND * side[1], side[0], side[1]);
  }
  return drawn;
}
