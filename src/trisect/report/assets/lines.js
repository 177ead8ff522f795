// Lines over epochs or steps, and curves in the unit square. Sizes are those of the screen: text is never scaled, and
// the margin is as wide as the widest label.

// Lines that lie on each other are both seen: of a few, each but the first has gaps of its own.
const DASHES = ['none', '9 6', '2 5', '12 4 2 4'];

function drawLines(figure, plot, data) {
  const dash = k => data.series.length <= DASHES.length ? DASHES[k] : 'none';
  const unit = data.kind === 'unit', show = unit ? showNumber : SHOW[data.unit];
  const state = {hidden: new Set(), log: false, later: false, at: null};
  const box = html('div', {class: 'tools'});
  const canvas = html('div');
  const keys = data.series.map((series, k) => {
    const key = button('', made => {
      state.hidden.has(k) ? state.hidden.delete(k) : state.hidden.add(k);
      made.setAttribute('aria-pressed', String(!state.hidden.has(k)));
      render();
    }, {class: 'key', 'aria-pressed': 'true'});
    key.append(html('i', {style: `background:${colour(series.colour)}`}), series.name);
    return key;
  });
  if (keys.length > 1) box.append(...keys);
  const toggle = (text, name) => button(text, made => {
    state[name] = !state[name];
    made.setAttribute('aria-pressed', String(state[name]));
    state.at = null;
    render();
  }, {'aria-pressed': 'false'});
  if (data.log) box.append(toggle('log scale', 'log'));
  if (data.later && data.series.some(series => series.later)) box.append(toggle(`over ${data.later}`, 'later'));
  plot.append(box, canvas);
  if (!box.childNodes.length) box.remove();

  const xOf = (series, k) => state.later && series.later ? series.later[k] : series.points[k][0];
  let scene = null;

  function render() {
    const width = Math.max(180, plot.clientWidth), height = unit ? Math.min(width, 340) : 230;
    const visible = data.series.map((series, k) => ({series, k})).filter(each => !state.hidden.has(each.k));
    const clamp = value => unit ? Math.min(1, Math.max(0, value)) : value;
    const all = visible.flatMap(({series}) => series.points.map((point, k) => [xOf(series, k), clamp(point[1])]));
    if (!all.length) all.push([1, 0], [1, 1]);
    const low = Math.min(...all.map(p => p[1])), high = Math.max(...all.map(p => p[1]));
    let yTicks, y0, y1, toY;
    if (state.log) {
      const from = Math.floor(Math.log10(low)), to = Math.max(from + 1, Math.ceil(Math.log10(high)));
      const step = Math.ceil((to - from) / 6);
      yTicks = [];
      for (let k = from; k <= to; k += step) yTicks.push(10 ** k);
      if (to - from === 1) yTicks = [1, 2, 5, 10].map(factor => factor * 10 ** from);
      [y0, y1] = [from, to];
      toY = value => Math.log10(value);
    } else {
      yTicks = unit ? [0, 0.2, 0.4, 0.6, 0.8, 1] : ticks(data.zero ? 0 : low, high, 6);
      [y0, y1] = [Math.min(yTicks[0], low), Math.max(yTicks[yTicks.length - 1], high)];
      toY = value => value;
    }
    const labels = yTicks.map(tick => show(tick));
    const left = Math.ceil(Math.max(...labels.map(label => textWidth(label)))) + 10;
    const right = 14, top = unit || data.mark ? 26 : 10, bottom = 40;
    const xs = all.map(p => p[0]);
    let [x0, x1] = unit ? [0, 1] : [Math.min(...xs), Math.max(...xs)];
    if (!(x1 > x0)) { x0 -= 0.5; x1 += 0.5; }
    const px = x => left + (x - x0) / (x1 - x0) * (width - left - right);
    const py = y => height - bottom - (toY(y) - y0) / ((y1 - y0) || 1) * (height - top - bottom);
    const whole = !state.later && !unit;
    const showX = state.later ? showSeconds : showNumber;
    const room = Math.max(2, Math.floor((width - left - right) / 64));
    let xTicks = unit ? [0, 0.2, 0.4, 0.6, 0.8, 1] : ticks(x0, x1, Math.min(8, room + 1));
    xTicks = xTicks.filter(t => t >= x0 - 1e-9 && t <= x1 + 1e-9 && (!whole || t === Math.round(t)));
    if (!xTicks.length) xTicks = [Math.round((x0 + x1) / 2)];
    const parts = [];
    yTicks.forEach((tick, k) => {
      const y = py(tick);
      parts.push(svg('line', {class: 'grid', x1: left, x2: width - right, y1: y, y2: y}));
      parts.push(svg('text', {class: 'tick', x: left - 6, y: y + 4, 'text-anchor': 'end'}, labels[k]));
    });
    for (const tick of xTicks) {
      const text = showX(tick), half = textWidth(text) / 2;
      const x = Math.min(width - half - 1, Math.max(half + 1, px(tick)));
      parts.push(svg('text', {class: 'tick', x, y: height - bottom + 17, 'text-anchor': 'middle'}, text));
    }
    const name = state.later ? data.later : data.x;
    parts.push(svg('text', {x: (left + width - right) / 2, y: height - 6, 'text-anchor': 'middle'}, name + ' →'));
    if (unit) parts.push(svg('text', {x: 0, y: 12}, data.y + ' ↑'));
    if (data.diagonal) parts.push(svg('line', {class: 'mark', x1: px(0), y1: py(0), x2: px(1), y2: py(1)}));
    if (data.mark && !state.later && data.mark[0] >= x0 && data.mark[0] <= x1) {
      const x = px(data.mark[0]), end = x > width - 60;
      parts.push(svg('line', {class: 'mark', x1: x, x2: x, y1: 4, y2: height - bottom}));
      parts.push(svg('text', {x: x + (end ? -5 : 5), y: 13, 'text-anchor': end ? 'end' : 'start'}, data.mark[1]));
    }
    for (const {series, k} of visible) {
      const points = series.points.map((point, k) => [px(xOf(series, k)), py(clamp(point[1]))]);
      const stroke = colour(series.colour);
      if (points.length > 1) {
        const path = points.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join(' ');
        parts.push(svg('polyline', {class: 'line', points: path, style: `stroke:${stroke};stroke-dasharray:${dash(k)}`}));
      }
      if (points.length === 1 || series.dots) {
        for (const [x, y] of points) parts.push(svg('circle', {cx: x, cy: y, r: 3.4, style: `fill:${stroke}`}));
      }
    }
    const cursor = svg('g', {});
    parts.push(cursor);
    const title = figure.getAttribute('aria-label');
    const drawing = svg('svg', {
      width, height, viewBox: `0 0 ${width} ${height}`, tabindex: 0, role: 'application',
      'aria-roledescription': 'chart', 'aria-label': `${title}. ${figure.querySelector('.says').textContent} Arrow keys read the values.`,
    }, ...parts);
    const focused = document.activeElement && canvas.contains(document.activeElement);
    canvas.replaceChildren(drawing);
    if (focused) drawing.focus({preventScroll: true});
    figure.dataset.points = String(all.length);
    scene = {visible, px, py, clamp, cursor, top, height, bottom, drawing};
    drawing.addEventListener('pointermove', event => {
      const rect = drawing.getBoundingClientRect();
      point(nearest(event.clientX - rect.left, event.clientY - rect.top), event.clientX, event.clientY);
    });
    drawing.addEventListener('pointerleave', leave);
    drawing.addEventListener('blur', leave);
    drawing.addEventListener('keydown', onKey);
  }

  function candidates() {
    const seen = new Map();
    for (const {series, k} of scene.visible) {
      series.points.forEach((_, index) => {
        const x = xOf(series, index);
        const key = unit ? `${k}/${index}` : String(x);
        if (!seen.has(key)) seen.set(key, {x, k, index});
      });
    }
    return unit ? [...seen.values()] : [...seen.values()].sort((a, b) => a.x - b.x);
  }

  function nearest(x, y) {
    let best = null, distance = Infinity;
    for (const each of candidates()) {
      const dx = scene.px(each.x) - x;
      const dy = unit ? scene.py(scene.clamp(data.series[each.k].points[each.index][1])) - y : 0;
      if (dx * dx + dy * dy < distance) { distance = dx * dx + dy * dy; best = each; }
    }
    return best;
  }

  function point(each, clientX, clientY) {
    if (!each) return;
    state.at = each;
    const marks = [], lines = [];
    if (unit) {
      const series = data.series[each.k], [x, y] = series.points[each.index];
      lines.push({text: series.name, colour: colour(series.colour)});
      lines.push(`${data.x}: ${showNumber(x)}`, `${data.y}: ${showNumber(y)}`);
      if (series.notes) lines.push(series.notes[each.index]);
      marks.push(svg('circle', {cx: scene.px(x), cy: scene.py(scene.clamp(y)), r: 4.5, style: `fill:${colour(series.colour)}`}));
    } else {
      const x = scene.px(each.x);
      lines.push(`${state.later ? data.later : data.x} ${state.later ? showSeconds(each.x) : showNumber(each.x)}`);
      marks.push(svg('line', {class: 'cursor', x1: x, x2: x, y1: scene.top, y2: scene.height - scene.bottom}));
      for (const {series} of scene.visible) {
        const index = series.points.findIndex((_, k) => xOf(series, k) === each.x);
        if (index < 0) continue;
        const y = series.points[index][1];
        lines.push({text: `${series.name} ${show(y)}`, colour: colour(series.colour)});
        marks.push(svg('circle', {cx: x, cy: scene.py(y), r: 3.6, style: `fill:${colour(series.colour)}`}));
      }
    }
    scene.cursor.replaceChildren(...marks);
    tip.show(clientX, clientY, lines);
  }

  function leave() { scene.cursor.replaceChildren(); tip.hide(); }

  function onKey(event) {
    const step = {ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity}[event.key];
    if (event.key === 'Escape') return leave();
    if (step === undefined) return;
    event.preventDefault();
    const list = candidates();
    const now = state.at ? list.findIndex(each => each.x === state.at.x && (!unit || (each.k === state.at.k && each.index === state.at.index))) : -1;
    const next = list[Math.min(list.length - 1, Math.max(0, now + step))];
    const rect = scene.drawing.getBoundingClientRect();
    point(next, rect.left + scene.px(next.x), rect.top + scene.top + 20);
  }

  return render;
}
CHARTS.lines = drawLines;
CHARTS.unit = drawLines;
