// Draws views with Preact. A part that is kept is drawn again only when its value has changed, and many of
// them in slices, so that clicks, keys and painting get their turn. Everything that comes from the cluster
// becomes a text node or an attribute, never markup: names and reasons are other people's.
import { Component, Fragment, h, options, render } from "./vendor/preact.mjs";

const SLICE = 12; // milliseconds of drawing before others get their turn
const due = []; // parts whose value has changed

options.debounceRendering = (work) => work(); // `draw` says when

class Kept extends Component {
  shouldComponentUpdate(next) {
    if (next.says !== this.props.says) this.later();
    return false;
  }

  componentWillUnmount() {
    this.gone = true;
  }

  later() {
    if (!this.waits) due.push(this);
    this.waits = true;
    return null;
  }

  render({ make }) {
    if (this.begun) return make();
    this.begun = true;
    return this.later();
  }
}

/** A part that is drawn again only when its value has changed; keys differ among siblings. */
export const kept = (key, value, make) => h(Kept, { key, says: JSON.stringify(value), make });

/** Draw this in a parent; false where it was given up because `still` said so. */
export async function draw(parent, children, still = () => true) {
  const held = document.activeElement;
  render(h(Fragment, null, children), parent);
  let until = performance.now() + SLICE;
  while (due.length) {
    const one = due.shift();
    one.waits = false;
    if (!one.gone) one.forceUpdate();
    if (performance.now() < until) continue;
    await new Promise((done) => { setTimeout(done); });
    if (!still()) return false;
    until = performance.now() + SLICE;
  }
  if (held !== document.activeElement && parent.contains(held)) held.focus({ preventScroll: true }); // it was moved
  return true;
}

export { Component, h };
