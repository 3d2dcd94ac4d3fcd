// What pages do beyond HTML: the overview's stream and charts, lists that keep current, and two keys. Nothing here is needed to read or act.
"use strict";
(() => {
  const REFRESH_MS = 5000;
  const note = (text) => {
    const place = document.getElementById("live-note");
    if (place && place.textContent !== text) place.textContent = text;
  };
  const isBusy = (part) => part.contains(document.activeElement) || part.querySelector("details[open]") !== null;

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const charts = {};
  const line = (label, name) => ({ label, stroke: colour(name), width: 2, spanGaps: true, points: { show: false } });
  const axis = () => ({ stroke: colour("--quiet"), grid: { stroke: colour("--edge"), width: 1 }, ticks: { show: false }, size: 44 });
  const draw = (series) => {
    if (typeof uPlot === "undefined" || !Array.isArray(series)) return;
    const parts = { rates: [series[0], series[1], series[2]], times: [series[0], series[3], series[4]] };
    const lines = { rates: [line("succeeded", "--good"), line("not", "--bad")], times: [line("median", "--first"), line("95 %", "--second")] };
    for (const place of document.querySelectorAll("[data-chart]")) {
      const name = place.dataset.chart;
      if (charts[name]) { charts[name].setData(parts[name]); continue; }
      const options = {
        width: place.clientWidth, height: 180, series: [{}, ...lines[name]], axes: [axis(), axis()], legend: { show: false },
        cursor: { show: false }, scales: { y: { range: (_, __, most) => [0, most > 0 ? most * 1.1 : 1] } },
      };
      charts[name] = new uPlot(options, parts[name], place);
    }
  };
  const redraw = () => {
    for (const name of Object.keys(charts)) { charts[name].destroy(); delete charts[name]; }
    const place = document.getElementById("series");
    if (place) draw(JSON.parse(place.dataset.series));
  };

  // The stream is open only while the page is visible.
  let stream = null;
  const open = () => {
    const now = document.getElementById("now");
    if (!now || stream || document.hidden) return;
    stream = new EventSource(now.dataset.live);
    stream.addEventListener("reading", (event) => {
      const reading = JSON.parse(event.data);
      if (!isBusy(now)) Idiomorph.morph(now, reading.html, { morphStyle: "innerHTML" });
      document.getElementById("series").dataset.series = JSON.stringify(reading.series);
      draw(reading.series);
      note("");
    });
    stream.addEventListener("away", (event) => note(JSON.parse(event.data).text));
    stream.addEventListener("revoked", () => location.reload());
    stream.addEventListener("error", () => { if (stream && stream.readyState === EventSource.CLOSED) { close(); setTimeout(open, REFRESH_MS); } });
  };
  const close = () => { if (stream) { stream.close(); stream = null; } };
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  window.addEventListener("pagehide", close);

  // Lists are read again while the user is not in the middle of something there.
  setInterval(() => {
    const list = document.querySelector("[data-refresh]");
    if (!list || document.hidden || isBusy(list)) return;
    htmx.ajax("GET", location.href, { target: "#list", select: "#list", swap: "morph:outerHTML" });
  }, REFRESH_MS);

  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && !event.ctrlKey && !event.metaKey && !/^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement.tagName)) {
      const filter = document.querySelector("[data-filter]");
      if (filter) { event.preventDefault(); filter.focus(); filter.select(); }
    }
    if (event.key === "Escape") {
      for (const each of document.querySelectorAll("details.confirm[open]")) { each.open = false; each.querySelector("summary").focus(); }
    }
  });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  let resizing = 0;
  window.addEventListener("resize", () => { clearTimeout(resizing); resizing = setTimeout(redraw, 150); });
  redraw();
  open();
})();
