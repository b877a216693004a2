// What a reader asks in whole sentences. The theme's search takes every word as a beginning, so that "a" finds
// "available" and "i" finds "images": leave such words out of what its worker is asked.
const SMALL = new Set(
  ('a about an and any are as at be been but by can could did do does for from get had has have how i if in into is ' +
    'it its may me might must my need no not of off on only or our out should so some than that the their them then ' +
    'there these they this to too use was we were what when where which while who why will with would you your').split(' '),
);
const QUERY = 2; // the kind of message by which the theme asks its worker
const post = Worker.prototype.postMessage;
Worker.prototype.postMessage = function (message, ...more) {
  if (message?.type === QUERY && typeof message.data === 'string' && !message.data.includes('"')) {
    const words = message.data.split(/\s+/).filter((word) => !SMALL.has(word.toLowerCase().replace(/[?!.,]+$/, '')));
    if (words.some(Boolean)) message = { ...message, data: words.join(' ') };
  }
  return post.call(this, message, ...more);
};
