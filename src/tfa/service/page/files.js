// Choosing photos: one button that is also the place to drop them, and one that opens a phone's camera.
import { make } from "./dom.js";

function picker(multiple, camera, onFiles) {
  const input = make("input", {
    type: "file", accept: "image/*", multiple, capture: camera ? "environment" : null, hidden: true,
    change: () => {
      const files = [...input.files];
      input.value = ""; // the same file may be chosen again
      if (files.length) onFiles(files);
    },
  });
  return input;
}

/** Fill `place` with the two buttons; `onFiles` gets an array of files. */
export function fileZone(place, { title, hint, multiple = false, onFiles }) {
  const pick = picker(multiple, false, onFiles);
  const shoot = picker(false, true, onFiles);
  const drop = make("button", { type: "button", class: "drop", click: () => pick.click() }, title, make("span", {}, hint));
  const camera = make("button", { type: "button", class: "camera", click: () => shoot.click() }, "Take a photo");
  const mark = (event, over) => {
    event.preventDefault(); // or the browser would open the file
    drop.classList.toggle("over", over);
  };
  drop.addEventListener("dragover", (event) => mark(event, true));
  drop.addEventListener("dragleave", (event) => mark(event, false));
  drop.addEventListener("drop", (event) => {
    mark(event, false);
    const files = [...event.dataTransfer.files];
    if (files.length) onFiles(multiple ? files : files.slice(0, 1));
  });
  place.replaceChildren(make("div", { class: "zone" }, drop, camera, pick, shoot));
}

/** A file dropped beside the button must not replace the page. */
export function refuseStrayDrops() {
  for (const name of ["dragover", "drop"]) window.addEventListener(name, (event) => event.preventDefault());
}

/** Show a chosen file in an <img>; formats that the browser cannot draw leave the alternative text. */
export function preview(image, file) {
  const local = URL.createObjectURL(file);
  const done = () => URL.revokeObjectURL(local);
  image.classList.remove("missing");
  image.onload = done;
  image.onerror = () => {
    image.classList.add("missing");
    done();
  };
  image.src = local;
}

/** A list of chosen photos that grows with each choice and shows them. */
export class ChosenFiles {
  constructor(list, onChange) {
    this.list = list;
    this.onChange = onChange;
    this.files = [];
  }

  add(files) {
    this.files.push(...files);
    this.show();
  }

  clear() {
    this.files = [];
    this.show();
  }

  drop(file) {
    this.files = this.files.filter((other) => other !== file);
    this.show();
  }

  show() {
    this.list.replaceChildren(...this.files.map((file) => {
      const image = make("img", { alt: "" });
      preview(image, file);
      const leave = make("button", { type: "button", "aria-label": `Leave out ${file.name}`, click: () => this.drop(file) }, "Leave out");
      return make("li", {}, image, file.name, leave);
    }));
    this.onChange(this.files);
  }
}
