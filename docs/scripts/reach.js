// What the theme makes of a page in the browser, for readers with a keyboard or without sight: code and tables that
// scroll sideways can be reached, and the buttons of each block of code have a name of their own.
const reach = () => {
  for (const one of document.querySelectorAll('.md-typeset__scrollwrap, .md-typeset pre > code')) {
    if (one.scrollWidth > one.clientWidth) one.tabIndex = 0;
  }
  document.querySelectorAll('.md-code__nav').forEach((one, at) => {
    one.setAttribute('aria-label', `Block of code ${at + 1}`);
  });
};
new MutationObserver(reach).observe(document.querySelector('.md-content'), { childList: true, subtree: true });
addEventListener('resize', reach);
reach();
