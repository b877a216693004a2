"""Documents of the whole cluster for people, and the page that shows them."""
