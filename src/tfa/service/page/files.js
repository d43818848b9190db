// Photo selection: a button that accepts dropped files, and one that opens a phone's camera.
import { make } from "./dom.js";

function picker(multiple, camera, onFiles) {
  const input = make("input", {
    type: "file", accept: "image/*", multiple, capture: camera ? "environment" : null, hidden: true,
    change: () => {
      const files = [...input.files];
      input.value = ""; // so that the same file can be chosen again
      if (files.length) onFiles(files);
    },
  });
  return input;
}

/** Fill `place` with the two buttons; `onFiles` receives an array of files. */
export function fileZone(place, { title, hint, multiple = false, onFiles }) {
  const pick = picker(multiple, false, onFiles);
  const shoot = picker(false, true, onFiles);
  const drop = make("button", { type: "button", class: "drop", click: () => pick.click() }, title, make("span", {}, hint));
  const camera = make("button", { type: "button", class: "camera", click: () => shoot.click() }, "Take a photo");
  const mark = (event, over) => {
    event.preventDefault(); // keep the browser from opening the file
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

/** Ignore files dropped outside the button, which would replace the page. */
export function refuseStrayDrops() {
  for (const name of ["dragover", "drop"]) window.addEventListener(name, (event) => event.preventDefault());
}

/** Show a chosen file in an <img>; the alternative text appears if the browser cannot decode it. */
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

/** A visible list of chosen photos. */
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
      const leave = make("button", { type: "button", "aria-label": `Remove ${file.name}`, click: () => this.drop(file) }, "Remove");
      return make("li", {}, image, file.name, leave);
    }));
    this.onChange(this.files);
  }
}
