"use strict";
/**
 * Bring the cohort explorer inside `root` to life: clients as points, a slider of rounds, and for two
 * selectors the cohort, its samples by class, its GEMD and the model's score after it.
 * `changed` is called when another setting is chosen.
 */
function cohortExplorer(root, data, changed = () => {}) {
  const still = matchMedia("(prefers-reduced-motion: reduce)");
  const all = (query, from = root) => [...from.querySelectorAll(query)];
  const one = (query, from = root) => from.querySelector(query);
  const { svg } = charts;
  const { federations, views } = data.explorer;
  const state = { panel: 0, round: 1, selectors: [] };
  const viewsOf = (panel) => views.filter((v) => data.groups[v.group].panel === panel);
  const federationOf = (view) => federations[view.federation];
  const missing = () => data.explorer.missing[data.groups.findIndex((g) => g.panel === state.panel)];
  const labelOf = (view) => data.groups[view.group].label;
  const classColour = (k) => `var(--class-${k % 10})`;
  const explorer = one("[data-explorer]");
  const slider = one("#round");

  function build() {
    const here = viewsOf(state.panel);
    const labels = here.map(labelOf);
    const first = ["match", "dp3s"].find((name) => labels.includes(name)) ?? labels.find((label) => label !== "fedavg") ?? labels[0];
    const second = labels.includes("fedavg") ? "fedavg" : labels.find((label) => label !== first);
    state.selectors = [...new Set([first, second])].filter((label) => label !== undefined);
    if (here.length) slider.max = Math.max(...here.map((v) => v.cohorts.length));
    one(".views", explorer).replaceChildren(...state.selectors.map((label, i) => view(labels, label, i)));
    one("[data-empty]").hidden = here.length > 0;
    one(".slider", explorer).hidden = here.length === 0;
    if (!here.length) {
      play(false);
      one("[data-empty]").textContent = missing();
      return;
    }
    one("[data-text=from]").textContent = federationOf(here[0]).from === "profiles" ? "profile (first two principal components)" : "label mixture (first two principal components)";
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
    const numbers = document.createElement("div");
    numbers.className = "numbers";
    numbers.append(...["gemd", "score"].map((name) => {
      const box = document.createElement("div");
      box.className = name;
      box.append(document.createElement("b"), document.createElement("span"));
      return box;
    }));
    one(".gemd span", numbers).textContent = "GEMD";
    header.append(chooser, numbers);
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

    const most = Math.max(0.1, ...viewsOf(state.panel).flatMap((other) => other.gemd));
    const gemd = trace(`GEMD of ${labelOf(v)} by round`, v.gemd, 0, most);
    const scores = viewsOf(state.panel).flatMap((other) => other.score).filter((s) => s !== null);
    const score = trace(`${v.measured} of ${labelOf(v)} by round`, v.score, Math.max(-1, Math.min(...scores)), Math.max(...scores));
    const say = v.measured.endsWith("accuracy") ? charts.percent : charts.score;
    one(".score span", card).textContent = v.measured;

    const titled = [["Samples by class: of the chosen (bars), of everyone (ticks)", mixture], ["GEMD by round", gemd.drawn], [`${v.measured[0].toUpperCase()}${v.measured.slice(1)} by round`, score.drawn]];
    body.replaceChildren(points, ...titled.flatMap(([text, drawn]) => [Object.assign(document.createElement("h4"), { textContent: text }), drawn]));

    card.update = () => {
      const t = Math.min(state.round, v.cohorts.length) - 1;
      const lit = new Set(v.cohorts[t]);
      clients.forEach((g, c) => g.classList.toggle("lit", lit.has(c)));
      // Later siblings are drawn above earlier ones: the lit ones belong on top.
      for (const c of lit) points.append(clients[c]);
      // Each client once: with what weight it was averaged, which GEMD is by, is not kept.
      const counts = total.map((_, k) => [...lit].reduce((sum, c) => sum + f.counts[c][k], 0));
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
      mixture.setAttribute("aria-label", "Samples of all who were chosen: " + counts.map((n, k) => `class ${k} ${Math.round((100 * n) / joint)} %`).join(", "));
      const shown = (value, words) => value === null ? "–" : words(value);
      const numbers = { gemd: shown(gemd.mark(t), (value) => value.toFixed(2)), score: shown(score.mark(t), say) };
      for (const [name, text] of Object.entries(numbers)) one(`.${name} b`, card).textContent = text;
      card.dataset.cohort = [...lit].sort((a, b) => a - b).join(" ");
      return `${labelOf(v)}: GEMD ${numbers.gemd}, ${v.measured} ${numbers.score}, ${lit.size} clients`;
    };
  }

  /** Draw values by round, null where none was measured; `mark` puts the dot at the last one so far. */
  function trace(label, values, low, high) {
    const drawn = svg("svg", { viewBox: `0 0 ${width} 64`, role: "img", "aria-label": label });
    const measured = values.map((_, t) => t).filter((t) => values[t] !== null);
    const at = (t) => [6 + (t / Math.max(1, Number(slider.max) - 1)) * (width - 12), 56 - 48 * Math.max(0, (values[t] - low) / (high - low || 1))];
    svg("line", { x1: 0, x2: width, y1: 56, y2: 56, class: "rule" }, drawn);
    svg("polyline", { class: "trace", points: measured.map((t) => at(t).join(",")).join(" ") }, drawn);
    const now = svg("circle", { r: 5, class: "now" }, drawn);
    const mark = (round) => {
      const t = measured.findLast((other) => other <= round);
      now.setAttribute("visibility", t === undefined ? "hidden" : "visible");
      if (t === undefined) return null;
      const [x, y] = at(t);
      now.setAttribute("cx", x);
      now.setAttribute("cy", y);
      return values[t];
    };
    return { drawn, mark };
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
    changed();
  });
  build();
  return { panel: () => state.panel, views: () => viewsOf(state.panel), missing };
}
