// One small box beside the pointer, for all maps of a page.

const box = document.createElement("div");
box.className = "tip";
box.hidden = true;
document.body.append(box);

export const tip = {
  show(text, { x, y }) {
    box.textContent = text;
    box.hidden = false;
    const { width, height } = box.getBoundingClientRect();
    box.style.left = `${Math.max(4, Math.min(innerWidth - width - 4, x + 14))}px`;
    box.style.top = `${y + height + 22 > innerHeight ? y - height - 10 : y + 14}px`;
  },
  hide() {
    box.hidden = true;
  },
};
