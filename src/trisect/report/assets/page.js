// Draw every figure at the width that it has, again when that or the colours change; the button for dark and light.

function store(theme) { try { localStorage.setItem('trisect-theme', theme); } catch { /* a file may not keep it */ } }
function stored() { try { return localStorage.getItem('trisect-theme'); } catch { return null; } }

function showTheme() {
  const themeButton = document.getElementById('theme');
  themeButton.textContent = isDark() ? 'Light colours' : 'Dark colours';
  themeButton.setAttribute('aria-pressed', String(isDark()));
}

const remembered = stored();
if (remembered === 'dark' || remembered === 'light') document.documentElement.dataset.theme = remembered;

for (const figure of document.querySelectorAll('figure[data-kind]')) {
  const data = JSON.parse(figure.querySelector('script[type="application/json"]').textContent);
  const plot = figure.querySelector('.plot'), draw = CHARTS[figure.dataset.kind];
  if (!draw) continue;
  const render = draw(figure, plot, data);
  let width = -1;
  const observer = new ResizeObserver(() => {
    if (plot.clientWidth === width) return;
    width = plot.clientWidth;
    requestAnimationFrame(render);
  });
  render();
  width = plot.clientWidth;
  observer.observe(plot);
  redraws.push(render);
}

// a table takes part in the order of Tab only where it has something to scroll
function stops() {
  for (const region of document.querySelectorAll('.scroll')) {
    const scrolls = region.scrollWidth > region.clientWidth + 1 || region.scrollHeight > region.clientHeight + 1;
    scrolls ? region.setAttribute('tabindex', '0') : region.removeAttribute('tabindex');
  }
}
stops();
addEventListener('resize', stops);
for (const details of document.querySelectorAll('details')) details.addEventListener('toggle', stops);

document.getElementById('theme').addEventListener('click', () => {
  const theme = isDark() ? 'light' : 'dark';
  document.documentElement.dataset.theme = theme;
  store(theme);
  showTheme();
  redraws.forEach(render => render());
});
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => { showTheme(); redraws.forEach(render => render()); });
showTheme();
document.documentElement.dataset.ready = 'true';
