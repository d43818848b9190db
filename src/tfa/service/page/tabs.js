// Tabs after WAI-ARIA: arrow keys, Home and End select a tab, Tab moves into the panel.
import { byId } from "./dom.js";

/** Start the tabs; `onShow` is called with the id of each panel that is shown. */
export function startTabs(onShow) {
  const tabs = [...document.querySelectorAll("[role=tab]")];
  const panels = tabs.map((tab) => byId(tab.getAttribute("aria-controls")));

  function show(index, focus) {
    tabs.forEach((tab, at) => {
      tab.setAttribute("aria-selected", String(at === index));
      tab.tabIndex = at === index ? 0 : -1;
      panels[at].hidden = at !== index;
    });
    if (focus) tabs[index].focus();
    tabs[index].scrollIntoView({ block: "nearest", inline: "nearest" });
    history.replaceState(null, "", `#${panels[index].id}`);
    onShow(panels[index].id);
  }

  tabs.forEach((tab, index) => {
    tab.addEventListener("click", () => show(index, false));
    tab.addEventListener("keydown", (event) => {
      const last = tabs.length - 1;
      const next = { ArrowRight: index === last ? 0 : index + 1, ArrowLeft: index === 0 ? last : index - 1, Home: 0, End: last }[event.key];
      if (next === undefined) return;
      event.preventDefault();
      show(next, true);
    });
  });
  const wanted = panels.findIndex((panel) => `#${panel.id}` === location.hash);
  show(Math.max(wanted, 0), false);
}
