// The two drawings: batches by tick, and memory by slot. No state.

const GAP = 1;
const BAR = 4;

export function slotColor(slot, alpha = 1) {
  const style = getComputedStyle(document.documentElement);
  const light = style.getPropertyValue("--slot-light").trim();
  const sat = style.getPropertyValue("--slot-sat").trim();
  // Steps of the golden angle: a few dozen colours that all differ.
  const hue = (200 + slot * 137.508) % 360;
  return `hsl(${hue.toFixed(1)} ${sat} ${light} / ${alpha})`;
}

function open(canvas) {
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth;
  const height = Number(canvas.getAttribute("height-css") || canvas.getAttribute("height"));
  if (!canvas.hasAttribute("height-css")) canvas.setAttribute("height-css", height);
  canvas.style.height = `${height}px`;
  const wanted = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== wanted[0] || canvas.height !== wanted[1]) {
    [canvas.width, canvas.height] = wanted;
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height };
}

function colors() {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(`--${name}`).trim();
  return Object.fromEntries(
    ["ink", "faint", "line", "fill", "decode", "prefill", "lost", "card"].map((name) => [name, read(name)]),
  );
}

export function ticksThatFit(canvas) {
  return Math.max(1, Math.floor((canvas.clientWidth - 40) / (BAR + GAP)));
}

// Decode tokens are above the line, prefill tokens below it, each with its own scale: on one scale,
// sixteen decodes beside a prompt of a thousand tokens would be invisible.
export function drawBatches(canvas, ticks) {
  const { context, width, height } = open(canvas);
  const ink = colors();
  const left = 40;
  const shown = ticks.slice(-ticksThatFit(canvas));
  const decodeTop = niceTop(Math.max(4, ...shown.map((tick) => tick.decode)));
  const prefillTop = niceTop(Math.max(16, ...shown.map((tick) => tick.prefill)));
  const middle = Math.round(height * 0.52);
  const above = middle - 10;
  const below = height - middle - 10;
  context.font = "11px system-ui, sans-serif";
  context.textAlign = "right";
  context.textBaseline = "middle";
  context.lineWidth = 1;
  for (const [y, label] of [[10, decodeTop], [middle, 0], [height - 10, prefillTop]]) {
    context.strokeStyle = ink.line;
    context.beginPath();
    context.moveTo(left, Math.round(y) + 0.5);
    context.lineTo(width, Math.round(y) + 0.5);
    context.stroke();
    context.fillStyle = ink.faint;
    context.fillText(String(label), left - 6, y);
  }
  let x = width - shown.length * (BAR + GAP);
  for (const tick of shown) {
    const up = tick.decode ? Math.max(2, (tick.decode / decodeTop) * above) : 0;
    const down = tick.prefill ? Math.max(2, (tick.prefill / prefillTop) * below) : 0;
    context.fillStyle = ink.decode;
    context.fillRect(x, middle - up, BAR, up);
    context.fillStyle = ink.prefill;
    context.fillRect(x, middle + 1, BAR, down);
    if (tick.preempted) {
      context.fillStyle = ink.lost;
      context.beginPath();
      context.arc(x + BAR / 2, 4, 3, 0, 7);
      context.fill();
    }
    x += BAR + GAP;
  }
}

function niceTop(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  for (const digit of [1, 1.2, 1.6, 2, 3, 4, 5, 6, 8, 10]) if (value <= digit * power) return Math.round(digit * power);
  return 10 * power;
}

// One strip for the whole memory. A stretch of several slots is drawn once, with a dark cap. One of
// cached prefixes only is hatched. Returns the place of each stretch, for the pointer.
export function drawMemory(canvas, stretches, total, cached) {
  const { context, width, height } = open(canvas);
  const ink = colors();
  context.fillStyle = ink.fill;
  context.fillRect(0, 0, width, height);
  if (!total) return [];
  const placed = [];
  let tokens = 0;
  for (const [start, end, slots] of ordered(stretches)) {
    const x = (tokens / total) * width;
    const w = Math.max(((end - start) / total) * width, 0.75);
    const isCached = slots.every((slot) => cached.has(slot));
    // A prefix that is running and also cached is drawn as running.
    const owner = slots.find((slot) => !cached.has(slot)) ?? slots[0];
    if (isCached) hatch(context, x, w, height, slotColor(owner, 0.75));
    else {
      context.fillStyle = slotColor(owner);
      context.fillRect(x, 0, w, height);
    }
    if (slots.length > 1) {
      context.fillStyle = ink.ink;
      context.fillRect(x, 0, w, 5);
    }
    if (w > 3) {
      context.fillStyle = ink.card;
      context.fillRect(x + w - 1, 0, 1, height);
    }
    placed.push({ x, w, start, end, slots, isCached });
    tokens += end - start;
  }
  return placed;
}

function ordered(stretches) {
  // Sort by the first slot that holds a stretch, then by position.
  return [...stretches].sort((a, b) => Math.min(...a[2]) - Math.min(...b[2]) || a[0] - b[0]);
}

function hatch(context, x, w, height, color) {
  context.save();
  context.beginPath();
  context.rect(x, 0, w, height);
  context.clip();
  context.strokeStyle = color;
  context.lineWidth = 2;
  context.beginPath();
  for (let at = Math.floor((x - height) / 6) * 6; at < x + w + height; at += 6) {
    context.moveTo(at, height);
    context.lineTo(at + height, 0);
  }
  context.stroke();
  context.restore();
}
