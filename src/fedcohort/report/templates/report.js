"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const narrow = matchMedia("(max-width: 40rem)");
  const still = matchMedia("(prefers-reduced-motion: reduce)");
  const all = (query, root = document) => [...root.querySelectorAll(query)];
  const one = (query, root = document) => root.querySelector(query);
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const colour = (label) => data.styles[label][dark.matches ? "dark" : "light"];
  const faded = (hex, alpha) => hex + Math.round(alpha * 255).toString(16).padStart(2, "0");
  const shown = () => new Set(all("[name=shown]:checked").map((box) => box.value));
  const state = { part: "train", panel: 0, round: 1, selectors: [] };

  // -- charts ------------------------------------------------------------------------------

  // Without a pointer that hovers, Plotly's buttons would always lie over the curves.
  const hovers = matchMedia("(hover: hover)").matches;
  const config = { responsive: true, displaylogo: false, displayModeBar: hovers ? "hover" : false, modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"] };

  function layout(extra) {
    const axis = { gridcolor: css("--line"), linecolor: css("--line"), zeroline: false, automargin: true, fixedrange: narrow.matches };
    const base = {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false, autosize: true,
      font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: css("--soft") },
      margin: { l: 8, r: 12, t: 8, b: 8 }, hovermode: "x unified",
      hoverlabel: { bgcolor: css("--surface"), bordercolor: css("--line"), font: { color: css("--ink") } },
      modebar: { color: css("--soft"), activecolor: css("--accent"), bgcolor: "rgba(0,0,0,0)" },
    };
    return { ...base, ...extra, xaxis: { ...axis, ...extra.xaxis }, yaxis: { ...axis, ...extra.yaxis } };
  }

  const draw = (div, traces, extra) => Plotly.react(div, traces, layout(extra), config);

  const charts = {
    curves(div) {
      const visible = shown();
      const groups = data.groups.filter((g) => g.panel === Number(div.dataset.panel) && visible.has(g.label) && g[state.part]);
      const traces = [];
      for (const g of groups) {
        const c = g[state.part];
        traces.push({
          x: [...g.rounds, ...[...g.rounds].reverse()], y: [...c.high, ...[...c.low].reverse()], type: "scatter", mode: "lines",
          fill: "toself", fillcolor: faded(colour(g.label), 0.16), line: { width: 0 }, hoverinfo: "skip",
        });
      }
      for (const g of groups) {
        const band = g[state.part].low.map((low, i) => [low, g[state.part].high[i]]);
        traces.push({
          x: g.rounds, y: g[state.part].mean, customdata: band, name: g.label, type: "scatter", mode: "lines",
          line: { color: colour(g.label), width: 2.5, dash: data.styles[g.label].dash },
          hovertemplate: "%{y:.1%} (%{customdata[0]:.1%} to %{customdata[1]:.1%})",
        });
        if (state.part === "train" && g.reached !== null) {
          const at = g.rounds.indexOf(g.reached);
          traces.push({
            x: [g.reached], y: [g.train.mean[at]], type: "scatter", mode: "markers", hoverinfo: "skip",
            marker: { color: colour(g.label), size: 11, line: { color: css("--surface"), width: 2 } },
          });
        }
      }
      const target = data.targets[Number(div.dataset.panel)];
      const goal = target !== null && state.part === "train";
      draw(div, traces, {
        xaxis: { title: { text: "round" }, rangemode: "tozero" },
        yaxis: { tickformat: ".0%", title: { text: state.part === "train" ? "training accuracy" : "test accuracy" } },
        shapes: goal ? [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: target, y1: target, line: { color: css("--soft"), width: 1.5, dash: "dot" } }] : [],
      });
    },
    gemd: (div) => bars(div, "gemd", "GEMD", "gemd_sd"),
    variation: (div) => bars(div, "variation", ""),
    megabytes: (div) => bars(div, "megabytes", "MB"),
    participation(div) {
      const visible = shown();
      const groups = data.groups.filter((g) => g.panel === state.panel && visible.has(g.label));
      const traces = groups.map((g) => ({
        x: g.participation.map((_, i) => i / Math.max(1, g.participation.length - 1)), y: g.participation, name: g.label, type: "scatter", mode: "lines",
        line: { color: colour(g.label), width: 2.5, dash: data.styles[g.label].dash }, hovertemplate: "%{y:.1f} rounds",
      }));
      draw(div, traces, {
        xaxis: { tickformat: ".0%", title: { text: "share of clients" } }, yaxis: { rangemode: "tozero", title: { text: "rounds" } },
      });
    },
    kernel(div) {
      const federation = federationOf(viewsOf(state.panel)[0]);
      const kernel = federation && federation.kernel;
      div.hidden = !kernel;
      one("[data-no-kernel]").hidden = Boolean(kernel);
      if (!kernel) return;
      const main = kernel.clients.map((c) => federation.main[c]);
      const ticks = [...new Set(main)];
      const middle = ticks.map((t) => (main.indexOf(t) + main.lastIndexOf(t)) / 2);
      const names = kernel.clients.map((c, i) => `client ${c} (class ${main[i]})`);
      const ground = css("--surface");
      const scale = dark.matches
        ? [[0, ground], [0.5, "#1d5a86"], [1, "#d6efff"]]
        : [[0, "#ffffff"], [0.5, "#6fb3d9"], [1, "#062a4a"]];
      const lines = ticks.slice(1).flatMap((t) => {
        const at = main.indexOf(t) - 0.5;
        const line = { color: css("--line"), width: 1 };
        const end = main.length - 0.5;
        return [
          { type: "line", x0: at, x1: at, y0: -0.5, y1: end, line },
          { type: "line", y0: at, y1: at, x0: -0.5, x1: end, line },
        ];
      });
      const axis = { tickvals: middle, ticktext: ticks.map(String), showgrid: false, title: { text: "clients by main class" }, constrain: "domain" };
      draw(div, [{
        type: "heatmap", z: kernel.percent.map((row) => row.map((v) => v / 100)), zmin: 0, zmax: 1, colorscale: scale,
        text: names.map((a) => names.map((b) => `${a} and ${b}`)), hovertemplate: "%{text}: %{z:.2f}<extra></extra>",
        colorbar: { thickness: 12, outlinewidth: 0, title: { text: "S" } },
      }], { hovermode: "closest", xaxis: axis, yaxis: { ...axis, autorange: "reversed", scaleanchor: "x" }, shapes: lines });
    },
  };

  function bars(div, field, title, spread) {
    const visible = shown();
    const labels = Object.keys(data.styles).filter((label) => visible.has(label));
    const alone = data.panels.length === 1;
    const number = (value) => value === null ? "–" : value.toPrecision(3);
    const traces = labels.map((label) => {
      const groups = data.groups.filter((g) => g.label === label);
      return {
        type: "bar", name: label, x: groups.map((g) => alone ? `${label}<br><b>${number(g[field])}</b>` : data.panels[g.panel].replace(", ", "<br>")),
        y: groups.map((g) => g[field]), width: alone ? 0.6 : undefined, marker: { color: colour(label) }, hovertemplate: `%{y:.3f}<extra>${label}</extra>`,
        error_y: spread ? { type: "data", array: groups.map((g) => g[spread]), arrayminus: groups.map((g) => Math.min(g[spread], g[field])), color: css("--soft"), thickness: 1.3, width: 4 } : undefined,
      };
    });
    draw(div, traces, {
      hovermode: "closest", barmode: alone ? "overlay" : "group", bargap: 0.3,
      xaxis: { type: "category", showgrid: false, tickangle: 0 }, yaxis: { rangemode: "tozero", title: { text: title } },
    });
  }

  const drawAll = () => all("[data-plot]").forEach((div) => charts[div.dataset.plot](div));

  // -- cohort explorer ---------------------------------------------------------------------

  const { federations, views } = data.explorer;
  const viewsOf = (panel) => views.filter((v) => data.groups[v.group].panel === panel);
  const federationOf = (view) => view && federations[view.federation];
  const labelOf = (view) => data.groups[view.group].label;
  const classColour = (k) => `var(--class-${k % 10})`;
  const explorer = one("[data-explorer]");
  const slider = one("#round");

  function svg(name, attributes, parent) {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (parent) parent.append(element);
    return element;
  }

  function build() {
    const here = viewsOf(state.panel);
    const labels = here.map(labelOf);
    const first = labels.includes("dp3s") ? "dp3s" : labels.find((label) => label !== "fedavg") ?? labels[0];
    const second = labels.includes("fedavg") ? "fedavg" : labels.find((label) => label !== first);
    state.selectors = [...new Set([first, second])].filter((label) => label !== undefined);
    const box = one(".views", explorer);
    box.replaceChildren(...state.selectors.map((label, i) => view(labels, label, i)));
    one("[data-empty]").hidden = here.length > 0;
    one(".controls", explorer).hidden = here.length === 0;
    if (!here.length) return;
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
      one(".gemd b", card).textContent = v.gemd[t].toFixed(2);
      card.dataset.cohort = [...lit].sort((a, b) => a - b).join(" ");
      return `${labelOf(v)}: GEMD ${v.gemd[t].toFixed(2)}, ${lit.size} clients`;
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
  narrow.addEventListener("change", drawAll);
  build();
  drawAll();
  document.documentElement.dataset.ready = "true";
})();
