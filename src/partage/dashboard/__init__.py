"""What people look at: documents of the whole cluster, and the page that shows them."""
