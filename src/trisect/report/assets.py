"""The style and the script of the page, inlined so that it is one file."""

STYLE = """
:root { --paper:#fbfbfa; --card:#fff; --ink:#1d2129; --soft:#69707d; --rule:#e3e5e9; --grid:#eceef1;
  --a:#2f6fb7; --b:#d9822b; --c:#2e9467; --d:#8a5fb5; --e:#b8424d; --f:#8c929c; }
@media (prefers-color-scheme: dark) { :root { --paper:#16181c; --card:#1e2126; --ink:#e6e8ec; --soft:#969dab;
  --rule:#30343b; --grid:#2a2e35; --a:#6aa5e8; --b:#f0a35a; --c:#5cc195; --d:#b48be0; --e:#e5747e; --f:#7b828e; } }
* { box-sizing:border-box }
body { margin:0; background:var(--paper); color:var(--ink);
  font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif }
main { max-width:1200px; margin:0 auto; padding:28px 24px 60px }
h1 { font-size:24px; margin:0; font-weight:650 } h2 { font-size:16px; margin:34px 0 12px; font-weight:650 }
.sub { color:var(--soft); margin:4px 0 22px } .note { color:var(--soft); margin:6px 0 }
.tiles { display:grid; grid-template-columns:repeat(auto-fit,minmax(130px,1fr)); gap:12px }
.tile, figure, .card { background:var(--card); border:1px solid var(--rule); border-radius:8px }
.tile { padding:12px 14px }
.tile b { display:block; font-size:20px; font-weight:600; white-space:nowrap; font-variant-numeric:tabular-nums }
.tile span { color:var(--soft); font-size:13px }
.charts { display:grid; grid-template-columns:repeat(auto-fill,minmax(min(440px,100%),1fr)); gap:14px }
figure { margin:0; padding:12px 14px 6px; position:relative } figure.wide { grid-column:1/-1 }
figcaption { display:flex; justify-content:space-between; gap:12px; font-size:14px; font-weight:600; flex-wrap:wrap }
.key { font-weight:400; color:var(--soft); margin-left:12px; font-size:13px }
.key i { display:inline-block; width:10px; height:10px; border-radius:2px; margin-right:5px }
svg { width:100%; height:auto; display:block }
svg .grid { stroke:var(--grid) } svg .mark { stroke:var(--soft); stroke-dasharray:3 3 }
svg .cursor { stroke:var(--soft) }
.pale { opacity:.6 }
svg .head { font-weight:600; fill:var(--ink) }
svg .tick { fill:var(--soft); font-size:11px; font-variant-numeric:tabular-nums }
polyline { fill:none; stroke-width:1.8; stroke-linejoin:round }
.ca { stroke:var(--a); fill:var(--a) } .cb { stroke:var(--b); fill:var(--b) } .cc { stroke:var(--c); fill:var(--c) }
.cd { stroke:var(--d); fill:var(--d) } .ce { stroke:var(--e); fill:var(--e) } .cf { stroke:var(--f); fill:var(--f) }
polyline.ca,polyline.cb,polyline.cc,polyline.cd,polyline.ce,polyline.cf { fill:none } rect { stroke:none }
i.ca { background:var(--a) } i.cb { background:var(--b) } i.cc { background:var(--c) }
i.cd { background:var(--d) } i.ce { background:var(--e) } i.cf { background:var(--f) }
.two { display:grid; grid-template-columns:repeat(auto-fit,minmax(min(440px,100%),1fr)); gap:14px }
.card { padding:12px 16px }
.card h3 { font-size:14px; margin:0 0 6px }
table { border-collapse:collapse; width:100%; font-size:14px }
th { text-align:left; font-weight:400; color:var(--soft) }
th, td { padding:4px 8px 4px 0; vertical-align:top } tr+tr th, tr+tr td { border-top:1px solid var(--grid) }
.number { text-align:right; font-variant-numeric:tabular-nums; white-space:nowrap }
.bars th { width:1%; white-space:nowrap }
.bar { width:100% }
.bar i { display:block; height:12px; margin-top:5px; background:var(--a); border-radius:2px }
pre { margin:0; max-height:420px; font:12.5px/1.5 ui-monospace,Menlo,Consolas,monospace; overflow:auto }
#tip { position:absolute; pointer-events:none; background:var(--ink); color:var(--paper);
  border-radius:5px; padding:5px 9px;
  font-size:12.5px; display:none; white-space:nowrap; font-variant-numeric:tabular-nums; z-index:2 }
#tip i { display:inline-block; width:8px; height:8px; border-radius:2px; margin-right:6px }
"""

SCRIPT = """
const tip = document.createElement('div'); tip.id = 'tip'; document.body.append(tip);
const show = value =>
  Math.abs(value) >= 1e4 || (value && Math.abs(value) < 1e-3) ? value.toExponential(3) : +value.toPrecision(5);
for (const figure of document.querySelectorAll('[data-chart]')) {
  const data = JSON.parse(figure.dataset.chart);
  const svg = figure.querySelector('svg'), cursor = svg.querySelector('.cursor');
  svg.addEventListener('pointermove', event => {
    const box = svg.getBoundingClientRect(), at = (event.clientX - box.left) / box.width * svg.viewBox.baseVal.width;
    const x = data.x[0] + (at - data.px[0]) / (data.px[1] - data.px[0]) * (data.x[1] - data.x[0]);
    let epoch = null;
    for (const s of data.series) for (const p of s.points)
      if (epoch === null || Math.abs(p[0] - x) < Math.abs(epoch - x)) epoch = p[0];
    const rows = [document.createTextNode('epoch ' + epoch)];
    for (const s of data.series) for (const p of s.points) if (p[0] === epoch) {
      const row = document.createElement('div'), mark = document.createElement('i');
      mark.className = s.colour; row.append(mark, s.name + ' ' + show(p[1]) + data.unit); rows.push(row); break;
    }
    tip.replaceChildren(...rows);
    const px = data.px[0] + (epoch - data.x[0]) / (data.x[1] - data.x[0]) * (data.px[1] - data.px[0]);
    cursor.setAttribute('x1', px); cursor.setAttribute('x2', px); cursor.setAttribute('visibility', 'visible');
    tip.style.display = 'block';
    const right = event.pageX + 14 + tip.offsetWidth <= document.documentElement.clientWidth;
    tip.style.left = (right ? event.pageX + 14 : event.pageX - 14 - tip.offsetWidth) + 'px';
    tip.style.top = event.pageY + 12 + 'px';
  });
  svg.addEventListener('pointerleave', () => {
    tip.style.display = 'none'; cursor.setAttribute('visibility', 'hidden');
  });
}
"""
