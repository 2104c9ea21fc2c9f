"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const all = (query, root = document) => [...root.querySelectorAll(query)];
  const one = (query, root = document) => root.querySelector(query);
  const shown = () => new Set(all("[name=shown]:checked").map((box) => box.value));
  const state = { part: one("[name=part]:checked")?.value ?? "train" };

  // -- charts ------------------------------------------------------------------------------

  const say = (score) => score === "accuracy" ? charts.percent : charts.score;
  const inPanel = (panel) => data.groups.filter((g) => g.panel === panel && shown().has(g.label));

  const plots = {
    curves(div) {
      const panel = Number(div.dataset.panel), score = data.scores[panel], words = say(score);
      const training = state.part === "train", target = data.targets[panel];
      const series = inPanel(panel).filter((g) => g[state.part]).map((g) => ({
        label: g.label, style: data.styles[g.label], x: g[state.part].rounds, y: g[state.part].mean, low: g[state.part].low, high: g[state.part].high,
        mark: g.reached_on === state.part && g.reached !== null ? g[state.part].rounds.indexOf(g.reached) : null,
      }));
      charts.lines(div, series, {
        x: { title: "round", whole: true },
        // A model that has learned nothing yet can be so bad that nothing else would be seen.
        y: { title: `${training ? "training" : "test"} ${score}`, percent: score === "accuracy", floor: -1 },
        rule: target && target.on === state.part ? target.score : null,
        say: (s, i) => `${words(s.y[i])} (${words(s.low[i])} to ${words(s.high[i])})`,
      });
    },
    gemd: (div) => bars(div, "gemd", "gemd_sd"),
    variation: (div) => bars(div, "variation"),
    megabytes: (div) => bars(div, "megabytes"),
    participation(div) {
      const series = inPanel(explorer.panel()).map((g) => ({
        label: g.label, style: data.styles[g.label], y: g.participation,
        x: g.participation.map((_, i) => i / Math.max(1, g.participation.length - 1)),
      }));
      charts.lines(div, series, {
        x: { title: "share of clients", percent: true }, y: { title: "rounds", zero: true, whole: true },
        say: (s, i) => `${s.y[i].toFixed(1)} rounds`,
      });
    },
    kernel(div) {
      const [view] = explorer.views();
      const federation = view && data.explorer.federations[view.federation];
      const kernel = federation && federation.kernel;
      div.hidden = !kernel;
      one("[data-text=kernel]").textContent = view ? `${data.panels[explorer.panel()]}, seed ${view.seed}` : data.panels[explorer.panel()];
      one("[data-no-kernel]").hidden = Boolean(kernel);
      one("[data-no-kernel]").textContent = view ? "No selector in this setting asked for profiles, so there is no kernel to show." : explorer.missing();
      if (!kernel) return;
      const main = kernel.clients.map((c) => federation.main[c]);
      const name = (i) => `client ${kernel.clients[i]} (class ${main[i]})`;
      charts.heat(div, kernel.percent.map((row) => row.map((v) => v / 100)), {
        groups: [...new Set(main)].map((k) => [k, main.indexOf(k), main.lastIndexOf(k)]),
        title: "clients by main class",
        scale: dark.matches ? [[22, 29, 38], [29, 90, 134], [214, 239, 255]] : [[255, 255, 255], [111, 179, 217], [6, 42, 74]],
        say: (i, j) => `${name(i)} and ${name(j)}: ${(kernel.percent[i][j] / 100).toFixed(2)}`,
      });
    },
  };

  function bars(div, field, spread) {
    const groups = data.panels.map((title, panel) => ({
      title,
      rows: inPanel(panel).map((g) => ({ label: g.label, style: data.styles[g.label], value: g[field], spread: spread && g[spread] })),
    }));
    charts.bars(div, groups, (value) => value.toFixed(value < 10 ? 3 : 1));
  }

  const drawAll = () => all("[data-plot]").forEach((div) => plots[div.dataset.plot](div));

  // -- tables ------------------------------------------------------------------------------

  /** Let a click or a key on a heading order the rows below it by their data-value. */
  function sortable(table) {
    const body = one("tbody", table);
    const value = (row, column) => row.cells[column].dataset.value ?? row.cells[column].textContent.trim();
    all("thead th:not([data-fixed])", table).forEach((heading) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...heading.childNodes);
      heading.append(button);
      button.addEventListener("click", () => {
        const down = heading.getAttribute("aria-sort") === "ascending";
        all("th[aria-sort]", table).forEach((other) => other.removeAttribute("aria-sort"));
        heading.setAttribute("aria-sort", down ? "descending" : "ascending");
        const column = heading.cellIndex, sign = down ? -1 : 1;
        const compare = column ? (a, b) => a - b : (a, b) => a.localeCompare(b);
        // What is not known comes last in either order.
        body.append(...[...body.rows].sort((one, other) => {
          const [a, b] = [value(one, column), value(other, column)];
          return (a === "") - (b === "") || sign * compare(a, b);
        }));
      });
    });
  }
  all("table").forEach(sortable);

  const explorer = cohortExplorer(document, data, drawAll);
  all("[name=part]").forEach((input) => input.addEventListener("change", () => { state.part = input.value; drawAll(); }));
  all("[name=shown]").forEach((input) => input.addEventListener("change", drawAll));
  dark.addEventListener("change", drawAll);
  drawAll();
  let drawnAt = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth !== drawnAt) drawAll();
    drawnAt = innerWidth;
  });
  document.documentElement.dataset.ready = "true";
})();
