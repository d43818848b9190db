// Keyboard shortcuts, form fields, and startup.
const dialog = byId("help");
const lookAt = (rank) => { state.rank = Math.max(rank, 0); showDetail(); };
const cycle = (value, from) => (value + 1 < runs.length ? value + 1 : from);
const KEYS = {
  j: () => step(1),
  k: () => step(-1),
  n: () => lookAt(Math.min(state.rank + 1, (answerOf(state.run, state.chosen)?.hits.length ?? 1) - 1)),
  b: () => lookAt(state.rank - 1),
  h: () => setHeads(cycle(state.run, 0), state.beside),
  o: () => setHeads(state.run, cycle(state.beside, -1) === state.run ? cycle(state.run, -1) : cycle(state.beside, -1)),
  l: () => byId("lines").click(),
  w: () => setShow("wrong"),
  c: () => setShow("changed"),
  a: () => setShow("all"),
  "[": () => setThreshold(state.threshold - Number(slider.step)),
  "]": () => setThreshold(state.threshold + Number(slider.step)),
  "/": () => fields.filter.focus(),
  p: () => plan.focus(),
  s: saveCsv,
  g: saveGeojson,
  "?": () => dialog.showModal(),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || dialog.open) return;
  const typing = event.target.closest("input[type=search], select");
  if (typing) {
    if (event.key === "Escape") list.focus();
    return;
  }
  const inList = event.target === list && { ArrowDown: KEYS.j, ArrowUp: KEYS.k, Home: () => step(-Infinity), End: () => step(Infinity) };
  const digit = /^[1-9]$/.test(event.key) ? () => lookAt(Number(event.key) - 1) : null;
  const does = (inList && inList[event.key]) || KEYS[event.key] || digit;
  if (!does) return;
  event.preventDefault();
  does();
});

const option = (run, at) => make("option", { value: at }, run.name);
fields.head.append(...runs.map(option));
fields.beside.append(make("option", { value: -1 }, "none"), ...runs.map(option));
byId("beside-label").hidden = runs.length < 2;
fields.head.addEventListener("change", () => setHeads(Number(fields.head.value), state.beside));
fields.beside.addEventListener("change", () => setHeads(state.run, Number(fields.beside.value)));
fields.show.addEventListener("change", () => setShow(fields.show.value));
fields.filter.addEventListener("input", () => { state.text = fields.filter.value; showList(); });
byId("lines").addEventListener("change", showDetail);
byId("lines").parentElement.hidden = !runs.some((run) => run.answers.some((answer) => answer?.[2].some((hit) => hit[5])));
byId("controls").addEventListener("submit", (event) => event.preventDefault());
byId("help-button").addEventListener("click", KEYS["?"]);
addEventListener("hashchange", followLink);
setHeads(state.run, state.beside);
followLink();
performance.mark("explorer ready");
