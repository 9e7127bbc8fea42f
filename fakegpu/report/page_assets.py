"""Style and script of the report page: constant text, no value of a report ever goes in here."""

STYLE = """
:root { --ink:#1c2430; --soft:#5d6b7e; --line:#d9e0e8; --back:#f6f8fa; --card:#ffffff; --accent:#1f6feb; --bad:#c62828;
  --bad-back:#fdecea; --low:#e8f1fb; --high:#08306b; --empty:#eef1f4; }
@media (prefers-color-scheme: dark) { :root { --ink:#e2e8f0; --soft:#93a1b3; --line:#2d3846; --back:#12171e;
  --card:#1a212b; --accent:#6aa9ff; --bad:#ff7b72; --bad-back:#3a1d1d; --low:#1c2c40; --high:#9ecbff; --empty:#222a35; } }
* { box-sizing: border-box; }
body { margin:0; background:var(--back); color:var(--ink); font:14px/1.5 system-ui, sans-serif; }
main { max-width:1180px; margin:0 auto; padding:24px 20px 60px; }
h1 { font-size:22px; margin:0 0 2px; } h2 { font-size:16px; margin:0 0 10px; }
p.sub { color:var(--soft); margin:0 0 18px; }
section { background:var(--card); border:1px solid var(--line); border-radius:8px; padding:16px 18px; margin:0 0 16px; }
section.bad { border-color:var(--bad); background:var(--bad-back); } section.bad h2, .bad-text { color:var(--bad); }
.tiles { display:grid; grid-template-columns:repeat(auto-fit, minmax(140px, 1fr)); gap:10px; margin:0 0 16px; }
.tile { background:var(--card); border:1px solid var(--line); border-radius:8px; padding:10px 14px; }
.tile b { display:block; font-size:20px; font-weight:600; } .tile span { color:var(--soft); font-size:12px; }
.tile.bad { border-color:var(--bad); } .tile.bad b { color:var(--bad); }
.scroll { overflow-x:auto; } table { border-collapse:collapse; width:100%; font-variant-numeric:tabular-nums; }
th, td { text-align:right; padding:4px 8px; border-bottom:1px solid var(--line); white-space:nowrap; }
th { color:var(--soft); font-weight:500; } th:first-child, td:first-child, td.text, th.text { text-align:left; }
td.wide { white-space:normal; min-width:320px; text-align:left; overflow-wrap:anywhere; }
.pair { display:grid; grid-template-columns:repeat(auto-fit, minmax(420px, 1fr)); gap:16px; }
canvas { display:block; max-width:100%; } .note { color:var(--soft); font-size:12px; margin:8px 0 0; }
#tip { position:fixed; pointer-events:none; background:var(--ink); color:var(--card); padding:6px 9px; border-radius:6px;
  font-size:12px; white-space:pre; display:none; z-index:9; max-width:90vw; }
.legend { display:flex; flex-wrap:wrap; gap:4px 14px; margin:0 0 8px; color:var(--soft); font-size:12px; }
.legend i { display:inline-block; width:10px; height:10px; border-radius:2px; margin-right:5px; }
.bar { display:inline-block; height:8px; background:var(--accent); border-radius:2px; vertical-align:middle; }
details summary { cursor:pointer; color:var(--accent); }
"""

