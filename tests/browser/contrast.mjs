// The contrast of every text on a page with what is behind it, as WCAG counts. axe lets large text pass at 3; here all of it needs as much.

/** Runs in the page. Returns what falls short, and how many texts were looked at. */
export function contrasts(least) {
  const parts = (colour) => {
    const [red, green, blue, alpha = 1] = (colour.match(/-?[\d.]+(?:e-?\d+)?/g) ?? []).map(Number);
    const scale = colour.startsWith("color(") ? 1 : 255;
    return { rgb: [red / scale, green / scale, blue / scale], alpha };
  };
  const over = (top, alpha, under) => top.map((one, at) => one * alpha + under[at] * (1 - alpha));
  const linear = (one) => (one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4);
  const light = (rgb) => rgb.reduce((sum, one, at) => sum + linear(one) * [0.2126, 0.7152, 0.0722][at], 0);
  const paper = document.documentElement.ownerDocument.defaultView.matchMedia("(prefers-color-scheme: dark)").matches ? [0.07, 0.07, 0.07] : [1, 1, 1];

  /** The colours of a text and of what is behind it, through the backgrounds and opacities of all that it stands in. */
  const seen = (path, colour) => {
    const inner = (at, under) => {
      if (at === path.length) return [over(colour.rgb, colour.alpha, under), under];
      const style = getComputedStyle(path[at]);
      const own = parts(style.backgroundColor);
      const [text, behind] = inner(at + 1, over(own.rgb, own.alpha, under));
      const opacity = Number(style.opacity);
      return [over(text, opacity, under), over(behind, opacity, under)];
    };
    return inner(0, paper);
  };
  /** What is behind a dialog is the dialog, whatever it stands in. */
  const pathOf = (el) => {
    const path = [];
    for (let one = el; one; one = one.parentElement) {
      path.unshift(one);
      if (one.tagName === "DIALOG") break;
    }
    return path;
  };
  const isShown = (el) => el.checkVisibility({ opacityProperty: true, visibilityProperty: true });
  const faults = new Set();
  let looked = 0;
  const check = (el, colour, words) => {
    if (!words.trim() || colour.alpha === 0) return;
    const [text, behind] = seen(pathOf(el), colour).map(light);
    const contrast = (Math.max(text, behind) + 0.05) / (Math.min(text, behind) + 0.05);
    looked += 1;
    if (contrast < least) faults.add(`${contrast.toFixed(2)} ${el.tagName.toLowerCase()}.${el.getAttribute("class") ?? ""} “${words.trim().slice(0, 30)}”`);
  };
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = texts.nextNode(); node; node = texts.nextNode()) {
    const el = node.parentElement;
    if (/^(OPTION|TEXTAREA|SCRIPT|NOSCRIPT|TITLE)$/.test(el.tagName) || !isShown(el)) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    if (range.getClientRects().length === 0) continue;
    const style = getComputedStyle(el);
    check(el, parts(el.namespaceURI.endsWith("svg") ? style.fill : style.color), node.data);
  }
  for (const el of document.querySelectorAll("input:not([type=checkbox], [type=radio], [type=file]), textarea, select")) {
    if (!isShown(el)) continue;
    check(el, parts(getComputedStyle(el).color), el.tagName === "SELECT" ? (el.selectedOptions[0]?.textContent ?? "") : el.value);
    if (!el.value) check(el, parts(getComputedStyle(el, "::placeholder").color), el.placeholder ?? "");
  }
  return { faults: [...faults], looked };
}
