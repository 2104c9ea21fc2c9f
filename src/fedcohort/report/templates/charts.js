"use strict";
// The report's charts: curves and a heat map in SVG, bars in HTML. Colours are the style sheet's.
const charts = (() => {
  const DASHES = { solid: "none", dash: "8 5", dot: "2 4", dashdot: "8 4 2 4", longdash: "14 5", longdashdot: "14 4 2 4" };
  // In pixels: between two numbers of an axis, and of a group of rows that has room for its name.
  const TICK_GAP = 64;
  const SMALLEST_LABELLED = 11;

  function svg(name, attributes = {}, parent = null) {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (parent) parent.append(element);
    return element;
  }

  function html(name, className, text = "") {
    const element = document.createElement(name);
    element.className = className;
    element.textContent = text;
    return element;
  }

  /** Give an element its selector's colour on light and on dark ground. */
  function paint(element, style) {
    element.style.setProperty("--light", style.light);
    element.style.setProperty("--dark", style.dark);
    return element;
  }

  /** Return at most `count` round numbers between two, and the digits that tell them apart. */
  function ticks(low, high, count, whole = false) {
    const least = Math.max((high - low) / Math.max(1, count), 1e-9);
    const power = 10 ** Math.floor(Math.log10(least));
    const nice = [1, 2, 5, 10].map((n) => n * power).find((step) => step >= least * 0.999);
    const step = whole ? Math.max(1, Math.round(nice)) : nice;
    const first = Math.ceil(low / step - 1e-9);
    const found = [];
    for (let n = first; n * step <= high + step * 1e-9; n += 1) found.push(n * step);
    return { values: found, digits: Math.max(0, -Math.floor(Math.log10(step) + 1e-9)) };
  }

  function percent(value, digits = 1) { return `${(100 * value).toFixed(digits)} %`; }
  function plain(value, digits = 3) { return value.toFixed(digits).replace("-", "−"); }

  /** Return a score that is no share; that of a model that has gone astray has many digits. */
  function score(value) {
    return Math.abs(value) < 1000 ? plain(value) : value.toExponential(1).replace("-", "−").replace("e+", "e");
  }

  /** Show a box of lines beside a point of a chart, or hide it. */
  function tip(div, at, lines) {
    let box = div.querySelector(".tip");
    if (!box) div.append(box = html("div", "tip"));
    box.hidden = !at;
    if (!at) return;
    box.replaceChildren(...lines);
    const left = at.x > div.clientWidth / 2 ? at.x - box.offsetWidth - 12 : at.x + 12;
    box.style.left = `${Math.max(0, Math.min(left, div.clientWidth - box.offsetWidth))}px`;
    box.style.top = `${Math.max(0, Math.min(at.y, div.clientHeight - box.offsetHeight))}px`;
  }

  /** Draw two axes; x and y have low, high, title, percent and whole. */
  function frame(div, x, y) {
    const width = Math.max(160, div.clientWidth), height = Math.max(120, div.clientHeight);
    const ys = ticks(y.low, y.high, (height - 70) / 40, y.whole);
    const shown = (axis, found) => found.values.map((v) => axis.percent ? percent(v, Math.max(0, found.digits - 2)) : plain(v, found.digits));
    const labels = shown(y, ys);
    const left = 10 + 7.4 * Math.max(...labels.map((label) => label.length), 1);
    const inner = { left, right: width - 14, top: 26, bottom: height - 42 };
    const xs = ticks(x.low, x.high, (inner.right - left) / TICK_GAP, x.whole);
    const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height });
    const across = (v) => left + ((v - x.low) / (x.high - x.low || 1)) * (inner.right - left);
    const up = (v) => inner.bottom - ((v - y.low) / (y.high - y.low || 1)) * (inner.bottom - inner.top);
    const text = (label, attributes) => { svg("text", attributes, root).textContent = label; };
    ys.values.forEach((v, i) => {
      svg("line", { class: "rule", x1: left, x2: inner.right, y1: up(v), y2: up(v) }, root);
      text(labels[i], { class: "tick y", x: left - 6, y: up(v) + 4, "text-anchor": "end" });
    });
    shown(x, xs).forEach((label, i) => text(label, { class: "tick x", x: across(xs.values[i]), y: inner.bottom + 17, "text-anchor": "middle" }));
    text(y.title, { class: "tick", x: 0, y: 13 });
    text(x.title, { class: "tick", x: (left + inner.right) / 2, y: height - 6, "text-anchor": "middle" });
    const clip = svg("clipPath", { id: `clip-${div.dataset.plot}-${div.dataset.panel ?? ""}` }, root);
    svg("rect", { x: left - 8, y: inner.top - 8, width: inner.right - left + 16, height: inner.bottom - inner.top + 8 }, clip);
    const plot = svg("g", { "clip-path": `url(#${clip.id})` }, root);
    div.replaceChildren(root);
    return { root, plot, across, up, inner };
  }

  const extent = (values) => values.reduce(([a, b], v) => [Math.min(a, v), Math.max(b, v)], [Infinity, -Infinity]);

  /**
   * Draw lines; each has label, style, x, y, and maybe low, high (a band) and mark (a place).
   * With `rule` there is a dotted line at that height; `say` puts a value into words.
   */
  function lines(div, series, { x, y, rule = null, say }) {
    const floor = y.floor ?? -Infinity;
    const nothing = !series.length ? "Nobody to draw: tick a selector above."
      : series.every((s) => s.y.length < 2) ? "There are no means after round 0."
      : series.every((s) => s.y.every((v) => v < floor)) ? `All means are below ${plain(floor, 0)}.` : "";
    if (nothing) {
      div.replaceChildren(html("p", "note", nothing));
      return;
    }
    const [xLow, xHigh] = extent([0, ...series.flatMap((s) => s.x)]);
    const heights = series.flatMap((s) => [...s.y, ...(s.low ?? []), ...(s.high ?? [])]);
    let [yLow, yHigh] = extent([...heights, ...(rule === null ? [] : [rule]), ...(y.zero ? [0] : [])]);
    yLow = Math.max(yLow, floor);
    const room = 0.04 * (yHigh - yLow || 1);
    const drawn = frame(div, { ...x, low: 0, high: Math.max(xHigh, 1e-9) }, { ...y, low: y.zero ? yLow : yLow - room, high: yHigh + room });
    const { plot, across, up, inner } = drawn;
    const path = (xs, ys) => xs.map((v, i) => `${across(v).toFixed(1)},${up(ys[i]).toFixed(1)}`);
    for (const s of series) {
      if (s.low) paint(svg("polygon", { class: "band", points: [...path(s.x, s.high), ...path(s.x, s.low).reverse()].join(" ") }, plot), s.style);
    }
    if (rule !== null) svg("line", { class: "goal", x1: inner.left, x2: inner.right, y1: up(rule), y2: up(rule) }, plot);
    for (const s of series) {
      paint(svg("polyline", { class: "curve", points: path(s.x, s.y).join(" "), "stroke-dasharray": DASHES[s.style.dash] }, plot), s.style);
      if (s.mark != null) paint(svg("circle", { class: "mark", cx: across(s.x[s.mark]), cy: up(s.y[s.mark]), r: 5.5 }, plot), s.style);
    }
    const places = [...new Set(series.flatMap((s) => s.x))].sort((a, b) => a - b);
    const cursor = svg("line", { class: "cursor", y1: inner.top, y2: inner.bottom, visibility: "hidden" }, plot);
    drawn.root.addEventListener("pointermove", (event) => {
      const at = event.clientX - drawn.root.getBoundingClientRect().left;
      const place = places.reduce((best, v) => Math.abs(across(v) - at) < Math.abs(across(best) - at) ? v : best, places[0]);
      if (place === undefined) return;
      cursor.setAttribute("x1", across(place));
      cursor.setAttribute("x2", across(place));
      cursor.setAttribute("visibility", "visible");
      const said = series.filter((s) => s.x.includes(place)).map((s) => {
        const line = html("div", "", ` ${s.label}: ${say(s, s.x.indexOf(place))}`);
        line.prepend(paint(html("span", "swatch"), s.style));
        return line;
      });
      tip(div, { x: across(place), y: inner.top }, [html("b", "", `${x.title} ${x.percent ? percent(place, 0) : place}`), ...said]);
    });
    drawn.root.addEventListener("pointerleave", () => { cursor.setAttribute("visibility", "hidden"); tip(div, null); });
  }

  /** Draw bars by group; each group has a title and rows of label, style, value and spread. */
  function bars(div, groups, digits) {
    if (groups.every((g) => g.rows.every((r) => r.value === null))) {
      div.replaceChildren(html("p", "note", "Nothing to draw."));
      return;
    }
    const largest = Math.max(1e-9, ...groups.flatMap((g) => g.rows.map((r) => (r.value ?? 0) + (r.spread ?? 0))));
    const share = (value) => `${(100 * Math.max(0, value)) / largest}%`;
    div.replaceChildren(...groups.map((g) => {
      const box = html("div", "bar-group");
      if (groups.length > 1) box.append(html("h4", "", g.title));
      for (const r of g.rows) {
        const row = html("div", "bar-row");
        const track = paint(html("span", "track"), r.style);
        if (r.value !== null) {
          track.append(html("i", "fill"));
          track.lastChild.style.width = share(r.value);
          if (r.spread) {
            track.append(html("i", "whisker"));
            track.lastChild.style.left = share(r.value - r.spread);
            track.lastChild.style.width = share(Math.min(r.value, r.spread) + r.spread);
          }
        }
        row.append(html("span", "bar-name", r.label), track, html("b", "", r.value === null ? "–" : digits(r.value)));
        box.append(row);
      }
      return box;
    }));
  }

  /** Draw a square table of shares as colours; groups are [name, first, last] of its rows. */
  function heat(div, rows, { groups, title, scale, say }) {
    const n = rows.length;
    const canvas = document.createElement("canvas");
    canvas.width = canvas.height = n;
    const brush = canvas.getContext("2d");
    const pixels = brush.createImageData(n, n);
    const channel = (share, k) => {
      const at = share * (scale.length - 1), i = Math.min(Math.floor(at), scale.length - 2);
      return scale[i][k] + (at - i) * (scale[i + 1][k] - scale[i][k]);
    };
    rows.flat().forEach((share, i) => { pixels.data.set([0, 1, 2].map((k) => channel(share, k)).concat(255), 4 * i); });
    brush.putImageData(pixels, 0, 0);
    const size = Math.max(160, Math.min(div.clientWidth, div.clientHeight)), left = 34, side = size - left - 34;
    const root = svg("svg", { viewBox: `0 0 ${size} ${size}`, width: size, height: size });
    svg("image", { href: canvas.toDataURL(), x: left, y: 4, width: side, height: side, style: "image-rendering: pixelated" }, root);
    const at = (v) => ((v + 0.5) / n) * side;
    for (const [name, first, last] of groups) {
      if (((last - first + 1) / n) * side >= SMALLEST_LABELLED) {
        svg("text", { class: "tick", x: left + at((first + last) / 2), y: side + 20, "text-anchor": "middle" }, root).textContent = name;
        svg("text", { class: "tick", x: left - 6, y: 8 + at((first + last) / 2), "text-anchor": "end" }, root).textContent = name;
      }
      if (!first) continue;
      const edge = at(first - 0.5);
      svg("line", { class: "rule", x1: left + edge, x2: left + edge, y1: 4, y2: 4 + side }, root);
      svg("line", { class: "rule", x1: left, x2: left + side, y1: 4 + edge, y2: 4 + edge }, root);
    }
    svg("text", { class: "tick", x: left + side / 2, y: size - 2, "text-anchor": "middle" }, root).textContent = title;
    div.replaceChildren(root);
    root.addEventListener("pointermove", (event) => {
      const box = root.getBoundingClientRect();
      const [j, i] = [event.clientX - box.left - left, event.clientY - box.top - 4].map((v) => Math.floor((v / side) * n));
      const inside = i >= 0 && j >= 0 && i < n && j < n;
      tip(div, inside ? { x: event.clientX - box.left, y: event.clientY - box.top } : null, inside ? [html("div", "", say(i, j))] : []);
    });
    root.addEventListener("pointerleave", () => tip(div, null));
  }

  return { svg, lines, bars, heat, percent, score };
})();
