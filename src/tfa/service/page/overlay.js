// Overlay of the why view: contributions of patches, inliers, or the patches of a word.

const PLUS = [255, 154, 31]; // supports the match
const MINUS = [58, 160, 255]; // opposes it
const MOST_LINES = 60; // more lines would hide the photos
const VEIL = "rgb(0 0 0 / .3)"; // darkens the photos, so that the heat map is visible on bright ones

/** Return [row, column] of a patch, which may be a row-major number. */
export const cellOf = (patch, columns) => (Array.isArray(patch) ? [patch[0], patch[1]] : [Math.floor(patch / columns), patch % columns]);

/** Return the patches of a word in the query and in the map image. */
export const patchesOf = (word) => [word.query_patches || [], word.image_patches || []];

/** Return the largest absolute contribution of both photos, so that they share one scale. */
export function largest(...heats) {
  return heats.flat(2).reduce((most, value) => Math.max(most, Math.abs(value)), 0);
}

/** Count the patches that make up half of the support for the match. */
export function halfCarriedBy(heat) {
  const gains = heat.flat().filter((value) => value > 0).sort((a, b) => b - a);
  const half = gains.reduce((sum, value) => sum + value, 0) / 2;
  let sum = 0;
  const at = gains.findIndex((value) => (sum += value) >= half);
  return gains.length ? at + 1 : 0;
}

function lessMean(heat) {
  const values = heat.flat();
  const mean = values.reduce((sum, value) => sum + value, 0) / Math.max(values.length, 1);
  return heat.map((row) => row.map((value) => value - mean));
}

/** Draw the heat map with one pixel per patch. */
function heatPicture(heat, most) {
  const rows = heat.length;
  const columns = rows ? heat[0].length : 0;
  const small = document.createElement("canvas");
  small.width = columns;
  small.height = rows;
  const brush = small.getContext("2d");
  const pixels = brush.createImageData(columns, rows);
  heat.flat().forEach((value, at) => {
    const strength = most > 0 ? Math.abs(value) / most : 0;
    pixels.data.set([...(value >= 0 ? PLUS : MINUS), Math.round(225 * strength)], 4 * at);
  });
  brush.putImageData(pixels, 0, 0);
  return small;
}

/** Color by row, yellow at the top to violet at the bottom, as `tfa explain` draws it. */
const rowColor = (row, rows) => `hsl(${60 - (165 * row) / Math.max(rows - 1, 1)} 95% 62%)`;

export class Overlay {
  constructor(canvas, left, right, why) {
    Object.assign(this, { canvas, left, right, why, shown: "heat", marked: null }); // a marked word replaces the overlay
    this.grids = [why.grid, why.image_grid || why.grid]; // query, map image
    // Linearized contributions are shown relative to their mean.
    const heats = [why.query_heat, why.image_heat].map((heat) => (why.linearised ? lessMean(heat) : heat));
    this.most = largest(...heats);
    this.pictures = heats.map((heat) => heatPicture(heat, this.most));
    this.watcher = new ResizeObserver(() => this.paint());
    this.watcher.observe(canvas.parentElement);
    for (const image of [left, right]) image.addEventListener("load", () => this.paint());
  }

  stop() {
    this.watcher.disconnect();
  }

  /** Return the rectangle of a photo on the canvas. */
  box(image) {
    const [whole, own] = [this.canvas.getBoundingClientRect(), image.getBoundingClientRect()];
    return { x: own.left - whole.left, y: own.top - whole.top, width: own.width, height: own.height };
  }

  cell(box, side, row, column) {
    const [rows, columns] = this.grids[side];
    const [width, height] = [box.width / columns, box.height / rows];
    return { x: box.x + column * width, y: box.y + row * height, width, height };
  }

  paint() {
    const size = this.canvas.getBoundingClientRect();
    if (size.width < 2) return;
    const sharp = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(size.width * sharp);
    this.canvas.height = Math.round(size.height * sharp);
    const brush = this.canvas.getContext("2d");
    brush.scale(sharp, sharp);
    const boxes = [this.box(this.left), this.box(this.right)];
    const shown = this.marked ? "word" : this.shown;
    boxes.forEach((box, side) => {
      if (shown === "nothing" || shown === "lines") return;
      brush.fillStyle = VEIL;
      brush.fillRect(box.x, box.y, box.width, box.height);
      if (shown === "word") {
        this.paintMarks(brush, box, side, patchesOf(this.marked)[side]);
        return;
      }
      brush.imageSmoothingEnabled = false; // show patches as squares
      brush.drawImage(this.pictures[side], box.x, box.y, box.width, box.height);
    });
    if (shown === "lines") this.paintLines(brush, boxes);
  }

  paintLines(brush, boxes) {
    const every = this.why.matches || [];
    const step = Math.ceil(every.length / MOST_LINES);
    const matches = every.filter((_, index) => index % step === 0);
    const center = (side, row, column) => {
      const cell = this.cell(boxes[side], side, row, column);
      return [cell.x + cell.width / 2, cell.y + cell.height / 2];
    };
    for (const [row, column, otherRow, otherColumn] of matches) {
      const ends = [center(0, row, column), center(1, otherRow, otherColumn)];
      for (const [color, width] of [["rgb(0 0 0 / .55)", 3.5], [rowColor(row, this.why.grid[0]), 1.75]]) {
        brush.strokeStyle = color;
        brush.lineWidth = width;
        brush.beginPath();
        brush.moveTo(...ends[0]);
        brush.lineTo(...ends[1]);
        brush.stroke();
      }
      brush.fillStyle = rowColor(row, this.why.grid[0]);
      for (const end of ends) {
        brush.beginPath();
        brush.arc(...end, 3, 0, 2 * Math.PI);
        brush.fill();
      }
    }
  }

  paintMarks(brush, box, side, patches) {
    for (const patch of patches) {
      const cell = this.cell(box, side, ...cellOf(patch, this.grids[side][1]));
      brush.fillStyle = "rgb(255 255 255 / .25)";
      brush.fillRect(cell.x, cell.y, cell.width, cell.height);
      for (const [color, width] of [["#000", 4], ["#ffe04d", 2]]) {
        brush.strokeStyle = color;
        brush.lineWidth = width;
        brush.strokeRect(cell.x + 1, cell.y + 1, cell.width - 2, cell.height - 2);
      }
    }
  }
}
