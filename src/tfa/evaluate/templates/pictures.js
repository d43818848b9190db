// Lines between the matching patches of a query and an answer.

/** Color of a row, from yellow (top) over red to violet (bottom), as `tfa explain` draws them. */
const rowColor = (row, rows) => `hsl(${60 - (165 * row) / Math.max(rows - 1, 1)} 95% 62%)`;

/** Add a canvas over both photos that is repainted when their size changes. */
function linesOver(pair, left, right, grid, lines) {
  const canvas = make("canvas", { "aria-hidden": "true" });
  pair.append(canvas);
  const box = (image) => {
    const [whole, own] = [pair.getBoundingClientRect(), image.getBoundingClientRect()];
    return { x: own.left - whole.left, y: own.top - whole.top, width: own.width, height: own.height };
  };
  const paint = () => {
    const size = pair.getBoundingClientRect();
    if (size.width < 2 || !left.complete || !right.complete) return;
    const sharp = window.devicePixelRatio || 1;
    canvas.width = Math.round(size.width * sharp);
    canvas.height = Math.round(size.height * sharp);
    const brush = canvas.getContext("2d");
    brush.scale(sharp, sharp);
    paintLines(brush, [box(left), box(right)], grid, lines);
  };
  const watcher = new ResizeObserver(paint);
  watcher.observe(pair);
  for (const image of [left, right]) image.addEventListener("load", paint);
}

function paintLines(brush, boxes, [rows, columns], lines) {
  const center = (box, patch) => [
    box.x + ((patch % columns) + 0.5) * (box.width / columns),
    box.y + (Math.floor(patch / columns) + 0.5) * (box.height / rows),
  ];
  for (let at = 0; at < lines.length; at += 2) {
    const ends = [center(boxes[0], lines[at]), center(boxes[1], lines[at + 1])];
    const ink = rowColor(Math.floor(lines[at] / columns), rows);
    for (const [stroke, width] of [["rgb(0 0 0 / .35)", 2.2], [ink, 1]]) {
      brush.strokeStyle = stroke;
      brush.lineWidth = width;
      brush.beginPath();
      brush.moveTo(...ends[0]);
      brush.lineTo(...ends[1]);
      brush.stroke();
    }
    brush.fillStyle = ink;
    for (const end of ends) {
      brush.beginPath();
      brush.arc(...end, 1.8, 0, 2 * Math.PI);
      brush.fill();
    }
  }
}
