"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const still = matchMedia("(prefers-reduced-motion: reduce)");
  const all = (query, root = document) => [...root.querySelectorAll(query)];
  const one = (query, root = document) => root.querySelector(query);
  const { svg } = charts;
  const shown = () => new Set(all("[name=shown]:checked").map((box) => box.value));
  const state = { part: "train", panel: 0, round: 1, selectors: [] };

  // -- charts ------------------------------------------------------------------------------

  const say = (score) => score === "accuracy" ? charts.percent : charts.plain;
  const inPanel = (panel) => data.groups.filter((g) => g.panel === panel && shown().has(g.label));

  const plots = {
    curves(div) {
      const panel = Number(div.dataset.panel), score = data.scores[panel], words = say(score);
      const training = state.part === "train";
      const series = inPanel(panel).filter((g) => g[state.part]).map((g) => ({
        label: g.label, style: data.styles[g.label], x: g.rounds, y: g[state.part].mean, low: g[state.part].low, high: g[state.part].high,
        mark: training && g.reached !== null ? g.rounds.indexOf(g.reached) : null,
      }));
      charts.lines(div, series, {
        x: { title: "round", whole: true },
        // A model that has learned nothing yet can be so bad that nothing else would be seen.
        y: { title: `${training ? "training" : "test"} ${score}`, percent: score === "accuracy", floor: -1 },
        rule: training ? data.targets[panel] : null,
        say: (s, i) => `${words(s.y[i])} (${words(s.low[i])} to ${words(s.high[i])})`,
      });
    },
    gemd: (div) => bars(div, "gemd", "gemd_sd"),
    variation: (div) => bars(div, "variation"),
    megabytes: (div) => bars(div, "megabytes"),
    participation(div) {
      const series = inPanel(state.panel).map((g) => ({
        label: g.label, style: data.styles[g.label], y: g.participation,
        x: g.participation.map((_, i) => i / Math.max(1, g.participation.length - 1)),
      }));
      charts.lines(div, series, {
        x: { title: "share of clients", percent: true }, y: { title: "rounds", zero: true, whole: true },
        say: (s, i) => `${s.y[i].toFixed(1)} rounds`,
      });
    },
    kernel(div) {
      const [view] = viewsOf(state.panel);
      const federation = federationOf(view);
      const kernel = federation && federation.kernel;
      div.hidden = !kernel;
      one("[data-no-kernel]").hidden = Boolean(kernel);
      one("[data-no-kernel]").textContent = view ? "No selector in this setting asked for profiles, so there is no kernel to show." : missing();
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

  // -- cohort explorer ---------------------------------------------------------------------

  const { federations, views } = data.explorer;
  const viewsOf = (panel) => views.filter((v) => data.groups[v.group].panel === panel);
  const federationOf = (view) => view && federations[view.federation];
  const missing = () => data.explorer.missing[data.groups.findIndex((g) => g.panel === state.panel)];
  const labelOf = (view) => data.groups[view.group].label;
  const classColour = (k) => `var(--class-${k % 10})`;
  const explorer = one("[data-explorer]");
  const slider = one("#round");

  function build() {
    const here = viewsOf(state.panel);
    const labels = here.map(labelOf);
    const first = labels.includes("dp3s") ? "dp3s" : labels.find((label) => label !== "fedavg") ?? labels[0];
    const second = labels.includes("fedavg") ? "fedavg" : labels.find((label) => label !== first);
    state.selectors = [...new Set([first, second])].filter((label) => label !== undefined);
    const box = one(".views", explorer);
    box.replaceChildren(...state.selectors.map((label, i) => view(labels, label, i)));
    one("[data-empty]").hidden = here.length > 0;
    one(".slider", explorer).hidden = here.length === 0;
    one("[data-text=kernel]").textContent = data.panels[state.panel];
    if (!here.length) {
      play(false);
      one("[data-empty]").textContent = missing();
      return;
    }
    one("[data-text=from]").textContent = federationOf(here[0]).from === "profiles" ? "profile (first two principal components)" : "label mixture (first two principal components)";
    one("[data-text=kernel]").textContent = `${data.panels[state.panel]}, seed ${here[0].seed}`;
    slider.max = Math.max(...here.map((v) => v.cohorts.length));
    state.round = Math.min(state.round, Number(slider.max));
    slider.value = state.round;
    update();
  }

  function view(labels, label, i) {
    const card = document.createElement("article");
    card.className = "view";
    const header = document.createElement("header");
    const chooser = document.createElement("label");
    chooser.append(state.selectors.length > 1 ? ["Selector", "Compared with"][i] : "Selector");
    const select = document.createElement("select");
    select.append(...labels.map((name) => new Option(name, name, name === label, name === label)));
    select.addEventListener("change", () => { state.selectors[i] = select.value; fill(card, i); update(); });
    chooser.append(select);
    const gemd = document.createElement("div");
    gemd.className = "gemd";
    gemd.innerHTML = "<b></b><span>GEMD of this round</span>";
    header.append(chooser, gemd);
    const body = document.createElement("div");
    card.append(header, body);
    fill(card, i);
    return card;
  }

  const width = 460, height = 240;

  function fill(card, i) {
    const v = viewsOf(state.panel).find((candidate) => labelOf(candidate) === state.selectors[i]);
    const f = federationOf(v);
    const body = card.lastElementChild;
    const points = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Clients as points; the cohort of ${labelOf(v)} is lit` });
    const sizes = f.counts.map((row) => row.reduce((a, b) => a + b, 0));
    const largest = Math.max(...sizes);
    const base = Math.max(3.5, Math.min(10, 75 / Math.sqrt(sizes.length)));
    const clients = f.x.map((x, c) => {
      const r = base * Math.sqrt(sizes[c] / largest);
      const g = svg("g", { class: "client", transform: `translate(${16 + x * (width - 32)} ${height - 16 - f.y[c] * (height - 32)})` }, points);
      svg("title", {}, g).textContent = `Client ${c}: ${sizes[c]} samples, mostly class ${f.main[c]}`;
      svg("circle", { r: Math.max(r, 2.5), fill: classColour(f.main[c]) }, g);
      svg("text", {}, g).textContent = f.main[c];
      return g;
    });

    const mixture = svg("svg", { viewBox: `0 0 ${width} 100`, class: "mixture", role: "img" });
    const total = f.counts[0].map((_, k) => f.counts.reduce((sum, row) => sum + row[k], 0));
    const samples = total.reduce((a, b) => a + b, 0);
    const everyone = total.map((count) => count / samples);
    const step = width / total.length;
    const bars = total.map((_, k) => svg("rect", { x: k * step + step * 0.16, width: step * 0.68, rx: 2, fill: classColour(k) }, mixture));
    svg("line", { x1: 0, x2: width, y1: 82, y2: 82, class: "rule" }, mixture);
    const ticks = everyone.map((_, k) => svg("line", { x1: k * step + step * 0.06, x2: (k + 1) * step - step * 0.06, class: "everyone" }, mixture));
    if (total.length <= 30) total.forEach((_, k) => { svg("text", { x: (k + 0.5) * step, y: 97, class: "axis" }, mixture).textContent = k; });

    const history = svg("svg", { viewBox: `0 0 ${width} 64`, role: "img", "aria-label": `GEMD of ${labelOf(v)} by round` });
    const top = Math.max(0.1, ...viewsOf(state.panel).flatMap((other) => other.gemd));
    const at = (t) => [6 + (t / Math.max(1, Number(slider.max) - 1)) * (width - 12), 56 - 48 * (v.gemd[t] / top)];
    svg("line", { x1: 0, x2: width, y1: 56, y2: 56, class: "rule" }, history);
    const line = svg("polyline", { class: "trace" }, history);
    const now = svg("circle", { r: 5, class: "now" }, history);

    const titles = ["Label mixture of the cohort (bars) and of everyone (ticks)", "GEMD by round"].map((text) => Object.assign(document.createElement("h4"), { textContent: text }));
    body.replaceChildren(points, titles[0], mixture, titles[1], history);

    card.update = () => {
      const t = Math.min(state.round, v.cohorts.length) - 1;
      const cohort = v.cohorts[t];
      const lit = new Set(cohort);
      clients.forEach((g, c) => g.classList.toggle("lit", lit.has(c)));
      // Later siblings are drawn above earlier ones: the lit ones belong on top.
      for (const c of lit) points.append(clients[c]);
      const counts = total.map((_, k) => cohort.reduce((sum, c) => sum + f.counts[c][k], 0));
      const joint = Math.max(1, counts.reduce((a, b) => a + b, 0));
      const ceiling = Math.max(0.3, ...everyone, ...v.cohorts.length ? counts.map((n) => n / joint) : []);
      bars.forEach((bar, k) => {
        const h = 76 * (counts[k] / joint / ceiling);
        bar.setAttribute("y", 82 - h);
        bar.setAttribute("height", h);
      });
      ticks.forEach((tick, k) => {
        const y = 82 - 76 * (everyone[k] / ceiling);
        tick.setAttribute("y1", y);
        tick.setAttribute("y2", y);
      });
      mixture.setAttribute("aria-label", "Label mixture of the cohort: " + counts.map((n, k) => `class ${k} ${Math.round((100 * n) / joint)} %`).join(", "));
      line.setAttribute("points", v.gemd.map((_, i) => at(i).join(",")).join(" "));
      const [x, y] = at(t);
      now.setAttribute("cx", x);
      now.setAttribute("cy", y);
      const gemd = v.gemd[t] === null ? "–" : v.gemd[t].toFixed(2);
      one(".gemd b", card).textContent = gemd;
      card.dataset.cohort = [...lit].sort((a, b) => a - b).join(" ");
      return `${labelOf(v)}: GEMD ${gemd}, ${lit.size} clients`;
    };
  }

  function update() {
    one("[data-round]").textContent = `${state.round} / ${slider.max}`;
    slider.setAttribute("aria-valuetext", `round ${state.round} of ${slider.max}`);
    const said = all(".view", explorer).map((card) => card.update());
    if (!timer) one("[data-status]").textContent = `Round ${state.round}. ${said.join(". ")}`;
  }

  let timer = 0;
  const button = one("[data-play]");
  function play(on) {
    clearInterval(timer);
    timer = on ? setInterval(() => go(state.round % Number(slider.max) + 1), still.matches ? 1500 : 600) : 0;
    button.textContent = on ? "❚❚ Pause" : "▶ Play";
    button.setAttribute("aria-pressed", String(on));
  }
  function go(round) { state.round = round; slider.value = round; update(); }

  slider.addEventListener("input", () => { play(false); go(Number(slider.value)); });
  button.addEventListener("click", () => play(!timer));
  one("[data-panel-chooser]").addEventListener("change", (event) => {
    state.panel = Number(event.target.value);
    build();
    drawAll();
  });
  all("[name=part]").forEach((input) => input.addEventListener("change", () => { state.part = input.value; drawAll(); }));
  all("[name=shown]").forEach((input) => input.addEventListener("change", drawAll));
  dark.addEventListener("change", drawAll);
  build();
  drawAll();
  let drawnAt = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth !== drawnAt) drawAll();
    drawnAt = innerWidth;
  });
  document.documentElement.dataset.ready = "true";
})();
