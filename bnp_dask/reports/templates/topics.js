"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = new Map(data.topics.map((topic, place) => [topic.id, place]));
  const wordPlace = new Map(data.index.words.map((word, place) => [word, place]));
  const state = { view: null, weight: data.weight, sort: "share" };

  // -- small tools: text goes in as text, never as markup --------------------------------------------------------
  const make = (tag, attributes = {}, ...children) => {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else if (name === "width") node.style.width = value;
      else if (value !== null && value !== undefined) node.setAttribute(name, value);
    }
    node.append(...children.filter((child) => child !== null && child !== undefined));
    return node;
  };
  const draw = (tag, attributes, text) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    if (text !== undefined) node.textContent = text;
    return node;
  };
  const percent = (x) => (100 * x).toFixed(x < 0.0995 ? 1 : 0) + "%";
  const count = (x) => Math.round(x).toLocaleString("en-US");
  const button = (text, action, kind = "link") => make("button", { type: "button", class: kind, onclick: action }, text);

  // -- words -----------------------------------------------------------------------------------------------------
  const ranked = (topic, weight) => {
    const rows = [];
    for (let i = 0; i < topic.words.length; i += 2) {
      const place = topic.words[i];
      const phi = topic.words[i + 1];
      const lift = phi / data.overall[place];
      rows.push({ word: data.words[place], phi, lift, score: weight * Math.log(phi) + (1 - weight) * Math.log(lift) });
    }
    rows.sort((a, b) => b.score - a.score || (a.word < b.word ? -1 : 1));
    return rows.slice(0, data.shown);
  };
  const naming = new Map();
  const nameOf = (topic, n = 4) => {
    if (!naming.has(topic.id)) naming.set(topic.id, ranked(topic, data.weight).map((row) => row.word));
    return naming.get(topic.id).slice(0, n).join(", ");
  };

  // -- list of topics --------------------------------------------------------------------------------------------
  const keys = { share: (t) => t.share, used: (t) => t.used ?? -1, npmi: (t) => t.npmi ?? -2 };
  const shown = { share: (t) => percent(t.share), used: (t) => percent(t.used), npmi: (t) => t.npmi === null ? "" : t.npmi.toFixed(2) };
  const sorted = () => data.topics.map((_, place) => place)
    .sort((a, b) => keys[state.sort](data.topics[b]) - keys[state.sort](data.topics[a]) || a - b);
  const list = document.getElementById("topics");
  const fillList = () => {
    const order = sorted();
    const largest = Math.max(1e-12, ...data.topics.map((t) => keys[state.sort](t)));
    list.replaceChildren(...order.map((place) => {
      const topic = data.topics[place];
      const size = Math.max(0, keys[state.sort](topic)) / largest;
      return make("li", {}, make("button", {
        type: "button", "data-topic": topic.id, title: "topic " + topic.id, onclick: () => open({ topic: topic.id }),
      },
      make("span", { class: "rank" }, String(place + 1)),
      make("span", { class: "name" }, nameOf(topic, 5)),
      make("span", { class: "value" }, shown[state.sort](topic)),
      make("span", { class: "track" }, make("span", { class: "bar", width: 100 * size + "%" }))));
    }));
    mark();
  };
  const mark = () => {
    const current = state.view && "topic" in state.view ? String(state.view.topic) : null;
    for (const circle of document.querySelectorAll("#map circle")) circle.classList.toggle("current", circle.dataset.topic === current);
    for (const item of list.querySelectorAll("button")) {
      const is = item.dataset.topic === current;
      item.setAttribute("aria-current", String(is));
      if (is) item.scrollIntoView({ block: "nearest" });
    }
  };

  // -- one topic -------------------------------------------------------------------------------------------------
  const detail = document.getElementById("detail");
  const wordRows = (topic, weight) => {
    const rows = ranked(topic, weight);
    // bars are tokens of the word: pale for all topics, dark for this one
    const all = rows.map((row) => row.phi / row.lift);
    const own = rows.map((row) => row.phi * topic.share);
    const longest = Math.max(...all, ...own);
    return rows.map((row, i) => make("div", { class: "word" },
      button(row.word, () => open({ word: row.word })),
      make("span", { class: "track", title: `${percent(row.phi)} of the topic; ${row.lift.toFixed(1)} times as often as elsewhere` },
        make("span", { class: "all", width: 100 * all[i] / longest + "%" }),
        make("span", { class: "own", width: 100 * own[i] / longest + "%" })),
      make("span", { class: "number" }, percent(row.phi))));
  };
  const wordsBlock = (topic) => {
    const rows = make("div", { id: "words" }, ...wordRows(topic, state.weight));
    const slider = make("input", {
      type: "range", min: "0", max: "1", step: "0.05", value: String(state.weight), id: "weight", "aria-label": "Ranking of words",
      oninput: (event) => {
        state.weight = Number(event.target.value);
        rows.replaceChildren(...wordRows(topic, state.weight));
      },
    });
    return make("div", { class: "block" }, make("h3", {}, "Words"),
      make("div", { class: "slider" }, "distinctive", slider, "frequent"), rows,
      make("p", { class: "key" }, make("i", { style: "background:var(--blue)" }), make("span", {}, "in this topic"),
        make("i", { style: "background:var(--pale)" }), make("span", {}, "in all topics; number: share of this topic's tokens")));
  };
  const docsBlock = (topic) => {
    const block = make("div", { class: "block", id: "docs" }, make("h3", {}, "Documents that show it best"));
    if (!topic.docs) {
      block.append(make("p", { class: "hint" }, data.note || "No documents were given to this page."));
      return block;
    }
    for (const doc of topic.docs) {
      block.append(make("div", { class: "doc" }, make("span", { class: "number" }, percent(doc.share)),
        make("div", {}, make("div", { class: "id" }, doc.id),
          doc.title ? make("p", { class: "text title" }, doc.title) : null, doc.text ? make("p", { class: "text" }, doc.text) : null,
          make("p", {}, [count(doc.tokens) + (doc.tokens === 1 ? " token" : " tokens"), doc.more].filter(Boolean).join(" · ")))));
    }
    return block;
  };
  const barChart = (over, values, name) => {
    // bars in the order of times or numbers; a group without words has none
    const [width, height, left, bottom] = [380, 120, 38, 22];
    const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": name });
    const top = Math.max(1e-12, ...values.map((v) => v ?? 0));
    const step = (width - left) / values.length;
    for (const v of [0, top]) {
      const y = v ? 10 : height - bottom;
      svg.append(draw("line", { x1: left, x2: width, y1: y, y2: y, stroke: "#e2e8f0" }),
        draw("text", { x: left - 6, y: y + 4, "text-anchor": "end" }, v ? percent(v) : "0%"));
    }
    values.forEach((v, i) => {
      const high = (height - bottom - 10) * (v ?? 0) / top;
      const bar = draw("rect", { x: left + i * step + 0.08 * step, width: 0.84 * step, y: height - bottom - high, height: high, fill: "#2b6cb0" });
      bar.append(draw("title", {}, `${over.labels[i]}: ${v === null ? "no words" : percent(v)}, ${count(over.documents[i])} documents`));
      svg.append(bar);
    });
    const shown = Math.max(1, Math.ceil(values.length * 75 / (width - left)));
    over.labels.forEach((label, i) => {
      if (i % shown === 0) svg.append(draw("text", { x: left + (i + 0.5) * step, y: height - 6, "text-anchor": "middle" }, label));
    });
    return svg;
  };
  const overBlock = (over, topic) => {
    const values = over.share[byId.get(topic.id)];
    const block = make("div", { class: "block over" }, make("h3", {}, `Share of the tokens by ${over.name}`));
    if (over.line) {
      block.append(barChart(over, values, over.name));
      return block;
    }
    const largest = Math.max(1e-12, ...values.map((v) => v ?? 0));
    const rows = over.labels.map((label, i) => [label, values[i], over.documents[i]]).filter((row) => row[1] !== null);
    rows.sort((a, b) => b[1] - a[1]);
    const few = rows.slice(0, 12);
    for (const [label, value, documents] of few) {
      block.append(make("div", { class: "word", title: `${count(documents)} documents` }, make("span", { class: "cut" }, label),
        make("span", { class: "track" }, make("span", { class: "own", width: 100 * value / largest + "%" })),
        make("span", { class: "number" }, percent(value))));
    }
    if (rows.length > few.length) block.append(make("p", { class: "key" }, `and ${rows.length - few.length} more with less of it`));
    return block;
  };
  const nearBlock = (title, pairs, text) => {
    if (!pairs || !pairs.length) return null;
    return make("div", { class: "block" }, make("h3", {}, title), ...pairs.map(([place, value]) =>
      make("div", { class: "near" }, button(nameOf(data.topics[place], 5), () => open({ topic: data.topics[place].id })),
        make("span", { class: "number" }, text(value)))));
  };
  const chip = (value, text) => make("li", {}, make("b", {}, value), " ", make("span", {}, text));
  const showTopic = (topic) => {
    const chips = make("ul", { class: "chips" }, chip(percent(topic.share), "of all tokens"));
    if (topic.tokens !== null) chips.append(chip(count(topic.tokens), "tokens"));
    if (topic.used !== undefined) chips.append(chip(percent(topic.used), "of documents have more than 5% of it"));
    if (topic.npmi !== undefined && topic.npmi !== null) chips.append(chip(topic.npmi.toFixed(2), "coherence (NPMI)"));
    if (topic.response !== undefined) chips.append(chip(topic.response, "the response that it stands for"));
    detail.replaceChildren(make("h2", {}, nameOf(topic, 3)),
      make("p", { class: "hint", style: "margin-bottom:10px" }, `Topic ${topic.id}, number ${byId.get(topic.id) + 1} by size`), chips,
      make("div", { class: "columns" }, make("div", {}, wordsBlock(topic), ...data.over.map((over) => overBlock(over, topic))),
        make("div", {}, docsBlock(topic),
        nearBlock("Topics with the most similar words (Hellinger distance)", topic.near, (v) => v.toFixed(2)),
        nearBlock("Topics in the same documents (correlation of shares)", topic.together, (v) => "+" + v.toFixed(2)))));
  };

  // -- map of topics ---------------------------------------------------------------------------------------------
  const drawMap = () => {
    const place = document.getElementById("map");
    if (data.map.length < 2) { place.remove(); return; }
    const edge = (i, sign) => Math.max(...data.map.map((p) => sign * p[i] + 1.1 * p[2]));
    const [right, high, left, low] = [edge(0, 1), edge(1, 1), edge(0, -1), edge(1, -1)];
    const scale = Math.min(316 / (left + right), 300 / (low + high));
    const [width, height] = [Math.max(316, scale * (left + right)), scale * (low + high)];
    const shift = (width - scale * (left + right)) / 2;
    const svg = draw("svg", { viewBox: `0 0 ${width.toFixed(1)} ${height.toFixed(1)}`, role: "img", "aria-label": "Map of topics" });
    const named = [];
    data.map.forEach(([x, y, r], i) => {
      const topic = data.topics[i];
      const at = { cx: (shift + scale * (x + left)).toFixed(1), cy: (scale * (high - y)).toFixed(1) };
      const circle = draw("circle", { ...at, r: Math.max(2, scale * r).toFixed(1), "data-topic": topic.id });
      circle.append(draw("title", {}, `${i + 1}: ${nameOf(topic, 5)} (${percent(topic.share)})`));
      circle.addEventListener("click", () => open({ topic: topic.id }));
      svg.append(circle);
      const [cx, cy] = [Number(at.cx), Number(at.cy)];
      // a number that lay on another could not be read; all topics have a tooltip
      if (scale * r < 7 || named.some(([a, b]) => Math.abs(a - cx) < 15 && Math.abs(b - cy) < 11)) return;
      named.push([cx, cy]);
      svg.append(draw("text", { x: cx, y: cy + 4, "text-anchor": "middle" }, String(i + 1)));
    });
    place.append(svg, make("p", { class: "key" }, "Near: like words. Area: share of the tokens."));
  };

  // -- one word --------------------------------------------------------------------------------------------------
  const showWord = (word) => {
    const place = wordPlace.get(word);
    const found = place === undefined ? [] : data.index.topics[place];
    const tokens = place === undefined || !data.index.tokens ? "" : `${count(data.index.tokens[place])} tokens`;
    const rows = [];
    for (let i = 0; i < found.length; i += 2) {
      const topic = data.topics[found[i]];
      rows.push(make("div", { class: "word", style: "grid-template-columns:minmax(200px,2fr) 3fr 46px" },
        button(nameOf(topic, 5), () => open({ topic: topic.id })),
        make("span", { class: "track" }, make("span", { class: "own", width: 100 * found[i + 1] + "%" })),
        make("span", { class: "number" }, percent(found[i + 1]))));
    }
    detail.replaceChildren(make("h2", {}, `“${word}”`), make("p", { class: "hint", style: "margin-bottom:16px" }, tokens),
      make("div", { class: "block", id: "uses" }, make("h3", {}, "Topics that its tokens come from"),
        ...(rows.length ? rows : [make("p", { class: "hint" }, "No topic has this word.")])));
  };

  // -- search ----------------------------------------------------------------------------------------------------
  const search = document.getElementById("search");
  const found = document.getElementById("found");
  let hits = [];
  let chosen = -1;
  const suggest = () => {
    const asked = search.value.trim().toLowerCase();
    hits = [];
    chosen = -1;
    if (asked) {
      const scored = [];
      data.index.words.forEach((word, place) => {
        const at = word.toLowerCase().indexOf(asked);
        if (at >= 0) scored.push([word.toLowerCase() === asked ? 0 : at === 0 ? 1 : 2, data.index.tokens ? -data.index.tokens[place] : 0, word, place]);
      });
      scored.sort((a, b) => a[0] - b[0] || a[1] - b[1] || (a[2] < b[2] ? -1 : 1));
      hits = scored.slice(0, 10).map((row) => row[3]);
    }
    found.replaceChildren(...hits.map((place, i) => make("li", {
      role: "option", "aria-selected": "false", onmousedown: (event) => { event.preventDefault(); pick(i); },
    }, data.index.words[place], make("span", { class: "count" }, data.index.tokens ? count(data.index.tokens[place]) : ""))));
    if (asked && !hits.length) found.replaceChildren(make("li", { class: "count" }, "no such word"));
    found.classList.toggle("open", asked !== "");
  };
  const pick = (i) => {
    if (i < 0 || i >= hits.length) return;
    open({ word: data.index.words[hits[i]] });
    search.value = "";
    suggest();
  };
  search.addEventListener("input", suggest);
  search.addEventListener("focus", suggest);
  search.addEventListener("blur", () => found.classList.remove("open"));
  search.addEventListener("keydown", (event) => {
    if (event.key === "Enter") pick(Math.max(0, chosen));
    else if (event.key === "Escape") { search.value = ""; suggest(); }
    else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      chosen = Math.min(hits.length - 1, Math.max(0, chosen + (event.key === "ArrowDown" ? 1 : -1)));
      [...found.children].forEach((item, i) => item.setAttribute("aria-selected", String(i === chosen)));
    }
  });

  // -- the run ---------------------------------------------------------------------------------------------------
  const chart = (title, x, y, steps, whole) => {
    const [width, height, left, bottom] = [560, 190, 84, 30];
    const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title });
    const [x0, x1] = [0, Math.max(...x, 1e-9)];
    let [y0, y1] = [Math.min(...y), Math.max(...y)];
    const margin = 0.06 * (y1 - y0) || 0.5;
    [y0, y1] = [y0 - margin, y1 + margin];
    const at = (a, b) => [left + (width - left - 10) * (a - x0) / (x1 - x0), height - bottom - (height - bottom - 10) * (b - y0) / (y1 - y0)];
    const ticks = (low, high, n, integer) => {
      const raw = (high - low) / n;
      const power = 10 ** Math.floor(Math.log10(raw));
      let step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw);
      if (integer) step = Math.max(1, step);
      const out = [];
      for (let v = Math.ceil(low / step) * step; v <= high + 1e-9 * step; v += step) out.push(v);
      return out;
    };
    for (const v of ticks(y0, y1, 4, whole)) {
      const [, b] = at(0, v);
      svg.append(draw("line", { x1: left, x2: width - 10, y1: b, y2: b, stroke: "#e2e8f0" }),
        draw("text", { x: left - 8, y: b + 4, "text-anchor": "end" }, v.toLocaleString("en-US")));
    }
    for (const v of ticks(x0, x1, 6, true)) svg.append(draw("text", { x: at(v, 0)[0], y: height - 10, "text-anchor": "middle" }, String(v)));
    let path = "";
    x.forEach((a, i) => {
      const [p, q] = at(a, y[i]);
      if (!i) path = `M${p.toFixed(1)} ${q.toFixed(1)}`;
      else path += (steps ? `H${p.toFixed(1)}V${q.toFixed(1)}` : `L${p.toFixed(1)} ${q.toFixed(1)}`);
    });
    svg.append(draw("path", { d: path, fill: "none", stroke: "#2b6cb0", "stroke-width": 2, "stroke-linejoin": "round" }));
    return make("div", {}, make("h3", {}, title), svg);
  };
  const table = (facts) => make("table", {}, ...Object.entries(facts).map(([name, value]) =>
    make("tr", {}, make("th", {}, name), make("td", {}, value))));
  const showRun = () => {
    const run = document.getElementById("run");
    const { lap, objective, topics } = data.curve;
    if (lap && lap.length > 1) {
      run.append(make("div", { class: "columns" }, chart("Objective over laps (nats)", lap, objective, false, false),
        chart("Number of topics over laps", lap, topics, true, true)));
    }
    run.append(make("details", {}, make("summary", {}, "Run and settings"), table(data.run), table(data.settings)));
  };

  // -- where we are: the part of the address after # ---------------------------------------------------------------
  const open = (view) => {
    const [name, value] = Object.entries(view)[0];
    const hash = `#${name}=${encodeURIComponent(value)}`;
    if (location.hash === hash) show(view);
    else location.hash = hash;
  };
  const show = (view) => {
    state.view = view;
    if ("word" in view) showWord(view.word);
    else showTopic(data.topics[byId.get(view.topic)]);
    mark();
  };
  const follow = () => {
    const [name, value] = location.hash.slice(1).split("=");
    let text = "";
    try { text = decodeURIComponent(value || ""); } catch { text = ""; }
    if (name === "word" && text) show({ word: text });
    else if (name === "topic" && byId.has(Number(text))) show({ topic: Number(text) });
    else if (data.topics.length) show({ topic: data.topics[0].id });
  };
  document.getElementById("sort").addEventListener("change", (event) => { state.sort = event.target.value; fillList(); list.scrollTop = 0; });
  document.addEventListener("keydown", (event) => {
    if (event.target.closest("input, select") || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "/") { event.preventDefault(); search.focus(); }
    const move = { j: 1, k: -1 }[event.key];
    if (!move || !state.view || !("topic" in state.view)) return;
    const order = sorted();
    const next = order[order.indexOf(byId.get(state.view.topic)) + move];
    if (next !== undefined) open({ topic: data.topics[next].id });
  });
  window.addEventListener("hashchange", follow);

  const facts = [data.model, `${count(data.columns)} words`];
  if (data.tokens !== null) facts.push(`${count(data.tokens)} tokens`);
  if (data.documents !== null) facts.push(`${count(data.documents)} documents`);
  if (data.left) facts.push(data.left);
  document.getElementById("facts").textContent = facts.join(" · ") + " · keys: j, k next and previous topic, / search";
  if (data.documents === null) for (const option of document.querySelectorAll("#sort option:not([value=share])")) option.remove();
  fillList();
  drawMap();
  showRun();
  follow();
})();
