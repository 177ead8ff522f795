// The box of work, vertices × layers × time, seen from the front right: each piece in its rank's colour.

function drawBox(figure, plot, data) {
  const state = {apart: data.world > 1 && data.world <= 64, chosen: null};
  const canvas = html('div');
  const readout = html('p', {class: 'readout', 'aria-live': 'polite'});
  const tools = html('div', {class: 'tools'});
  if (data.world > 1) {
    tools.append(button('pull apart', made => {
      state.apart = !state.apart;
      made.setAttribute('aria-pressed', String(state.apart));
      render();
    }, {'aria-pressed': String(state.apart)}));
  }
  const keys = [];
  if (data.world > 1 && data.world <= 16) {
    for (let rank = 0; rank < data.world; rank += 1) {
      const key = button('', () => choose(state.chosen === rank ? null : rank), {class: 'key', 'aria-pressed': 'true', 'aria-label': data.ranks[rank]});
      key.append(html('i', {}), `rank ${rank}`);
      key.addEventListener('pointerenter', () => choose(rank));
      key.addEventListener('pointerleave', () => choose(null));
      keys.push(key);
    }
    tools.append(...keys);
  }
  plot.append(tools, canvas, readout);
  if (!tools.childNodes.length) tools.remove();
  if (data.world === 1) readout.remove();
  const hint = data.world > 1 ? 'Point at a piece, or use the arrow keys, to read which rank holds it.' : '';
  readout.textContent = hint;

  const places = axis => [...new Set(data.pieces.map(piece => piece[1 + 2 * axis]))].sort((a, b) => a - b);
  const starts = [places(0), places(1), places(2)];

  function render() {
    const width = Math.max(200, plot.clientWidth), wide = Math.min(width - 70, 560);
    const depth = data.flat ? 0.16 : 0.42, size = [wide * (1 - depth * 0.62), Math.min(230, wide * 0.55), wide * depth];
    const gaps = starts.map(places_ => state.apart ? Math.min(9, 90 / Math.max(1, places_.length - 1)) : 0);
    const extent = size.map((length, axis) => length + gaps[axis] * (starts[axis].length - 1));
    const run = [0.62, 0.42];   // how far a step into depth goes right and up
    const shrink = Math.min(1, (width - 60) / (extent[0] + extent[2] * run[0]));
    const origin = [44, 14 + (extent[1] + extent[2] * run[1]) * shrink];
    const place = (axis, value, piece) => (value * size[axis] + gaps[axis] * starts[axis].indexOf(piece[1 + 2 * axis])) * shrink;
    const project = (x, y, z) => [origin[0] + x + z * run[0], origin[1] - y - z * run[1]];
    const height = origin[1] + 26;
    const order = [...data.pieces].sort((a, b) => b[5] - a[5] || a[1] - b[1] || a[3] - b[3]);
    const drawn = order.map(piece => {
      const [x0, x1] = [place(0, piece[1], piece), place(0, piece[2], piece)];
      const [y0, y1] = [place(1, piece[3], piece), place(1, piece[4], piece)];
      const [z0, z1] = [place(2, piece[5], piece), place(2, piece[6], piece)];
      const path = points => 'M' + points.map(p => project(...p).map(v => v.toFixed(1)).join(' ')).join('L') + 'Z';
      const fill = rankColour(piece[0], data.world);
      const faces = [
        [[[x0, y1, z0], [x1, y1, z0], [x1, y1, z1], [x0, y1, z1]], `color-mix(in srgb, ${fill}, white 26%)`],
        [[[x1, y0, z0], [x1, y0, z1], [x1, y1, z1], [x1, y1, z0]], `color-mix(in srgb, ${fill}, black 24%)`],
        [[[x0, y0, z0], [x1, y0, z0], [x1, y1, z0], [x0, y1, z0]], fill],
      ];
      const group = svg('g', {class: 'piece', 'data-rank': piece[0]}, ...faces.map(([points, paint]) => svg('path', {d: path(points), style: `fill:${paint}`})));
      for (let k = 1; k < data.chunks && x1 - x0 > 2 * data.chunks; k += 1) {
        const x = x0 + (x1 - x0) * k / data.chunks;
        group.append(svg('path', {class: 'chunk', d: 'M' + [[x, y0, z0], [x, y1, z0], [x, y1, z1]].map(p => project(...p).join(' ')).join('L')}));
      }
      if (data.world > 1) label(group, piece, [x0, x1, y0, y1, z0, z1], project);
      group.addEventListener('pointerenter', () => choose(piece[0]));
      group.addEventListener('pointerleave', () => choose(null));
      return group;
    });
    const [ax, ay] = [origin[0], origin[1]];
    const ends = project(extent[0] * shrink, 0, extent[2] * shrink / 2);
    const side = project(0, extent[1] * shrink / 2, 0);
    const marks = [
      svg('text', {x: ax + extent[0] * shrink / 2, y: ay + 18, 'text-anchor': 'middle'}, 'vertices →'),
      svg('text', {x: side[0] - 10, y: side[1], 'text-anchor': 'middle', transform: `rotate(-90 ${side[0] - 10} ${side[1]})`}, 'layers →'),
      svg('text', {x: Math.min(ends[0] + 8, width - 40), y: ends[1] + 16}, 'time ↗'),
    ];
    const drawing = svg('svg', {
      width, height, viewBox: `0 0 ${width} ${height}`, role: data.world > 1 ? 'application' : 'img',
      tabindex: data.world > 1 ? 0 : null, 'aria-label': `Box of ${data.axes.join('; ')}. ${hint}`,
    }, ...drawn, ...marks);
    drawing.addEventListener('keydown', event => {
      const step = {ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1}[event.key];
      if (event.key === 'Escape') choose(null);
      if (!step) return;
      event.preventDefault();
      const now = state.chosen === null ? (step > 0 ? -1 : data.world) : state.chosen;
      choose(Math.min(data.world - 1, Math.max(0, now + step)));
    });
    canvas.replaceChildren(drawing);
    keys.forEach((key, rank) => { key.querySelector('i').style.background = rankColour(rank, data.world); });
    figure.dataset.pieces = String(drawn.length);
    highlight();
  }

  // the rank's number, on the first of a piece's faces that is seen
  function label(group, piece, [x0, x1, y0, y1, z0, z1], project) {
    const front = piece[5] === starts[2][0], above = piece[4] >= 0.9999, text = String(piece[0]);
    const room = textWidth(text) + 6;
    let at = null;
    if (front && x1 - x0 > room && y1 - y0 > 14) at = project((x0 + x1) / 2, (y0 + y1) / 2, z0);
    else if (!front && above && x1 - x0 > room && (z1 - z0) * 0.42 > 13) at = project((x0 + x1) / 2, y1, (z0 + z1) / 2);
    else if (!front && piece[2] >= 0.9999 && (z1 - z0) * 0.62 > room && y1 - y0 > 14) at = project(x1, (y0 + y1) / 2, (z0 + z1) / 2);
    if (at) group.append(svg('text', {x: at[0], y: at[1] + 4}, text));
  }

  function choose(rank) {
    state.chosen = rank;
    readout.textContent = rank === null ? hint : data.ranks[rank];
    highlight();
  }
  function highlight() {
    for (const piece of canvas.querySelectorAll('.piece')) {
      piece.classList.toggle('faint', state.chosen !== null && piece.dataset.rank !== String(state.chosen));
    }
    figure.dataset.chosen = state.chosen === null ? '' : String(state.chosen);
  }
  return render;
}
CHARTS.box = drawBox;
