/* The panel that watches /metrics while it is open. */

const EVERY_MS = 2000, POINTS = 60;
const GAUGES = [
  {label: "Tokens a second", unit: "", read: (now, then, s) => rate("imp_decode_batch_rows_total", now, then, s)},
  {label: "Requests running", unit: "", read: now => now.imp_queue_running},
  {label: "Requests waiting", unit: "", read: now => now.imp_queue_waiting},
  {label: "Time to first token", unit: " ms", read: (now, then) => mean("imp_ttft_seconds", now, then)},
  {label: "Time between tokens", unit: " ms", read: (now, then) => mean("imp_inter_token_seconds", now, then)},
  {label: "KV blocks in use", unit: " %", read: now => 100 * now.imp_kv_blocks_live / now.imp_kv_blocks_total},
  {label: "Prompt tokens found in the cache", unit: " %", read: (now, then) => 100 * share("imp_prefix_cache_hits_total",
    "imp_prefix_cache_queries_total", now, then)},
  {label: "Requests ended", unit: "", read: now => now.imp_requests_total},
];

/** Unlabelled samples of the Prometheus text format, by name. */
function readMetrics(text) {
  const out = {};
  for (const line of text.split("\n")) {
    const found = /^([a-zA-Z_:][\w:]*) (\S+)/.exec(line);
    if (found) out[found[1]] = Number(found[2]);
  }
  return out;
}

const rate = (name, now, then, seconds) => (then ? Math.max(0, now[name] - then[name]) / seconds : NaN);
const share = (part, whole, now, then) => (then && now[whole] > then[whole] ? (now[part] - then[part]) / (now[whole] - then[whole]) : NaN);
const mean = (name, now, then) => 1000 * share(name + "_sum", name + "_count", now, then);

class MetricsPanel {
  constructor(element) {
    this.charts = GAUGES.map(gauge => ({gauge, values: [], figure: el("b", {}, "–"), plot: svg("svg",
      {viewBox: `0 0 ${POINTS - 1} 30`, preserveAspectRatio: "none", "aria-hidden": "true"})}));
    this.error = el("p", {class: "note"});
    element.append(this.error, ...this.charts.map(({gauge, figure, plot}) =>
      el("div", {class: "chart"}, el("div", {}, gauge.label, figure), plot)));
    this.before = null;
    this.timer = 0;
  }

  open() {
    this.close();
    this.read();
    this.timer = setInterval(() => this.read(), EVERY_MS);
  }

  close() {
    clearInterval(this.timer);
    this.before = null;
  }

  async read() {
    let now;
    try {
      now = readMetrics(await metricsText());
      this.error.textContent = "";
    } catch (error) {
      this.error.textContent = error.message;
      return;
    }
    const at = performance.now(), seconds = this.before ? (at - this.before.at) / 1000 : 0;
    for (const chart of this.charts) this.draw(chart, chart.gauge.read(now, this.before?.now, seconds));
    this.before = {now, at};
  }

  draw(chart, value) {
    const values = chart.values;
    values.push(Number.isFinite(value) ? value : values.at(-1) ?? NaN);
    if (values.length > POINTS) values.shift();
    const last = values.at(-1);
    chart.figure.textContent = Number.isFinite(last) ? `${last < 10 && last % 1 ? last.toFixed(1) : Math.round(last)}${chart.gauge.unit}` : "–";
    const known = values.map((each, i) => [POINTS - values.length + i, each]).filter(([, each]) => Number.isFinite(each));
    if (!known.length) return;
    const top = Math.max(...known.map(([, each]) => each), 1e-9) * 1.1;
    const points = known.map(([x, each]) => `${x},${(29 - 28 * each / top).toFixed(2)}`).join(" ");
    chart.plot.replaceChildren(svg("polygon", {points: `${known[0][0]},30 ${points} ${known.at(-1)[0]},30`}), svg("polyline", {points}));
  }
}
