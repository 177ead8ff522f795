'use strict';
// What all charts share: elements, numbers, ticks, colours, and the note beside the pointer. Text is only ever set as
// text, never as markup.

const SVG = 'http://www.w3.org/2000/svg';

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter(child => child !== null && child !== undefined));
  return element;
}
const html = (name, attributes, ...children) => fill(document.createElement(name), attributes, children);
const svg = (name, attributes, ...children) => fill(document.createElementNS(SVG, name), attributes, children);

function button(text, onClick, attributes) {
  const made = html('button', {type: 'button', ...attributes}, text || null);
  made.addEventListener('click', () => onClick(made));
  return made;
}

const ruler = document.createElement('canvas').getContext('2d');
const FONT = '12px system-ui, -apple-system, "Segoe UI", sans-serif';
function textWidth(text, font = FONT) {
  ruler.font = font;
  return ruler.measureText(text).width;
}

const plain = (value, digits) => value.toLocaleString('en-US', {maximumFractionDigits: digits});

function showNumber(value) {
  const size = Math.abs(value);
  if (size === 0) return '0';
  if (size >= 1e9 || size < 1e-4) return value.toExponential(2);
  return size >= 1e4 ? plain(value, 0) : String(+value.toPrecision(4));
}

function showSeconds(value) {
  const size = Math.abs(value);
  if (size === 0) return '0';
  if (size >= 7200) return plain(value / 3600, 2) + ' h';
  if (size >= 120) return plain(value / 60, 2) + ' min';
  if (size >= 1) return +value.toPrecision(4) + ' s';
  return size >= 1e-3 ? +(value * 1e3).toPrecision(3) + ' ms' : +(value * 1e6).toPrecision(3) + ' µs';
}

function showBytes(value) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  while (Math.abs(value) >= 1024 && unit < 4) { value /= 1024; unit += 1; }
  return +value.toPrecision(4) + ' ' + units[unit];
}

const SHOW = {number: showNumber, seconds: showSeconds, bytes: showBytes, share: v => showNumber(v * 100) + '%'};

// About `count` round values that enclose low..high.
function ticks(low, high, count) {
  if (!(high > low)) { const pad = Math.abs(low) * 0.1 || 1; low -= pad; high += pad; }
  const rough = (high - low) / Math.max(1, count - 1), power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map(factor => factor * power).find(each => each >= rough * 0.999);
  const first = Math.floor(low / step + 1e-9), last = Math.ceil(high / step - 1e-9), values = [];
  for (let k = first; k <= last; k += 1) values.push(+(k * step).toPrecision(12));
  return values;
}

const colour = number => `var(--c${number})`;

// The colour as a canvas wants it: custom properties are resolved by an element alone.
function resolved(value) {
  const probe = document.getElementById('tip');
  const before = probe.style.outlineColor;
  probe.style.outlineColor = value;
  const result = getComputedStyle(probe).outlineColor;
  probe.style.outlineColor = before;
  return result;
}

const isDark = () => {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
};
const spectrum = (k, count) => {
  const hue = (212 + 330 * k / Math.max(1, count)) % 360;
  return isDark() ? `hsl(${hue} 52% 56%)` : `hsl(${hue} 52% 47%)`;
};
const rankColour = (rank, world) => world <= 6 ? colour([0, 1, 2, 3, 5, 4][rank]) : spectrum(rank, world);

const tip = {
  element: null,
  show(x, y, lines) {
    this.element = this.element || document.getElementById('tip');
    const rows = lines.map(line => {
      const row = html('div', {}, line.text === undefined ? String(line) : line.text);
      if (line.colour) row.prepend(html('i', {style: `background:${line.colour}`}));
      return row;
    });
    this.element.replaceChildren(...rows);
    const width = this.element.offsetWidth, height = this.element.offsetHeight;
    const right = x + 14 + width <= innerWidth - 4 ? x + 14 : Math.max(4, x - 14 - width);
    const below = y + 16 + height <= innerHeight - 4 ? y + 16 : Math.max(4, y - 12 - height);
    this.element.style.transform = `translate(${Math.round(right)}px, ${Math.round(below)}px)`;
    this.element.style.visibility = 'visible';
  },
  hide() { if (this.element) this.element.style.visibility = 'hidden'; },
};

const CHARTS = {};     // kind → function(figure, plot, data) that gives a function which draws
const redraws = [];    // called when colours or sizes change
