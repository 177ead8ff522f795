// What each rank did when: rows along time on a canvas that zooms and moves, every action named in words.

const KIND_COLOURS = {
  forward: 0, again: 4, backward: 1, step: 5, reduce: 9, post: 3, expect: 3, wait: 7, other: 6,
};
const KIND_NAMES = {
  forward: 'forward', again: 'forward again', backward: 'backward', step: 'step of the optimiser',
  reduce: 'gradients added up, or waiting for that', post: 'sending', expect: 'sending', wait: 'waiting for rows', other: 'other',
};

function drawSchedule(figure, plot, data) {
  const total = Math.max(1, data.length), view = {from: 0, to: total};
  const state = {byLayer: false, selected: null};
  const panels = data.panels.map(panel => ({...panel, ranks: panel.ranks.map(unpack)}));
  const world = panels[0].ranks.length;
  const rowHeight = world <= 4 ? 30 : world <= 8 ? 24 : world <= 16 ? 17 : world <= 64 ? 10 : 4;

  const canvas = html('canvas', {
    tabindex: 0, role: 'application', 'aria-roledescription': 'schedule',
    'aria-label': 'Schedule of all ranks. Arrow keys go through actions and ranks, plus and minus zoom, 0 shows all.',
    style: 'touch-action: pan-y; cursor: grab',
  });
  const legend = html('ul', {class: 'legend'});
  const readout = html('p', {class: 'readout', 'aria-live': 'polite'});
  const hint = 'Point at an action to read what it is. Drag to move, pinch or hold Ctrl and turn the wheel to zoom. With the keyboard: arrows, + and −, 0.';
  readout.textContent = hint;
  const layerButton = button('colour by layer', made => {
    state.byLayer = !state.byLayer;
    made.setAttribute('aria-pressed', String(state.byLayer));
    render();
  }, {'aria-pressed': 'false'});
  plot.append(
    html('div', {class: 'tools'},
      button('zoom in', () => zoom(0.5)), button('zoom out', () => zoom(2)),
      button('←', () => pan(-0.3), {'aria-label': 'earlier'}), button('→', () => pan(0.3), {'aria-label': 'later'}),
      button('whole epoch', () => show(0, total)), data.layers > 1 ? layerButton : null),
    legend, canvas, readout);

  function unpack(numbers) {
    const count = numbers.length / 6, spans = {start: new Float64Array(count), length: new Float64Array(count), rest: numbers, count};
    let at = 0;
    for (let k = 0; k < count; k += 1) {
      at += numbers[6 * k];
      spans.start[k] = at;
      spans.length[k] = numbers[6 * k + 1];
      at += numbers[6 * k + 1];
    }
    return spans;
  }
  const phraseOf = (spans, k) => data.phrases[spans.rest[6 * k + 2]];

  function words(spans, k) {
    const [text, kind] = phraseOf(spans, k), [chunk, block, peer] = [3, 4, 5].map(n => spans.rest[6 * k + n]);
    let told = text;
    if (peer >= 0) told += `${kind === 'post' ? ' to' : ' from'} rank ${peer}`;
    if (kind !== 'step' && kind !== 'reduce' && kind !== 'other') {
      if (chunk >= 0) told += `, chunk ${chunk}`;
      if (block >= 0) told += `, block ${block}`;
    }
    return told;
  }

  // a moment in the axis's unit, with as many digits as the step of its ticks asks for
  function moment(value, step, top) {
    const [factor, name] = top >= 10e6 ? [1e6, 's'] : top >= 10e3 ? [1e3, 'ms'] : [1, 'µs'];
    const digits = Math.max(0, Math.ceil(-Math.log10(step / factor) - 1e-9));
    return `${plain(value / factor, Math.min(6, digits))} ${name}`;
  }

  let scene = null;
  function colours() {
    const kinds = {};
    for (const [kind, number] of Object.entries(KIND_COLOURS)) kinds[kind] = resolved(colour(number));
    const phrases = data.phrases.map(([, kind, layer]) => {
      if (!state.byLayer || layer === null || !['forward', 'again', 'backward'].includes(kind)) {
        return state.byLayer && ['step', 'reduce'].includes(kind) ? kinds.other : kinds[kind] || kinds.other;
      }
      return spectrum(layer, data.layers);
    });
    return {phrases, soft: resolved('var(--soft)'), grid: resolved('var(--grid)'), ink: resolved('var(--ink)'), row: resolved('var(--paper)')};
  }

  function first(spans, time) {   // the first span that ends after a time
    let low = 0, high = spans.count;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (spans.start[middle] + spans.length[middle] > time) high = middle; else low = middle + 1;
    }
    return low;
  }

  function render() {
    const width = Math.max(200, plot.clientWidth), names = panels[0].ranks.map((_, k) => `rank ${k}`);
    const every = rowHeight >= 14 ? 1 : Math.ceil(14 / rowHeight);
    const left = Math.ceil(textWidth(names[names.length - 1])) + 10, right = 8;
    const tops = [];
    let top = 4;
    for (const panel of panels) { tops.push(top + 20); top += 20 + rowHeight * panel.ranks.length + 12; }
    const height = top + 22, scale = devicePixelRatio || 1;
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    const pen = canvas.getContext('2d'), shade = colours();
    pen.scale(scale, scale);
    pen.font = FONT;
    const toX = time => left + (time - view.from) / (view.to - view.from) * (width - left - right);
    const values = ticks(view.from, view.to, Math.max(2, Math.floor((width - left - right) / 90))).filter(t => t >= view.from - 1e-6 && t <= view.to + 1e-6);
    const step = values.length > 1 ? values[1] - values[0] : view.to - view.from;
    let drawn = 0;
    panels.forEach((panel, p) => {
      pen.fillStyle = shade.ink;
      pen.textAlign = 'left';
      pen.font = `600 ${FONT}`;
      pen.fillText(panel.title, left, tops[p] - 6);
      const after = left + pen.measureText(panel.title).width + 8;
      pen.font = FONT;
      pen.fillStyle = shade.soft;
      if (after + pen.measureText(panel.origin).width <= width) pen.fillText(panel.origin, after, tops[p] - 6);
      const bottom = tops[p] + rowHeight * panel.ranks.length;
      pen.fillStyle = shade.row;
      pen.fillRect(left, tops[p], width - left - right, bottom - tops[p]);
      pen.strokeStyle = shade.grid;
      for (const value of values) {
        const x = Math.round(toX(value)) + 0.5;
        pen.beginPath(); pen.moveTo(x, tops[p]); pen.lineTo(x, bottom); pen.stroke();
      }
      panel.ranks.forEach((spans, rank) => {
        const y = tops[p] + rank * rowHeight, inner = rowHeight > 8 ? 2 : 0.5;
        if (rank % every === 0) {
          pen.fillStyle = shade.soft;
          pen.textAlign = 'right';
          pen.fillText(names[rank], left - 6, y + Math.max(rowHeight, 10) / 2 + 4);
        }
        pen.save();
        pen.beginPath();
        pen.rect(left, y, width - left - right, rowHeight);
        pen.clip();
        pen.textAlign = 'left';
        let lastX = -1, lastPhrase = -1;
        for (let k = first(spans, view.from); k < spans.count && spans.start[k] < view.to; k += 1) {
          const x = toX(spans.start[k]), wide = toX(spans.start[k] + spans.length[k]) - x, phrase = spans.rest[6 * k + 2];
          drawn += 1;
          if (wide < 0.6 && Math.round(x) === lastX && phrase === lastPhrase) continue;
          pen.fillStyle = shade.phrases[phrase];
          pen.fillRect(x, y + inner, Math.max(0.6, wide - (wide > 3 ? 0.8 : 0)), rowHeight - 2 * inner);
          [lastX, lastPhrase] = [Math.round(x), phrase];
          if (wide > 40 && rowHeight >= 16 && data.phrases[phrase][1] !== 'wait') label(pen, spans, k, x, wide, y, left);
        }
        pen.restore();
      });
    });
    pen.fillStyle = shade.soft;
    for (const value of values) {
      const text = moment(value, step, total), half = pen.measureText(text).width / 2;
      pen.textAlign = 'center';
      pen.fillText(text, Math.min(width - half - 1, Math.max(half + 1, toX(value))), height - 6);
    }
    scene = {width, height, left, right, tops, toX, toTime: x => view.from + (x - left) / (width - left - right) * (view.to - view.from)};
    outline(pen, shade);
    figure.dataset.from = String(Math.round(view.from));
    figure.dataset.to = String(Math.round(view.to));
    figure.dataset.drawn = String(drawn);
    figure.dataset.spans = String(panels.reduce((sum, panel) => sum + panel.ranks.reduce((own, spans) => own + spans.count, 0), 0));
    showLegend(shade);
  }

  function label(pen, spans, k, x, wide, y, left) {
    const [text] = phraseOf(spans, k), chunk = spans.rest[6 * k + 3];
    const short = text.replace(/^(forward again|forward|backward) of /, '').replace(/ of the optimiser$/, '');
    const from = Math.max(x, left), room = x + wide - from - 8;
    for (const each of [`${short}, chunk ${chunk}`, short, short.replace(/^layers? /, '')]) {
      if (pen.measureText(each).width <= room) {
        pen.fillStyle = isDark() ? '#10131a' : '#ffffff';
        pen.fillText(each, from + 4, y + rowHeight / 2 + 4);
        return;
      }
    }
  }

  function outline(pen, shade) {
    const at = state.selected;
    if (!at) return;
    const spans = panels[at.panel].ranks[at.rank], x = scene.toX(spans.start[at.k]);
    const x0 = Math.max(scene.left, x), x1 = Math.min(scene.width - scene.right, scene.toX(spans.start[at.k] + spans.length[at.k]));
    if (x1 < x0) return;
    pen.strokeStyle = shade.ink;
    pen.lineWidth = 2;
    pen.strokeRect(x0, scene.tops[at.panel] + at.rank * rowHeight + 1, Math.max(2, x1 - x0), rowHeight - 2);
    pen.lineWidth = 1;
  }

  let legendFor = null;
  function showLegend(shade) {
    const key = `${state.byLayer}/${isDark()}`;
    if (legendFor === key) return;
    legendFor = key;
    const items = new Map();
    data.phrases.forEach(([, kind, layer], k) => {
      const byLayer = state.byLayer && layer !== null;
      const name = byLayer ? null : state.byLayer && ['step', 'reduce'].includes(kind) ? 'other' : KIND_NAMES[kind] || 'other';
      if (name && !items.has(name)) items.set(name, shade.phrases[k]);
    });
    if (state.byLayer) {
      const few = [...new Set([0, 1, 2, 3, 4].map(k => Math.round(k * (data.layers - 1) / 4)))];
      for (const layer of few) items.set(`layer ${layer}`, spectrum(layer, data.layers));
    }
    legend.replaceChildren(...[...items].map(([name, fill]) => html('li', {}, html('i', {style: `background:${fill}`}), name)));
  }

  function show(from, to) {
    const least = Math.min(total, 20), span = Math.min(total, Math.max(least, to - from));
    from = Math.min(total - span, Math.max(0, from));
    [view.from, view.to] = [from, from + span];
    render();
  }
  function zoom(factor, at) {
    const middle = at === undefined ? centre() : at, share = (middle - view.from) / (view.to - view.from);
    const span = (view.to - view.from) * factor;
    show(middle - share * span, middle + (1 - share) * span);
  }
  function centre() {
    if (state.selected) {
      const spans = panels[state.selected.panel].ranks[state.selected.rank];
      const middle = spans.start[state.selected.k] + spans.length[state.selected.k] / 2;
      if (middle >= view.from && middle <= view.to) return middle;
    }
    return (view.from + view.to) / 2;
  }
  const pan = part => show(view.from + part * (view.to - view.from), view.to + part * (view.to - view.from));

  function hit(x, y) {
    for (let p = 0; p < panels.length; p += 1) {
      const rank = Math.floor((y - scene.tops[p]) / rowHeight);
      if (rank < 0 || rank >= panels[p].ranks.length || x < scene.left) continue;
      const spans = panels[p].ranks[rank], time = scene.toTime(x), slack = 3 * (view.to - view.from) / scene.width;
      for (const k of [first(spans, time), first(spans, time) - 1]) {
        if (k >= 0 && k < spans.count && spans.start[k] - slack <= time && spans.start[k] + spans.length[k] + slack >= time) {
          return {panel: p, rank, k};
        }
      }
    }
    return null;
  }

  function name(at) {
    const spans = panels[at.panel].ranks[at.rank], begin = spans.start[at.k], length = spans.length[at.k];
    return [
      `rank ${at.rank}: ${words(spans, at.k)}`,
      `${showSeconds(length / 1e6)}, from ${showSeconds(begin / 1e6)} to ${showSeconds((begin + length) / 1e6)}`,
    ];
  }

  function select(at, x, y) {
    const same = state.selected && at && state.selected.panel === at.panel && state.selected.rank === at.rank && state.selected.k === at.k;
    state.selected = at;
    if (at) {
      const told = name(at);
      readout.textContent = `${panels[at.panel].title}, ${told.join('; ')}.`;
      if (x !== undefined) tip.show(x, y, told); else tip.hide();
    } else {
      readout.textContent = hint;
      tip.hide();
    }
    if (!same) render();
  }

  const pointers = new Map();
  let dragged = null;
  canvas.addEventListener('pointerdown', event => {
    pointers.set(event.pointerId, event.clientX);
    dragged = {x: event.clientX, from: view.from, to: view.to, ids: [...pointers.keys()], starts: [...pointers.values()]};
    if (event.pointerType === 'mouse') canvas.setPointerCapture(event.pointerId);
    canvas.style.cursor = 'grabbing';
  });
  canvas.addEventListener('pointermove', event => {
    const box = canvas.getBoundingClientRect();
    if (pointers.has(event.pointerId)) {
      pointers.set(event.pointerId, event.clientX);
      const wide = scene.width - scene.left - scene.right, span = dragged.to - dragged.from;
      if (pointers.size === 2) {
        const [a, b] = dragged.starts, [c, d] = [...pointers.values()];
        const factor = Math.max(20, Math.abs(a - b)) / Math.max(20, Math.abs(c - d));
        const middle = dragged.from + ((a + b) / 2 - box.left - scene.left) / wide * span;
        const share = ((c + d) / 2 - box.left - scene.left) / wide;
        show(middle - share * span * factor, middle + (1 - share) * span * factor);
      } else {
        const moved = (dragged.x - event.clientX) / wide * span;
        if (Math.abs(dragged.x - event.clientX) > 2) { tip.hide(); show(dragged.from + moved, dragged.to + moved); }
      }
      return;
    }
    select(hit(event.clientX - box.left, event.clientY - box.top), event.clientX, event.clientY);
  });
  const release = event => { pointers.delete(event.pointerId); canvas.style.cursor = 'grab'; };
  canvas.addEventListener('pointerup', event => {
    const still = dragged && Math.abs(dragged.x - event.clientX) <= 3, box = canvas.getBoundingClientRect();
    release(event);
    if (still) select(hit(event.clientX - box.left, event.clientY - box.top), event.clientX, event.clientY);
  });
  canvas.addEventListener('pointercancel', release);
  canvas.addEventListener('pointerleave', event => { if (!pointers.has(event.pointerId)) tip.hide(); });
  canvas.addEventListener('dblclick', event => zoom(0.4, scene.toTime(event.clientX - canvas.getBoundingClientRect().left)));
  canvas.addEventListener('wheel', event => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) * 0.008), scene.toTime(event.clientX - canvas.getBoundingClientRect().left));
  }, {passive: false});

  function step(along, across) {
    let at = state.selected;
    if (!at) {
      const spans = panels[panels.length - 1].ranks[0];
      at = {panel: panels.length - 1, rank: 0, k: Math.min(spans.count - 1, first(spans, view.from))};
      if (at.k < 0) return;
    } else if (along) {
      const spans = panels[at.panel].ranks[at.rank];
      at = {...at, k: Math.min(spans.count - 1, Math.max(0, at.k + along))};
    } else {
      const spans = panels[at.panel].ranks[at.rank], time = spans.start[at.k] + spans.length[at.k] / 2;
      let row = at.panel * world + at.rank + across;
      row = Math.min(panels.length * world - 1, Math.max(0, row));
      const next = panels[Math.floor(row / world)].ranks[row % world];
      if (!next.count) return;
      at = {panel: Math.floor(row / world), rank: row % world, k: Math.min(next.count - 1, first(next, time))};
    }
    const spans = panels[at.panel].ranks[at.rank], begin = spans.start[at.k], end = begin + spans.length[at.k];
    const span = view.to - view.from;
    state.selected = null;
    if (begin < view.from || begin > view.to) show(begin - span / 3, begin - span / 3 + span);
    else if (end > view.to && spans.length[at.k] < span) show(end - span, end);
    select(at);
  }
  canvas.addEventListener('keydown', event => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const keys = {
      ArrowRight: () => event.shiftKey ? pan(0.2) : step(1, 0), ArrowLeft: () => event.shiftKey ? pan(-0.2) : step(-1, 0),
      ArrowDown: () => step(0, 1), ArrowUp: () => step(0, -1), '+': () => zoom(0.6), '=': () => zoom(0.6),
      '-': () => zoom(1 / 0.6), 0: () => show(0, total), Home: () => show(0, view.to - view.from),
      End: () => show(total - (view.to - view.from), total), Escape: () => select(null),
    };
    if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
  });
  return render;
}
CHARTS.schedule = drawSchedule;
