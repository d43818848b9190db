// The list of queries, its filters, and links to a query: #q=17.
const MOST_HUBS = 24;
const list = byId("list");
const fields = { head: byId("head"), beside: byId("beside"), show: byId("show"), filter: byId("filter") };

function listRow(query) {
  const confidence = confidenceOf(state.run, query);
  const right = rightOf(state.run, query);
  const mark = (own) => (own ? "✓" : "✗");
  const marks = isChanged(query) ? `${mark(right)} | ${mark(rightOf(state.beside, query))}` : mark(right);
  const words = `${right ? "right" : "wrong"}${isChanged(query) ? `, ${runs[state.beside].name} ${right ? "wrong" : "right"}` : ""}`;
  return make("li", { role: "option", id: `query-${query}`, "aria-selected": String(query === state.chosen), click: () => choose(query) },
    picture(photos.queries[query], "", true),
    make("span", { class: "name", title: content.queryNames[query] }, make("span", { class: "number" }, `${queries[query].number} `), content.queryNames[query]),
    make("span", { class: `verdict ${right ? "right" : "wrong"}`, "aria-label": words }, `${confidence === null ? "–" : confidence.toFixed(2)} ${marks}`));
}

function showList() {
  select();
  list.replaceChildren(...(state.list.length ? state.list.map(listRow) : [make("li", { class: "empty" }, "No query matches.")]));
  if (!state.list.includes(state.chosen) && state.list.length) choose(state.list[0], false);
  else markChosen();
  sayCounts();
  paintPlan();
}

function sayCounts() {
  const { run, beside } = state;
  const evaluated = queries.map((_, at) => at).filter((at) => isEvaluated(run, at));
  const right = evaluated.filter((at) => rightOf(run, at)).length;
  const sure = evaluated.filter((at) => !rightOf(run, at) && accepted(run, at, state.threshold)).length;
  const parts = [
    `${counted(evaluated.length, "query", "queries")}: ${right} right, ${evaluated.length - right} wrong (${percent(right, evaluated.length)} right)`,
    `${sure} wrong with confidence ≥ ${state.threshold.toFixed(2)}`,
  ];
  if (beside >= 0) {
    const changed = queries.map((_, at) => at).filter(isChanged);
    const won = changed.filter((at) => rightOf(run, at)).length;
    parts.push(`${counted(changed.length, "query", "queries")} changed: ${won} right only under ${runs[run].name}, ${changed.length - won} only under ${runs[beside].name}`);
  }
  if (state.hub >= 0) parts.push(`only queries wrongly answered by ${content.images.names[state.hub]}`);
  byId("counts").textContent = `${parts.join("; ")}. ${state.list.length} listed.`;
}

function markChosen() {
  for (const row of list.querySelectorAll("[aria-selected=true]")) row.setAttribute("aria-selected", "false");
  const row = byId(`query-${state.chosen}`);
  if (!row) return void list.removeAttribute("aria-activedescendant");
  row.setAttribute("aria-selected", "true");
  list.setAttribute("aria-activedescendant", row.id);
  // Scroll the list, not the page.
  const [above, below] = [row.offsetTop - list.offsetTop, row.offsetTop - list.offsetTop + row.offsetHeight];
  if (above < list.scrollTop) list.scrollTop = above;
  else if (below > list.scrollTop + list.clientHeight) list.scrollTop = below - list.clientHeight;
}

function choose(query, linked = true) {
  state.chosen = query;
  state.rank = 0;
  if (linked) history.replaceState(null, "", `#q=${queries[query].number}`);
  markChosen();
  showDetail();
  paintPlan();
}

function step(by) {
  const at = state.list.indexOf(state.chosen);
  const next = at < 0 ? 0 : Math.min(Math.max(at + by, 0), state.list.length - 1);
  if (state.list.length) choose(state.list[next]);
}

/** Select the query of the address; list all queries if it is not listed. */
function followLink() {
  const number = new URLSearchParams(location.hash.slice(1)).get("q");
  const query = number === null ? -1 : queries.findIndex((one) => String(one.number) === number);
  if (query < 0 || !isEvaluated(state.run, query)) return;
  if (!state.list.includes(query)) {
    Object.assign(state, { show: "all", text: "", hub: -1 });
    [fields.show.value, fields.filter.value] = ["all", ""];
    showList();
  }
  choose(query, false);
}

function showHubs() {
  const hubs = runs[state.run].hubs;
  const tile = ([image, wrong, right]) => make("button", {
    type: "button", "aria-pressed": String(state.hub === image),
    click: () => { state.hub = state.hub === image ? -1 : image; showHubs(); showList(); },
  }, picture(photos.images[image], "", true), `${content.images.names[image]}: wrong ${wrong} times, right ${right} times`);
  const more = hubs.length > MOST_HUBS ? [make("p", { class: "small" }, `and ${hubs.length - MOST_HUBS} more`)] : [];
  byId("hubs").replaceChildren(...(hubs.length ? [...hubs.slice(0, MOST_HUBS).map(tile), ...more] : [make("p", {}, "None.")]));
}

/** Set the head and the head to compare it with. */
function setHeads(run, beside) {
  const other = run !== state.run;
  Object.assign(state, { run, beside: beside === run ? -1 : beside, hub: -1 });
  if (state.show === "changed" && state.beside < 0) state.show = fields.show.value = "all";
  fields.head.value = state.run;
  fields.beside.value = state.beside;
  fields.show.querySelector("[value=changed]").disabled = state.beside < 0;
  setSlider();
  showList();
  showHubs();
  drawCurve();
  setThreshold(other ? runs[run].threshold : state.threshold);
  showDetail();
}

function setShow(show) {
  if (show === "changed" && state.beside < 0) return;
  state.show = fields.show.value = show;
  showList();
}