SCRIPT = """
'use strict';
const data = JSON.parse(document.getElementById('data').textContent);
const tip = document.getElementById('tip');
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];
function bytes(n) { let i = 0; while (n >= 1024 && i < 5) { n /= 1024; i++; } return (i ? n.toFixed(1) : n) + ' ' + units[i]; }
function time(us) { return us >= 1e6 ? (us / 1e6).toFixed(3) + ' s' : us >= 1e3 ? (us / 1e3).toFixed(2) + ' ms' : us.toFixed(1) + ' us'; }
function show(event, text) {
  tip.style.display = text ? 'block' : 'none';
  if (!text) return;
  tip.textContent = text;
  tip.style.left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8) + 'px';
  tip.style.top = Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8) + 'px';
}
function canvas(id, width, height) {
  const element = document.getElementById(id), ratio = devicePixelRatio || 1;
  element.width = width * ratio; element.height = height * ratio;
  element.style.width = width + 'px'; element.style.height = height + 'px';
  const context = element.getContext('2d');
  context.scale(ratio, ratio);
  return [element, context];
}
function rgb(color) { const n = parseInt(color.slice(1), 16); return [n >> 16, n >> 8 & 255, n & 255]; }
function mix(a, b, t) { return 'rgb(' + a.map((x, i) => Math.round(x + (b[i] - x) * t)).join(',') + ')'; }

function heatmap() {
  const n = data.nodes.length, gutter = n <= 40 ? 74 : 14;
  const cell = Math.max(1, Math.min(46, Math.floor(520 / n))), side = cell * n;
  const [element, context] = canvas('heat', gutter + side + 2, gutter + side + 2);
  const low = rgb(css('--low')), high = rgb(css('--high')), at = new Map();
  let top = 1, least = Infinity;
  for (const [a, b, size] of data.links) {
    at.set(a * n + b, size);
    if (size) { top = Math.max(top, size); least = Math.min(least, size); }
  }
  const span = Math.max(Math.log(top / least), Math.log(1024)) || 1;  // near-equal pairs look equal
  context.fillStyle = css('--empty'); context.fillRect(gutter, gutter, side, side);
  for (const [a, b, size] of data.links) {
    if (!size) continue;
    context.fillStyle = mix(low, high, 1 - 0.85 * Math.log(top / size) / span);
    context.fillRect(gutter + b * cell, gutter + a * cell, cell > 3 ? cell - 1 : cell, cell > 3 ? cell - 1 : cell);
  }
  context.fillStyle = css('--soft'); context.font = '11px system-ui'; context.textBaseline = 'middle';
  if (n <= 40) data.nodes.forEach((name, i) => {
    const text = name.length > 11 ? name.slice(0, 10) + '\\u2026' : name, middle = gutter + i * cell + cell / 2;
    context.textAlign = 'right'; context.fillText(text, gutter - 6, middle);
    context.save(); context.translate(middle, gutter - 6); context.rotate(-Math.PI / 2);
    context.textAlign = 'left'; context.fillText(text, 0, 0); context.restore();
  });
  element.onmousemove = event => {
    const box = element.getBoundingClientRect(), scale = element.offsetWidth / box.width;
    const column = Math.floor(((event.clientX - box.left) * scale - gutter) / cell);
    const row = Math.floor(((event.clientY - box.top) * scale - gutter) / cell);
    const inside = row >= 0 && row < n && column >= 0 && column < n;
    show(event, inside ? data.nodes[row] + ' \\u2192 ' + data.nodes[column] + '\\n' + bytes(at.get(row * n + column) || 0) : '');
  };
  element.onmouseleave = event => show(event, '');
}

function timeline() {
  const entries = data.timeline, ranks = data.ranks;
  if (!entries.length) return;
  const gutter = 44, width = Math.max(300, document.getElementById('time').parentElement.clientWidth);
  const row = Math.max(1, Math.min(18, Math.floor(460 / ranks))), height = row * ranks + 22;
  let start = Infinity, end = 0;
  for (const e of entries) { start = Math.min(start, e.t); end = Math.max(end, e.t + e.w + e.x); }
  let from = start, to = Math.max(end, start + 1);
  const [element, context] = canvas('time', width, height);
  const x = t => gutter + (t - from) / (to - from) * (width - gutter - 4);
  function draw() {
    context.clearRect(0, 0, width, height);
    context.fillStyle = css('--soft'); context.font = '11px system-ui'; context.textBaseline = 'middle';
    const every = Math.max(1, Math.ceil(14 / row));
    context.textAlign = 'right';
    for (let r = 0; r < ranks; r += every) context.fillText(r, gutter - 6, r * row + row / 2);
    context.textAlign = 'center';
    for (let i = 0; i <= 6; i++) {
      const t = from + (to - from) * i / 6;
      context.textAlign = i === 6 ? 'right' : i ? 'center' : 'left';
      context.fillText(time(t - start), x(t), row * ranks + 13);
      context.fillRect(x(t), 0, 0.5, row * ranks);
    }
    context.save(); context.beginPath(); context.rect(gutter, 0, width - gutter, row * ranks); context.clip();
    for (const e of entries) {
      if (e.t + e.w + e.x < from || e.t > to) continue;
      const a = x(e.t), b = x(e.t + e.w), c = Math.max(b + 1, x(e.t + e.w + e.x));
      for (const [first, last] of e.r) {
        const y = first * row, h = (last - first + 1) * row - (row > 4 ? 1 : 0);
        if (b > a) { context.globalAlpha = 0.25; context.fillStyle = data.colors[e.o]; context.fillRect(a, y, b - a, h); }
        context.globalAlpha = 1; context.fillStyle = data.colors[e.o]; context.fillRect(b, y, c - b, h);
      }
    }
    context.restore();
  }
  const time_at = event => {
    const box = element.getBoundingClientRect(), px = (event.clientX - box.left) * element.offsetWidth / box.width;
    return from + (px - gutter) / (width - gutter - 4) * (to - from);
  };
  element.onmousemove = event => {
    const box = element.getBoundingClientRect(), t = time_at(event), slack = (to - from) / width * 2;
    const r = Math.floor((event.clientY - box.top) * element.offsetHeight / box.height / row);
    const e = entries.findLast(e => t >= e.t - slack && t <= e.t + e.w + e.x + slack && e.r.some(([a, b]) => r >= a && r <= b));
    show(event, e ? '#' + e.i + ' ' + e.o + '  ' + bytes(e.b) + ' ' + e.d + '\\ncommunicator ' + e.c + ', ' + e.n + ' ranks' +
      '\\nrendezvous ' + time(e.w) + '\\nexecution  ' + time(e.x) + '\\nmodelled   ' + time(e.m) + ' (' + e.a + ')' : '');
  };
  element.onmouseleave = event => show(event, '');
  element.onwheel = event => {
    event.preventDefault();
    const t = time_at(event), factor = event.deltaY < 0 ? 0.7 : 1 / 0.7;
    from = Math.max(start, t - (t - from) * factor); to = Math.min(Math.max(end, start + 1), t + (to - t) * factor);
    if (to - from < 1e-3) to = from + 1e-3;
    draw();
  };
  element.ondblclick = () => { from = start; to = Math.max(end, start + 1); draw(); };
  draw();
}
heatmap();
timeline();
"""
