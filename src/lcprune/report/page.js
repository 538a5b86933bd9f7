// Draws every figure in the theme of the page, and again when the theme or the width changes.
(() => {
  const data = JSON.parse(document.getElementById("figures").textContent);
  const root = document.documentElement;
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;
  const theme = () => chosen ?? (system.matches ? "dark" : "light");

  // Faceted charts cannot follow their container, so their inner width is set from it.
  function fitted(spec, width) {
    const copy = structuredClone(spec);
    if (copy.spec) {
      let columns = copy.facet.column ? data.columns[copy.usermeta?.name] ?? 1 : 1;
      if (columns > 1 && width / columns < 200) {  // a phone: below one another
        copy.facet = { row: { ...copy.facet.column, header: { labelOrient: "top", labelAnchor: "start" } } };
        columns = 1;
      }
      const margin = copy.usermeta?.name === "schedule" ? 60 : 150;
      copy.spec.width = Math.max(120, (width - margin) / columns - (columns > 1 ? 40 : 0));
    } else {
      copy.width = "container";
      copy.autosize = { type: "fit-x", contains: "padding" };
    }
    return copy;
  }

  async function draw() {
    root.dataset.theme = theme();
    for (const [name, spec] of Object.entries(data.specs)) {
      const place = document.getElementById("figure-" + name);
      await vegaEmbed(place, fitted(spec, place.clientWidth), {
        config: data.configs[theme()],
        renderer: "svg",
        tooltip: { theme: theme() },
        downloadFileName: name,
        actions: { export: true, source: false, compiled: false, editor: false },
      });
    }
    root.dataset.drawn = "yes";
  }

  document.getElementById("theme").addEventListener("click", () => {
    chosen = theme() === "dark" ? "light" : "dark";
    draw();
  });
  system.addEventListener("change", draw);
  let width = window.innerWidth, timer;
  window.addEventListener("resize", () => {
    if (window.innerWidth === width) return;
    width = window.innerWidth;
    clearTimeout(timer);
    timer = setTimeout(draw, 150);
  });
  draw();
})();
